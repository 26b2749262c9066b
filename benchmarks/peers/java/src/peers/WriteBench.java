package peers;

import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Closed loop: one writer keeps `inflight` events of `size` bytes on their way, for `seconds` after `warm` seconds.
 * `megabytes` ends it earlier, which bounds the disk that it takes.
 */
final class WriteBench {
    private static final int KEYS = 1009;

    private final Bench bench;

    WriteBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        int size = bench.number("size", 100);
        int segments = bench.number("segments", 1);
        int inflight = bench.number("inflight", Math.min(20_000, (32 << 20) / size));
        long eventsMax = bench.number("megabytes", 4000) * 1_000_000L / size;
        String stream = bench.newStream(segments);
        byte[] event = new byte[size];
        new Random(5).nextBytes(event);
        AtomicLong acknowledged = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicBoolean measuring = new AtomicBoolean();
        AtomicBoolean stopped = new AtomicBoolean();
        Samples samples = new Samples(8_000_000);
        Semaphore free = new Semaphore(inflight);
        EventStreamWriter<byte[]> writer =
                bench.events.createEventWriter(stream, new ByteArraySerializer(), Bench.writing());
        Thread writing = new Thread(() -> {
            for (long count = 0; !stopped.get() && count < eventsMax; count++) {
                free.acquireUninterruptibly();
                long started = System.nanoTime();
                writer.writeEvent("key" + count % KEYS, event).whenComplete((nothing, error) -> {
                    free.release();
                    if (error != null) {
                        failed.incrementAndGet();
                        return;
                    }
                    acknowledged.incrementAndGet();
                    if (measuring.get()) {
                        samples.add(System.nanoTime() - started);
                    }
                });
            }
            writer.flush();
        });
        writing.start();
        Thread.sleep(bench.number("warm", 5) * 1000L);
        long before = acknowledged.get();
        long started = System.nanoTime();
        measuring.set(true);
        Bench.begin();
        writing.join(bench.number("seconds", 8) * 1000L);
        long count = acknowledged.get() - before;
        double seconds = (System.nanoTime() - started) / 1e9;
        measuring.set(false);
        Bench.end();
        stopped.set(true);
        writing.join(30_000);
        Bench.figures(
                "events_per_second", count / seconds, "megabytes_per_second", count * (double) size / seconds / 1e6,
                "events", count, "bytes", count * (double) size, "p50_ms", samples.percentile(50),
                "p99_ms", samples.percentile(99), "failed", failed.get(), "events_in_all", acknowledged.get());
    }
}
