package segmentstore.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What a scan read, shown with it in Spark's console. Spark makes the sums by their names, so they are public. */
public final class ScanMetrics {
  private static final String BLOCKS = "blocks";
  private static final String STORED_BYTES = "storedBytes";

  private ScanMetrics() {}

  /** What one task has read by now. */
  static CustomTaskMetric[] ofTask(long blocksRead, long storedBytes) {
    return new CustomTaskMetric[] {new Value(STORED_BYTES, storedBytes), new Value(BLOCKS, blocksRead)};
  }

  /** Of all tasks together. */
  public static final class Blocks extends CustomSumMetric {
    @Override
    public String name() {
      return BLOCKS;
    }

    @Override
    public String description() {
      return "blocks read";
    }
  }

  /** Of all tasks together. */
  public static final class StoredBytes extends CustomSumMetric {
    @Override
    public String name() {
      return STORED_BYTES;
    }

    @Override
    public String description() {
      return "stored bytes read";
    }
  }

  private record Value(String name, long value) implements CustomTaskMetric {}
}
