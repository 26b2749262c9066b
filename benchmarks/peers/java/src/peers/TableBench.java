package peers;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.TableKey;
import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;

/** Puts, then gets, of 100-byte values under 1,000 keys, `inflight` at a time. */
final class TableBench {
    private final Bench bench;

    TableBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        String name = "t" + System.nanoTime();
        try (KeyValueTableManager tables = KeyValueTableManager.create(bench.config)) {
            tables.createKeyValueTable(Bench.SCOPE, name, KeyValueTableConfiguration.builder()
                    .partitionCount(1).primaryKeyLength(8).secondaryKeyLength(0).build());
        }
        try (KeyValueTableFactory factory = KeyValueTableFactory.withScope(Bench.SCOPE, bench.config);
                KeyValueTable table =
                        factory.forKeyValueTable(name, KeyValueTableClientConfiguration.builder().build())) {
            Function<TableKey, CompletableFuture<?>> put =
                    key -> table.update(new Put(key, ByteBuffer.allocate(100)));
            Function<TableKey, CompletableFuture<?>> get = table::get;
            operations(put, bench.number("warm", 3));
            double puts = operations(put, bench.number("seconds", 5));
            operations(get, bench.number("warm", 3) / 2);
            double gets = operations(get, bench.number("seconds", 5));
            Bench.figures("puts_per_second", puts, "gets_per_second", gets);
        }
    }

    private double operations(Function<TableKey, CompletableFuture<?>> operation, int seconds) throws Exception {
        int inflight = bench.number("inflight", 200);
        Semaphore free = new Semaphore(inflight);
        AtomicLong done = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        long started = System.nanoTime();
        long deadline = started + TimeUnit.SECONDS.toNanos(seconds);
        for (long count = 0; System.nanoTime() < deadline; count++) {
            free.acquire();
            ByteBuffer key = ByteBuffer.allocate(8).putLong(0, count % 1000);
            operation.apply(new TableKey(key)).whenComplete((result, error) -> {
                free.release();
                (error == null ? done : failed).incrementAndGet();
            });
        }
        free.acquire(inflight);
        if (failed.get() > 0) {
            throw new IllegalStateException("operations failed: " + failed);
        }
        return done.get() / ((System.nanoTime() - started) / 1e9);
    }
}
