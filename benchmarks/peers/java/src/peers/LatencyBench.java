package peers;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * Open loop: `rate` events a second, each timed from the moment it was due, to its acknowledgement and to a reader that
 * follows the tail. A system that stalls is charged for all that was due meanwhile.
 */
final class LatencyBench {
    private static final int READER_TIMEOUT_MILLIS = 50;

    private final Bench bench;

    LatencyBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        int size = bench.number("size", 100);
        int rate = bench.number("rate", 1000);
        int warm = bench.number("warm", 5) * rate;
        int count = warm + bench.number("seconds", 10) * rate;
        String stream = bench.newStream(bench.number("segments", 1));
        Samples acknowledged = new Samples(count);
        Samples read = new Samples(count);
        EventStreamReader<byte[]> reader = bench.events.createReader(
                "r", bench.newGroup(stream), new ByteArraySerializer(), ReaderConfig.builder().build());
        CountDownLatch readerReady = new CountDownLatch(1);
        Thread reading = new Thread(() -> {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(count / rate + 30);
            for (int seen = 0; seen < count && System.nanoTime() < deadline; ) {
                EventRead<byte[]> event = reader.readNextEvent(READER_TIMEOUT_MILLIS);
                if (event.getEvent() == null) {
                    readerReady.countDown();
                    continue;
                }
                seen++;
                if (seen > warm) {
                    read.add(System.nanoTime() - ByteBuffer.wrap(event.getEvent()).getLong());
                }
            }
        });
        reading.start();
        readerReady.await();
        EventStreamWriter<byte[]> writer =
                bench.events.createEventWriter(stream, new ByteArraySerializer(), Bench.writing());
        long started = System.nanoTime();
        for (int number = 0; number < count; number++) {
            long due = started + TimeUnit.SECONDS.toNanos(number) / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            if (number == warm) {
                Bench.begin();
            }
            byte[] event = new byte[size];
            ByteBuffer.wrap(event).putLong(due);
            boolean counts = number >= warm;
            writer.writeEvent("key" + number % 1009, event).whenComplete((nothing, error) -> {
                if (counts && error == null) {
                    acknowledged.add(System.nanoTime() - due);
                }
            });
        }
        writer.flush();
        Bench.end();
        reading.join(30_000);
        Bench.figures(
                "ack_p50_ms", acknowledged.percentile(50), "ack_p99_ms", acknowledged.percentile(99),
                "read_p50_ms", read.percentile(50), "read_p99_ms", read.percentile(99),
                "events", acknowledged.count(), "bytes", (double) acknowledged.count() * size,
                "events_read", read.count());
    }
}
