package segmentstore.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Blocks that were read, shown with the scan in Spark's console. */
public final class BlocksMetric extends CustomSumMetric {
  static final String NAME = "blocks";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "blocks read";
  }

  record Value(long value) implements CustomTaskMetric {
    @Override
    public String name() {
      return NAME;
    }
  }
}
