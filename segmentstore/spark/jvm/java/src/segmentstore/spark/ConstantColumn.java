package segmentstore.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** One value for every row of a range: its scope, stream, segment id, or null. */
final class ConstantColumn extends EventColumn {
  private final boolean isNull;
  private final long number;
  private final UTF8String text;

  private ConstantColumn(DataType type, boolean isNull, long number, UTF8String text) {
    super(type);
    this.isNull = isNull;
    this.number = number;
    this.text = text;
  }

  static ConstantColumn ofNull(DataType type) {
    return new ConstantColumn(type, true, 0, null);
  }

  static ConstantColumn ofLong(DataType type, long number) {
    return new ConstantColumn(type, false, number, null);
  }

  /** A null text makes a column of nulls. */
  static ConstantColumn ofText(DataType type, String text) {
    return new ConstantColumn(type, text == null, 0, UTF8String.fromString(text));
  }

  @Override
  public boolean hasNull() {
    return isNull;
  }

  @Override
  public boolean isNullAt(int row) {
    return isNull;
  }

  @Override
  public long getLong(int row) {
    return number;
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return text;
  }
}
