package segmentstore.spark;

import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;

/** The headers of each row: an array of (name, value), null for a row without any. */
final class HeadersColumn extends EventColumn {
  private final LongList ends;
  private final ColumnVector headers;

  /** {@code ends} holds, for each row, how many headers there are up to its last one. */
  HeadersColumn(DataType type, LongList ends, Slices names, Slices values) {
    super(type);
    this.ends = ends;
    StructType header = (StructType) ((ArrayType) type).elementType();
    headers =
        new Pairs(
            header,
            new BytesColumn(header.apply(0).dataType(), names),
            new BytesColumn(header.apply(1).dataType(), values));
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
  private static final class Pairs extends EventColumn {
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
