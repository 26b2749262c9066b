package segmentstore.spark;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of an {@link EventBatch}, over what is noted of its rows; one for each kind of value. */
final class EventColumns {
  /** Stands for null: no offset, number or time of an event is this one. */
  static final long UNKNOWN = Long.MIN_VALUE;

  private EventColumns() {}

  /** Numbers of the rows of a batch: offsets, event numbers, times in microseconds. */
  static final class Longs extends Column {
    private final RowBuffers.Longs values;

    Longs(DataType type, RowBuffers.Longs values) {
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

  /**
   * Slices of a block: values, keys, and names and values of headers. The bytes are copied once, when Spark asks for
   * them, so rows that are filtered out and columns that the query does not ask for cost nothing.
   */
  static final class Bytes extends Column {
    private final RowBuffers.Slices slices;

    Bytes(DataType type, RowBuffers.Slices slices) {
      super(type);
      this.slices = slices;
    }

    @Override
    public byte[] getBinary(int row) {
      return slices.copy(row);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      ByteBuffer bytes = ByteBuffer.wrap(slices.copy(row));
      // Through the decoder, so that bytes that are no UTF-8 become replacement characters as they do in Python.
      return UTF8String.fromString(StandardCharsets.UTF_8.decode(bytes).toString());
    }
  }

  /** The headers of each row: an array of (name, value), null for a row without any. */
  static final class Headers extends Column {
    private final RowBuffers.Longs ends;
    private final ColumnVector headers;

    /** {@code ends} holds, for each row, how many headers there are up to its last one. */
    Headers(DataType type, RowBuffers.Longs ends, RowBuffers.Slices names, RowBuffers.Slices values) {
      super(type);
      this.ends = ends;
      StructType header = (StructType) ((ArrayType) type).elementType();
      headers =
          new Pairs(
              header,
              new Bytes(header.apply(0).dataType(), names),
              new Bytes(header.apply(1).dataType(), values));
    }

    @Override
    public boolean hasNull() {
      return true;
    }

    @Override
    public boolean isNullAt(int row) {
      return start(row) == (int) ends.get(row);
    }

    @Override
    public ColumnarArray getArray(int row) {
      int start = start(row);
      return new ColumnarArray(headers, start, (int) ends.get(row) - start);
    }

    private int start(int row) {
      return row == 0 ? 0 : (int) ends.get(row - 1);
    }

    /** All headers of the batch, one behind the other. */
    private static final class Pairs extends Column {
      private final ColumnVector name;
      private final ColumnVector value;

      Pairs(DataType type, ColumnVector name, ColumnVector value) {
        super(type);
        this.name = name;
        this.value = value;
      }

      @Override
      public ColumnVector getChild(int ordinal) {
        return ordinal == 0 ? name : value;
      }
    }
  }

  /** One value for every row of a range: its scope, stream, segment id, or null. */
  static final class Constant extends Column {
    private final boolean isNull;
    private final long number;
    private final UTF8String text;

    private Constant(DataType type, boolean isNull, long number, UTF8String text) {
      super(type);
      this.isNull = isNull;
      this.number = number;
      this.text = text;
    }

    static Constant ofNull(DataType type) {
      return new Constant(type, true, 0, null);
    }

    static Constant ofLong(DataType type, long number) {
      return new Constant(type, false, number, null);
    }

    /** A null text makes a column of nulls. */
    static Constant ofText(DataType type, String text) {
      return new Constant(type, text == null, 0, UTF8String.fromString(text));
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

  /** A column without nulls and without values: what a kind of column has, it overrides. */
  private abstract static class Column extends ColumnVector {
    Column(DataType type) {
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
}
