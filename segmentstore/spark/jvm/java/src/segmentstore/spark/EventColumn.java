package segmentstore.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column without nulls and without values: what a kind of column has, it overrides. */
abstract class EventColumn extends ColumnVector {
  EventColumn(DataType type) {
    super(type);
  }

  @Override
  public void close() {}

  @Override
  public boolean hasNull() {
    return false;
  }

  @Override
  public int numNulls() {
    return 0;
  }

  @Override
  public boolean isNullAt(int row) {
    return false;
  }

  @Override
  public boolean getBoolean(int row) {
    throw notOfThisType("boolean");
  }

  @Override
  public byte getByte(int row) {
    throw notOfThisType("byte");
  }

  @Override
  public short getShort(int row) {
    throw notOfThisType("short");
  }

  @Override
  public int getInt(int row) {
    throw notOfThisType("int");
  }

  @Override
  public long getLong(int row) {
    throw notOfThisType("long");
  }

  @Override
  public float getFloat(int row) {
    throw notOfThisType("float");
  }

  @Override
  public double getDouble(int row) {
    throw notOfThisType("double");
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw notOfThisType("array");
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw notOfThisType("map");
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw notOfThisType("decimal");
  }

  @Override
  public UTF8String getUTF8String(int row) {
    throw notOfThisType("string");
  }

  @Override
  public byte[] getBinary(int row) {
    throw notOfThisType("binary");
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw notOfThisType("struct");
  }

  private UnsupportedOperationException notOfThisType(String asked) {
    return new UnsupportedOperationException(
        "column holds " + dataType().simpleString() + ", not " + asked);
  }
}
