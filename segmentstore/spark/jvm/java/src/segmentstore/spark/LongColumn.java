package segmentstore.spark;

import org.apache.spark.sql.types.DataType;

/** Numbers of the rows of a batch: offsets, event numbers, times in microseconds. */
final class LongColumn extends EventColumn {
  /** Stands for null: no offset, number or time of an event is this one. */
  static final long UNKNOWN = Long.MIN_VALUE;

  private final LongList values;

  LongColumn(DataType type, LongList values) {
    super(type);
    this.values = values;
  }

  @Override
  public boolean hasNull() {
    return true;
  }

  @Override
  public boolean isNullAt(int row) {
    return values.get(row) == UNKNOWN;
  }

  @Override
  public long getLong(int row) {
    return values.get(row);
  }
}
