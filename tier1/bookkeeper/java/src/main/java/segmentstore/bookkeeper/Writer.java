package segmentstore.bookkeeper;

import io.netty.buffer.ByteBuf;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerHandle;

/**
 * A ledger that is written. Its entries are acknowledged in order, so one number says which are: those below it.
 *
 * <p>After the first failure the number stays.
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
