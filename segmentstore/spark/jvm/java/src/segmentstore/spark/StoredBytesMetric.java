package segmentstore.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Bytes that were fetched, shown with the scan in Spark's console. */
public final class StoredBytesMetric extends CustomSumMetric {
  static final String NAME = "storedBytes";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "stored bytes read";
  }

  record Value(long value) implements CustomTaskMetric {
    @Override
    public String name() {
      return NAME;
    }
  }
}
