package segmentstore.spark;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The format {@code segmentstore-jvm}: batch reads with the options of {@code segmentstore}, without Python between
 * the bytes and Spark. What a read means is still decided by Python, see {@link Planner}.
 */
public final class SegmentStoreProvider implements TableProvider, DataSourceRegister {
  @Override
  public String shortName() {
    return "segmentstore-jvm";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new Planner(options.asCaseSensitiveMap()).schema();
  }

  /** A schema that the user gives chooses columns, as the option {@code columns} does. */
  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    StructType known = new Planner(properties).schema();
    List<String> names = List.of(known.fieldNames());
    for (StructField field : schema.fields()) {
      boolean isKnown = names.contains(field.name());
      if (!isKnown || !field.dataType().sameType(known.apply(field.name()).dataType())) {
        throw new IllegalArgumentException(
            "a schema has the source's own types expected=" + known.toDDL() + " given="
                + schema.toDDL());
      }
    }
    return new SegmentStoreTable(schema, properties);
  }
}
