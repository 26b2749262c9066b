package segmentstore.bookkeeper;

import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.api.BKException;

/** One call that the loop waits for: its result or its failure, to be taken once. */
final class Call implements Completions.Ended {
  /** A failure that is none of BookKeeper's. */
  static final int FOREIGN = -9999;

  final Object result;
  final String message;

  private final int number;
  private final int code;

  Call(int number, Object result, Throwable error) {
    Throwable cause = cause(error);
    this.number = number;
    this.result = result;
    this.message = cause == null ? "" : message(cause);
    this.code = code(cause);
  }

  private static Throwable cause(Throwable error) {
    Throwable cause = error;
    while ((cause instanceof CompletionException || cause instanceof ExecutionException) && cause.getCause() != null) {
      cause = cause.getCause();
    }
    return cause;
  }

  private static String message(Throwable cause) {
    return cause instanceof BKException ? cause.getMessage() : String.valueOf(cause);
  }

  private static int code(Throwable cause) {
    if (cause == null) {
      return 0;
    }
    return cause instanceof BKException known ? known.getCode() : FOREIGN;
  }

  @Override
  public void report(long[] numbers, int at) {
    numbers[at] = number;
    numbers[at + 1] = 0;
    numbers[at + 2] = code;
  }
}
