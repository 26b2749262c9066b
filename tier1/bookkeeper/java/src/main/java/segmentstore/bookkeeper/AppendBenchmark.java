package segmentstore.bookkeeper;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** What the client does without Python: appends of one size with so many on their way, as a line of JSON. */
public final class AppendBenchmark {
  private AppendBenchmark() {}

  /** Metadata service's URI, bytes of an entry, entries on their way, seconds to warm up, seconds to measure. */
  public static void main(String[] arguments) throws Exception {
    ClientConfiguration settings = new ClientConfiguration();
    settings.setMetadataServiceUri(arguments[0]);
    settings.setThrottleValue(0);
    settings.setNumIOThreads(2);
    settings.setNumWorkerThreads(2);
    settings.setDelayEnsembleChange(true);
    settings.setUseV2WireProtocol(true);
    int bytes = Integer.parseInt(arguments[1]);
    int outstanding = Integer.parseInt(arguments[2]);
    try (BookKeeper client = BookKeeper.newBuilder(settings).build()) {
      run(client, bytes, outstanding, Double.parseDouble(arguments[3]));
      System.out.println(run(client, bytes, outstanding, Double.parseDouble(arguments[4])));
    }
    System.exit(0);
  }

  private static String run(BookKeeper client, int bytes, int outstanding, double seconds) throws Exception {
    WriteHandle ledger =
        client
            .newCreateLedgerOp()
            .withEnsembleSize(3)
            .withWriteQuorumSize(3)
            .withAckQuorumSize(2)
            .withDigestType(DigestType.CRC32C)
            .withPassword(new byte[0])
            .execute()
            .get();
    byte[] entry = new byte[bytes];
    new Random(1).nextBytes(entry);
    Semaphore free = new Semaphore(outstanding);
    AtomicInteger failed = new AtomicInteger();
    long[] latencies = new long[4_000_000];
    com.sun.management.OperatingSystemMXBean process =
        (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long cpuBefore = process.getProcessCpuTime();
    long start = System.nanoTime();
    long end = start + (long) (seconds * 1e9);
    AtomicInteger done = new AtomicInteger();
    while (System.nanoTime() < end) {
      free.acquire();
      long began = System.nanoTime();
      ledger
          .appendAsync(entry)
          .whenComplete(
              (id, error) -> {
                if (error != null) {
                  failed.incrementAndGet();
                }
                latencies[done.getAndIncrement()] = System.nanoTime() - began;
                free.release();
              });
    }
    free.acquire(outstanding);
    double elapsed = (System.nanoTime() - start) / 1e9;
    double cpu = (process.getProcessCpuTime() - cpuBefore) / 1e3;
    ledger.close();
    client.newDeleteLedgerOp().withLedgerId(ledger.getId()).execute().get();
    int count = done.get();
    long[] sorted = Arrays.copyOf(latencies, count);
    Arrays.sort(sorted);
    return String.format(
        "{\"appends_per_second\": %.1f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"process_us\": %.1f, \"failed\": %d}",
        count / elapsed, sorted[count / 2] / 1e6, sorted[(int) (count * 0.99)] / 1e6, cpu / count, failed.get());
  }
}
