package clients;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.TimeWindow;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Time as writers note it and readers see it. */
final class TimeScenarios {
    private TimeScenarios() {
    }

    static List<Scenario> all() {
        return List.of(new Scenario("readers_see_a_window_of_the_writers_time", TimeScenarios::window));
    }

    private static void window(Session session) throws Exception {
        Stream stream = session.stream("s", 2);
        session.group("g", session.brisk().stream(stream).build());
        long started = System.nanoTime();
        TimeWindow window = null;
        try (EventStreamWriter<String> writer = session.writer("s");
                EventStreamReader<String> reader = session.reader("r", "g")) {
            long time = 1_000_000;
            while (System.nanoTime() - started < TimeUnit.SECONDS.toNanos(180)) {
                for (int key = 0; key < 8; key++) {
                    writer.writeEvent("k" + key, "e");
                }
                writer.flush();
                time += 1000;
                writer.noteTime(time);
                String event = reader.readNextEvent(100).getEvent();
                while (event != null) {
                    event = reader.readNextEvent(100).getEvent();
                }
                window = reader.getCurrentTimeWindow(stream);
                if (window.getLowerTimeBound() != null) {
                    break;
                }
            }
            Check.holds(window != null && window.getLowerTimeBound() != null, "no lower bound after 180 s: " + window);
            Check.holds(window.getLowerTimeBound() > 1_000_000 && window.getLowerTimeBound() <= time,
                    "a bound that was noted: " + window.getLowerTimeBound() + " of " + time);
            Check.holds(window.getUpperTimeBound() == null
                    || window.getUpperTimeBound() >= window.getLowerTimeBound(), "upper above lower");
        }
    }
}
