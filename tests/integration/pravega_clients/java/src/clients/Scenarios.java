package clients;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs scenarios against a server and prints one JSON line for each:
 *
 * <pre>Scenarios CONTROLLER_URI SCOPE_PREFIX [NAME ...]</pre>
 */
public final class Scenarios {
    private static final int SECONDS_MAX = 400;
    private static final int AT_ONCE = 4;

    private Scenarios() {
    }

    static List<Scenario> all() {
        List<Scenario> all = new ArrayList<>();
        all.addAll(TimeScenarios.all());
        all.addAll(TransactionScenarios.all());
        all.addAll(ScaleScenarios.all());
        all.addAll(GroupScenarios.all());
        all.addAll(StreamScenarios.all());
        all.addAll(EventScenarios.all());
        all.addAll(ByteScenarios.all());
        all.addAll(StateScenarios.all());
        all.addAll(TableScenarios.all());
        return all;
    }

    public static void main(String[] arguments) throws Exception {
        URI server = URI.create(arguments[0]);
        String prefix = arguments[1];
        List<String> names = Arrays.asList(arguments).subList(2, arguments.length);
        // Many of them wait for a lease or a watermark, so several run at once; each has a scope of its own.
        ExecutorService slots = Executors.newFixedThreadPool(AT_ONCE);
        List<Future<?>> running = new ArrayList<>();
        for (Scenario scenario : all()) {
            if (names.isEmpty() || names.contains(scenario.name())) {
                String scope = prefix + running.size();
                running.add(slots.submit(() -> report(scenario, server, scope)));
            }
        }
        for (Future<?> one : running) {
            one.get();
        }
        System.exit(0);
    }

    private static void report(Scenario scenario, URI server, String scope) {
        long started = System.nanoTime();
        String failure = "";
        // A thread of its own, so that one that hangs costs its time only.
        ExecutorService alone = Executors.newSingleThreadExecutor();
        try {
            alone.submit(() -> {
                try (Session session = new Session(server, scope)) {
                    scenario.body().run(session);
                }
                return null;
            }).get(SECONDS_MAX, TimeUnit.SECONDS);
        } catch (TimeoutException error) {
            failure = "still running after " + SECONDS_MAX + " seconds";
        } catch (Exception error) {
            StringWriter trace = new StringWriter();
            Throwable cause = error.getCause() == null ? error : error.getCause();
            cause.printStackTrace(new PrintWriter(trace));
            failure = trace.toString();
        }
        alone.shutdownNow();
        Report.line(
                "scenario", scenario.name(),
                "passed", failure.isEmpty(),
                "seconds", (System.nanoTime() - started) / 1e9,
                "failure", failure.substring(0, Math.min(failure.length(), 3000)));
    }
}
