package segmentstore.bookkeeper;

import java.io.FileOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * What came to an end since the event loop last looked, and the pipe that wakes the loop.
 *
 * <p>Any thread adds; only the loop drains. Between two drains one byte at most is written, however much ends.
 */
final class Completions implements AutoCloseable {
  /** Numbers for one thing that ended: drain() gives three of them for each. */
  interface Ended {
    /** Fill in three numbers from {@code at}: which, how far, and the code of BookKeeper's error or 0. */
    void report(long[] numbers, int at);
  }

  static final int NUMBERS = 3;

  private final ConcurrentLinkedQueue<Ended> ended = new ConcurrentLinkedQueue<>();
  private final AtomicBoolean woken = new AtomicBoolean();
  private final FileOutputStream pipe;

  Completions(String pipe) throws IOException {
    this.pipe = new FileOutputStream(pipe);
  }

  void add(Ended each) {
    ended.add(each);
    if (woken.compareAndSet(false, true)) {
      try {
        pipe.write(1);
      } catch (IOException closed) {
        return; // The loop is gone, and with it everything that waited.
      }
    }
  }

  /** Three numbers for each that ended, in order; empty if none did. */
  long[] drain() {
    // First: what is added from now on wakes the loop again.
    woken.set(false);
    long[] numbers = new long[16 * NUMBERS];
    int used = 0;
    for (Ended each = ended.poll(); each != null; each = ended.poll()) {
      if (used == numbers.length) {
        numbers = Arrays.copyOf(numbers, 2 * used);
      }
      each.report(numbers, used);
      used += NUMBERS;
    }
    return Arrays.copyOf(numbers, used);
  }

  @Override
  public void close() throws IOException {
    pipe.close();
  }
}
