package peers;

import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.ByteArraySerializer;

/** `count` transactions of ten events, one after another: how long begin takes, and commit until it is done. */
final class TransactionBench {
    private final Bench bench;

    TransactionBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        int warm = bench.number("warm", 10);
        int count = bench.number("count", 40);
        String stream = bench.newStream(1);
        Samples begins = new Samples(count);
        Samples commits = new Samples(count);
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(30_000).build();
        try (TransactionalEventStreamWriter<byte[]> writer =
                bench.events.createTransactionalEventWriter("w", stream, new ByteArraySerializer(), config)) {
            for (int number = -warm; number < count; number++) {
                long started = System.nanoTime();
                Transaction<byte[]> transaction = writer.beginTxn();
                long begun = System.nanoTime();
                for (int event = 0; event < 10; event++) {
                    transaction.writeEvent("key" + event, new byte[100]);
                }
                transaction.flush();
                long flushed = System.nanoTime();
                transaction.commit();
                while (transaction.checkStatus() != Transaction.Status.COMMITTED) {
                    Thread.sleep(1);
                }
                if (number >= 0) {
                    begins.add(begun - started);
                    commits.add(System.nanoTime() - flushed);
                }
            }
        }
        Bench.figures("begin_p50_ms", begins.percentile(50), "commit_p50_ms", commits.percentile(50),
                "begin_p99_ms", begins.percentile(99), "commit_p99_ms", commits.percentile(99));
    }
}
