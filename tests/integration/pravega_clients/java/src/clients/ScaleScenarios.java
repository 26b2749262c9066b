package clients;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Stream;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Streams that change their number of segments. */
final class ScaleScenarios {
    private ScaleScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("a_stream_is_scaled_up_and_down_under_write_load", ScaleScenarios::underLoad),
                new Scenario("a_scaled_stream_is_read_through_its_generations", ScaleScenarios::generations),
                new Scenario("a_scale_that_does_not_fit_is_refused", ScaleScenarios::refused));
    }

    private static void underLoad(Session session) throws Exception {
        int keys = 20;
        int perKey = 500;
        session.stream("s", 1);
        session.group("g", "s");
        ExecutorService threads = Executors.newFixedThreadPool(2);
        KeyOrder order = new KeyOrder();
        Future<?> reading = threads.submit(() -> {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
            try (EventStreamReader<String> reader = session.reader("r", "g")) {
                while (order.count() < keys * perKey && System.nanoTime() < deadline) {
                    String event = reader.readNextEvent(200).getEvent();
                    if (event != null) {
                        order.add(event);
                    }
                }
            }
            return null;
        });
        Future<?> writing = threads.submit(() -> {
            try (EventStreamWriter<String> writer = session.writer("s")) {
                for (int number = 0; number < perKey; number++) {
                    for (int key = 0; key < keys; key++) {
                        writer.writeEvent("k" + key, KeyOrder.event("k" + key, number));
                    }
                    Thread.sleep(8);
                }
                writer.flush();
            }
            return null;
        });
        for (int count : List.of(4, 2, 3, 1)) {
            Thread.sleep(400);
            session.scale("s", count);
        }
        writing.get(180, TimeUnit.SECONDS);
        reading.get(180, TimeUnit.SECONDS);
        threads.shutdown();
        order.check(keys * perKey);
    }

    private static void generations(Session session) throws Exception {
        session.stream("s", 1);
        int from = 0;
        for (int count : List.of(2, 5, 1, 3)) {
            session.write("s", 10, from, from + 10);
            from += 10;
            session.scale("s", count);
        }
        session.write("s", 10, from, from + 10);
        session.readAllInOrder("g", "s", 500);
    }

    private static void refused(Session session) throws Exception {
        session.stream("s", 2);
        boolean scaled;
        try {
            scaled = session.controller().scaleStream(Stream.of(session.scope, "s"), List.of(0L),
                    Map.of(0.0, 0.7), session.timer).getFuture().get(60, TimeUnit.SECONDS);
        } catch (ExecutionException refused) {
            scaled = false;
        }
        Check.holds(!scaled, "a range that is not that of the sealed segment was accepted");
        session.write("s", 4, 5);
        session.readAllInOrder("g", "s", 20);
    }
}
