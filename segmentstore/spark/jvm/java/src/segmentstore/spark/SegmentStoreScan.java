package segmentstore.spark;

import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructType;

/** One read with its columns, filters and limit settled. It is planned once, when Spark first asks. */
final class SegmentStoreScan implements Scan, Batch, SupportsReportStatistics {
  private final Planner planner;
  private final StructType columns;
  private final List<List<Object>> filters;
  private final long rowsMax;
  private List<SegmentRange> ranges;

  SegmentStoreScan(
      Planner planner, StructType columns, List<List<Object>> filters, long rowsMax) {
    this.planner = planner;
    this.columns = columns;
    this.filters = filters;
    this.rowsMax = rowsMax;
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    return "segmentstore-jvm columns=" + List.of(columns.fieldNames()) + " filters=" + filters;
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return new CustomMetric[] {new ScanMetrics.StoredBytes(), new ScanMetrics.Blocks()};
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return ranges().toArray(new InputPartition[0]);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new RangeReader.Factory(planner, columns, rowsMax);
  }

  /** Bytes before compression: what the rows of all columns take in memory, about. */
  @Override
  public Statistics estimateStatistics() {
    long bytes = ranges().stream().mapToLong(SegmentRange::contentBytes).sum();
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(bytes);
      }

      @Override
      public OptionalLong numRows() {
        return OptionalLong.empty();
      }
    };
  }

  private synchronized List<SegmentRange> ranges() {
    if (ranges == null) {
      ranges = planner.plan(filters);
    }
    return ranges;
  }
}
