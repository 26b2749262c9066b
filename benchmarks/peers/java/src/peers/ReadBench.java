package peers;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.concurrent.TimeUnit;

/** A new reader reads `stream` from its head, up to `events` events or for `seconds`. */
final class ReadBench {
    private final Bench bench;

    ReadBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        int eventsMax = bench.number("events", Integer.MAX_VALUE);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(bench.number("seconds", 20));
        long count = 0;
        long bytes = 0;
        long first = 0;
        long last = 0;
        int empty = 0;
        try (EventStreamReader<byte[]> reader = bench.events.createReader("r", bench.newGroup(bench.givenStream()),
                new ByteArraySerializer(), ReaderConfig.builder().build())) {
            while (count < eventsMax && empty < 3 && System.nanoTime() < deadline) {
                EventRead<byte[]> event = reader.readNextEvent(2000);
                if (event.getEvent() == null) {
                    empty += event.isCheckpoint() ? 0 : 1;
                    continue;
                }
                empty = 0;
                if (count == 0) {
                    first = System.nanoTime();
                    Bench.begin();
                }
                count++;
                bytes += event.getEvent().length;
                last = System.nanoTime();
            }
            Bench.end();
        }
        double seconds = (last - first) / 1e9;
        Bench.figures("events_per_second", count / seconds, "megabytes_per_second", bytes / seconds / 1e6,
                "events", count, "bytes", bytes);
    }
}
