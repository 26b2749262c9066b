package segmentstore.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What the options name: a stream, the streams of a scope, or one segment. */
final class SegmentStoreTable implements SupportsRead {
  private final StructType schema;
  private final Map<String, String> properties;

  SegmentStoreTable(StructType schema, Map<String, String> properties) {
    this.schema = schema;
    this.properties = properties;
  }

  @Override
  public String name() {
    String what = properties.getOrDefault("stream", properties.getOrDefault("segment", "scope"));
    return "segmentstore-jvm " + what;
  }

  @Override
  public Column[] columns() {
    return Arrays.stream(schema.fields())
        .map(field -> Column.create(field.name(), field.dataType(), field.nullable()))
        .toArray(Column[]::new);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    // A table of the catalog brings its options along as properties, a read brings them both ways.
    Map<String, String> all = new HashMap<>(new CaseInsensitiveStringMap(properties));
    all.putAll(options);
    return new SegmentStoreScanBuilder(new Planner(all), schema);
  }
}
