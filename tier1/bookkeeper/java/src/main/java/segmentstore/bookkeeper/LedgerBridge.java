package segmentstore.bookkeeper;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.PooledByteBufAllocator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.net.BookieId;

/**
 * A client of one BookKeeper cluster, driven by one event loop of Python.
 *
 * <p>The loop numbers its ledgers and its calls. It puts entries into one shared buffer and hands over several at once;
 * what ended it learns from drain(), when a byte in the pipe has woken it. No method waits for a bookie or for
 * ZooKeeper, but the constructor and close().
 */
public final class LedgerBridge {
  private static final int HEADER_BYTES = 8;
  private static final long ZOOKEEPER_MILLIS = 30_000;
  /** A code of ours: no room for an entry outside of the heap. */
  private static final int NO_MEMORY = -9998;

  private static final DigestType DIGEST = DigestType.CRC32C;

  private final BookKeeper client;
  private final byte[] password;
  private final ByteBuffer staged;
  private final Completions completions;
  private final ConcurrentHashMap<Integer, Writer> writers = new ConcurrentHashMap<>();
  private final ConcurrentHashMap<Integer, Call> ended = new ConcurrentHashMap<>();

  /** Connects. `staged` is memory of the loop, `pipe` the name of a file that it watches. */
  public LedgerBridge(ClientConfiguration settings, byte[] password, ByteBuffer staged, String pipe)
      throws Exception {
    this.client = new BookKeeper(settings);
    this.password = password;
    this.staged = staged.order(ByteOrder.LITTLE_ENDIAN);
    this.completions = new Completions(pipe);
  }

  /** See Completions.drain(). */
  public long[] drain() {
    return completions.drain();
  }

  /**
   * Append the entries in the first bytes of the shared buffer: (int writer, int length, bytes) for each. They are copied:
   * the buffer is free again when this returns.
   */
  public void append(int bytes) {
    int at = 0;
    while (at < bytes) {
      Writer writer = writers.get(staged.getInt(at));
      int length = staged.getInt(at + 4);
      at += HEADER_BYTES;
      if (writer != null && !writer.hasFailed()) {
        append(writer, at, length);
      }
      at += length;
    }
  }

  private void append(Writer writer, int at, int length) {
    try {
      ByteBuf entry = PooledByteBufAllocator.DEFAULT.directBuffer(length, length);
      entry.writeBytes(staged.slice(at, length));
      writer.append(entry);
    } catch (RuntimeException | OutOfMemoryError failed) {
      // The entries behind it belong to other ledgers, or to this one, which takes no more.
      int code = failed instanceof OutOfMemoryError ? NO_MEMORY : BKException.Code.UnexpectedConditionException;
      writer.addComplete(code, writer.ledger, -1, null);
    }
  }

  /** A new ledger, which is writer `number` from now on. The call's result is its id. */
  public void create(int number, int ensemble, int writeQuorum, int ackQuorum, Map<String, byte[]> labels) {
    watch(
        number,
        client
            .newCreateLedgerOp()
            .withEnsembleSize(ensemble)
            .withWriteQuorumSize(writeQuorum)
            .withAckQuorumSize(ackQuorum)
            .withDigestType(DIGEST)
            .withPassword(password)
            .withCustomMetadata(labels)
            .execute()
            .thenApply(
                created -> {
                  writers.put(number, new Writer(number, (LedgerHandle) created, completions));
                  return created.getId();
                }));
  }

  /** Entries that are not acknowledged yet fail: the loop waits for them before. */
  public void closeWriter(int number, int writer) {
    Writer written = writers.get(writer);
    watch(
        number,
        written == null ? CompletableFuture.completedFuture(null) : written.ledger.closeAsync());
  }

  /** Nothing is reported of this writer any more. */
  public void forgetWriter(int writer) {
    writers.remove(writer);
  }

  /** The call's result is a ReadHandle; unless it fences, it ends where the writer has confirmed. */
  public void open(int number, long ledger, boolean fences) {
    watch(
        number,
        client
            .newOpenLedgerOp()
            .withLedgerId(ledger)
            .withDigestType(DIGEST)
            .withPassword(password)
            .withRecovery(fences)
            .execute());
  }

  /** The call's result is an EntryBatch. */
  public void read(int number, ReadHandle ledger, long first, long last) {
    watch(number, ledger.readAsync(first, last).thenApply(EntryBatch::new));
  }

  public void closeReader(int number, ReadHandle ledger) {
    watch(number, ledger.closeAsync());
  }

  public void delete(int number, long ledger) {
    watch(number, client.newDeleteLedgerOp().withLedgerId(ledger).execute());
  }

  /**
   * The call's result has each ledger of the cluster with these labels, and all its labels. It asks ZooKeeper for one
   * ledger after the other, in a thread of its own.
   */
  public void findLabelled(int number, Map<String, byte[]> labels) {
    CompletableFuture<Map<Long, Map<String, byte[]>>> found = new CompletableFuture<>();
    Thread walk =
        new Thread(
            () -> {
              try {
                found.complete(labelled(labels));
              } catch (Throwable failed) {
                found.completeExceptionally(failed);
              }
            },
            "ledger-walk");
    walk.setDaemon(true);
    watch(number, found);
    walk.start();
  }

  private Map<Long, Map<String, byte[]>> labelled(Map<String, byte[]> labels) throws Exception {
    Map<Long, Map<String, byte[]>> found = new HashMap<>();
    LedgerManager.LedgerRangeIterator ranges = client.getLedgerManager().getLedgerRanges(ZOOKEEPER_MILLIS);
    while (ranges.hasNext()) {
      for (long ledger : ranges.next().getLedgers()) {
        Map<String, byte[]> its = labelsOf(ledger);
        if (labels.entrySet().stream().allMatch(each -> Arrays.equals(each.getValue(), its.get(each.getKey())))) {
          found.put(ledger, its);
        }
      }
    }
    return found;
  }

  private Map<String, byte[]> labelsOf(long ledger) throws Exception {
    try {
      return client.getLedgerManager().readLedgerMetadata(ledger).get().getValue().getCustomMetadata();
    } catch (ExecutionException failed) {
      if (failed.getCause() instanceof BKException.BKNoSuchLedgerExistsOnMetadataServerException) {
        return Map.of(); // deleted meanwhile
      }
      throw failed;
    }
  }

  /** The call's result is how many bookies take writes. */
  public void countWritableBookies(int number) {
    watch(
        number,
        client
            .getMetadataClientDriver()
            .getRegistrationClient()
            .getWritableBookies()
            .thenApply(found -> found.getValue().size()));
  }

  /** The call's result is whether each bookie that has a copy of the entries is up. */
  public void areBookiesHere(int number, ReadHandle ledger, long first, long last) {
    NavigableMap<Long, ? extends List<BookieId>> ensembles = ledger.getLedgerMetadata().getAllEnsembles();
    Set<BookieId> wanted = new HashSet<>();
    ensembles.subMap(ensembles.floorKey(first), true, last, true).values().forEach(wanted::addAll);
    RegistrationClient bookies = client.getMetadataClientDriver().getRegistrationClient();
    watch(
        number,
        bookies
            .getWritableBookies()
            .thenCombine(
                bookies.getReadOnlyBookies(),
                (writable, readOnly) -> {
                  wanted.removeAll(writable.getValue());
                  wanted.removeAll(readOnly.getValue());
                  return wanted.isEmpty();
                }));
  }

  /** The result of a call that ended well, once. */
  public Object take(int number) {
    return ended.remove(number).result;
  }

  /** Why a call failed, once. */
  public String takeMessage(int number) {
    return ended.remove(number).message;
  }

  private void watch(int number, CompletionStage<?> call) {
    call.whenComplete(
        (result, error) -> {
          Call outcome = new Call(number, result, error);
          ended.put(number, outcome);
          completions.add(outcome);
        });
  }

  /** Everything that is outstanding fails. */
  public void close() throws IOException, InterruptedException, BKException {
    try {
      client.close();
    } finally {
      completions.close();
    }
  }
}
