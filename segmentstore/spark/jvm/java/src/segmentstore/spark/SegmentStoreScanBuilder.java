package segmentstore.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** Takes what Spark can leave to the source: columns, a limit for each range, and filters that leave out blocks. */
final class SegmentStoreScanBuilder
    implements SupportsPushDownRequiredColumns, SupportsPushDownFilters, SupportsPushDownLimit {
  private final Planner planner;
  private final List<Filter> pushed = new ArrayList<>();
  private final List<List<Object>> filters = new ArrayList<>();
  private StructType columns;
  private long rowsMax = Long.MAX_VALUE;

  SegmentStoreScanBuilder(Planner planner, StructType columns) {
    this.planner = planner;
    this.columns = columns;
  }

  @Override
  public void pruneColumns(StructType required) {
    columns = required;
  }

  /** Filters leave out blocks, not single rows, so Spark applies all of them again. */
  @Override
  public Filter[] pushFilters(Filter[] given) {
    for (Filter filter : given) {
      List<List<Object>> terms = FilterTerms.of(filter);
      if (!terms.isEmpty()) {
        pushed.add(filter);
        filters.addAll(terms);
      }
    }
    return given;
  }

  @Override
  public Filter[] pushedFilters() {
    return pushed.toArray(new Filter[0]);
  }

  @Override
  public boolean pushLimit(int limit) {
    rowsMax = limit;
    return true;
  }

  /** Each range stops at the limit; the whole is for Spark to cut. */
  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public Scan build() {
    return new SegmentStoreScan(planner, columns, filters, rowsMax);
  }
}
