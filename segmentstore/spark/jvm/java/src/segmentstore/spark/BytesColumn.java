package segmentstore.spark;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Slices of a block: values, keys, and names and values of headers. The bytes are copied once, when Spark asks for
 * them, so rows that are filtered out and columns that the query does not ask for cost nothing.
 */
final class BytesColumn extends EventColumn {
  private final Slices slices;

  BytesColumn(DataType type, Slices slices) {
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
