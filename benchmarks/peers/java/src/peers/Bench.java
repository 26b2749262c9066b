package peers;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.net.URI;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/**
 * One measurement with Pravega's own Java client, against whatever answers at the controller's address:
 *
 * <pre>Bench CONTROLLER_URI write|latency|read|bytes|tables|transactions|crowd [name=value ...]</pre>
 *
 * Prints JSON lines: {"phase": "begin"} and {"phase": "end"} around the measured time, so that the caller can look at
 * the server's CPU just then, and {"figures": {...}} at the end.
 */
public final class Bench {
    static final String SCOPE = "bench";

    final ClientConfig config;
    final EventStreamClientFactory events;
    private final Map<String, String> options = new HashMap<>();

    private Bench(String uri, String[] arguments) {
        config = ClientConfig.builder().controllerURI(URI.create(uri)).build();
        for (int index = 2; index < arguments.length; index++) {
            String[] option = arguments[index].split("=", 2);
            options.put(option[0], option[1]);
        }
        try (StreamManager streams = StreamManager.create(config)) {
            streams.createScope(SCOPE);
        }
        events = EventStreamClientFactory.withScope(SCOPE, config);
    }

    public static void main(String[] arguments) throws Exception {
        Bench bench = new Bench(arguments[0], arguments);
        switch (arguments[1]) {
            case "write" -> new WriteBench(bench).run();
            case "latency" -> new LatencyBench(bench).run();
            case "read" -> new ReadBench(bench).run();
            case "bytes" -> new ByteBench(bench).run();
            case "tables" -> new TableBench(bench).run();
            case "transactions" -> new TransactionBench(bench).run();
            case "crowd" -> new CrowdBench(bench).run();
            default -> throw new IllegalArgumentException(arguments[1]);
        }
        System.exit(0);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, Integer.toString(otherwise)));
    }

    /** The name of the stream, made with so many segments. */
    String newStream(int segments) {
        String name = options.getOrDefault("stream", "s" + System.nanoTime());
        try (StreamManager streams = StreamManager.create(config)) {
            streams.createStream(SCOPE, name,
                    StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build());
        }
        return name;
    }

    String givenStream() {
        return options.get("stream");
    }

    String newGroup(String stream) {
        String name = "g" + System.nanoTime();
        try (ReaderGroupManager groups = ReaderGroupManager.withScope(SCOPE, config)) {
            groups.createReaderGroup(name, ReaderGroupConfig.builder().disableAutomaticCheckpoints()
                    .stream(Stream.of(SCOPE, stream)).build());
        }
        return name;
    }

    static EventWriterConfig writing() {
        return EventWriterConfig.builder().enableConnectionPooling(false).build();
    }

    static void begin() {
        line("{\"phase\": \"begin\"}");
    }

    static void end() {
        line("{\"phase\": \"end\"}");
    }

    /** Names and numbers in turn. */
    static void figures(Object... pairs) {
        StringBuilder line = new StringBuilder("{\"figures\": {");
        for (int index = 0; index < pairs.length; index += 2) {
            double value = ((Number) pairs[index + 1]).doubleValue();
            line.append(String.format(Locale.ROOT, "%s\"%s\": %.4f", index == 0 ? "" : ", ", pairs[index], value));
        }
        line(line.append("}}").toString());
    }

    private static void line(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
