package segmentstore.bookkeeper;

import io.netty.buffer.ByteBuf;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerHandle;

/**
 * A ledger that is written. Its entries are acknowledged in order, so one number says which are: those below it.
 *
 * <p>After the first failure the number stays, and nothing more is sent: it would get the id of an entry that failed
 * before BookKeeper had it, and be taken for that one when the end of the ledger is looked for.
 */
final class Writer implements AddCallback, Completions.Ended {
  final LedgerHandle ledger;

  private final int number;
  private final Completions completions;
  private final AtomicBoolean isReported = new AtomicBoolean();
  private volatile long acknowledged;
  private volatile int failure;

  Writer(int number, LedgerHandle ledger, Completions completions) {
    this.number = number;
    this.ledger = ledger;
    this.completions = completions;
  }

  /** Whether an entry was not taken, or not acknowledged. */
  boolean hasFailed() {
    return failure != 0;
  }

  /** Takes over the buffer. */
  void append(ByteBuf entry) {
    ledger.asyncAddEntry(entry, this, null);
  }

  @Override
  public void addComplete(int code, LedgerHandle ledger, long entry, Object context) {
    synchronized (this) {
      if (failure == 0) {
        if (code != BKException.Code.OK) {
          failure = code;
        } else if (entry == acknowledged) {
          acknowledged = entry + 1;
        } else {
          // BookKeeper promises the order; a log that is told otherwise must not go on.
          failure = BKException.Code.UnexpectedConditionException;
        }
      }
    }
    if (isReported.compareAndSet(false, true)) {
      completions.add(this);
    }
  }

  @Override
  public void report(long[] numbers, int at) {
    // First: what is acknowledged from now on is reported again.
    isReported.set(false);
    synchronized (this) {
      numbers[at] = number;
      numbers[at + 1] = acknowledged;
      numbers[at + 2] = failure;
    }
  }
}
