package peers;

import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/** `writers` writers, each with a connection of its own and one event on its way: nothing that a client could batch. */
final class CrowdBench {
    private final Bench bench;
    private final ExecutorService threads = Executors.newFixedThreadPool(4);
    private final AtomicBoolean stopped = new AtomicBoolean();
    private final AtomicBoolean measuring = new AtomicBoolean();
    private final AtomicLong done = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final Samples samples = new Samples(2_000_000);

    CrowdBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        int size = bench.number("size", 100);
        String stream = bench.newStream(bench.number("segments", 4));
        byte[] event = new byte[size];
        List<EventStreamWriter<byte[]>> writers = new ArrayList<>();
        for (int number = 0; number < bench.number("writers", 1000); number++) {
            writers.add(bench.events.createEventWriter(stream, new ByteArraySerializer(), Bench.writing()));
        }
        for (int number = 0; number < writers.size(); number++) {
            EventStreamWriter<byte[]> writer = writers.get(number);
            String key = "key" + number;
            threads.submit(() -> next(writer, key, event));
        }
        Thread.sleep(bench.number("warm", 10) * 1000L);
        long before = done.get();
        long started = System.nanoTime();
        measuring.set(true);
        Bench.begin();
        Thread.sleep(bench.number("seconds", 10) * 1000L);
        long count = done.get() - before;
        double seconds = (System.nanoTime() - started) / 1e9;
        Bench.end();
        stopped.set(true);
        Bench.figures("events_per_second", count / seconds, "p50_ms", samples.percentile(50),
                "p99_ms", samples.percentile(99), "failed", failed.get(), "events", count,
                "bytes", (double) count * size);
    }

    private void next(EventStreamWriter<byte[]> writer, String key, byte[] event) {
        long started = System.nanoTime();
        writer.writeEvent(key, event).whenComplete((nothing, error) -> {
            if (error != null) {
                failed.incrementAndGet();
                return;
            }
            done.incrementAndGet();
            if (measuring.get()) {
                samples.add(System.nanoTime() - started);
            }
            if (!stopped.get()) {
                threads.submit(() -> next(writer, key, event));
            }
        });
    }
}
