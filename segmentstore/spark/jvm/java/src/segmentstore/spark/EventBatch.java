package segmentstore.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Set;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The rows of one block: where each event lies in a buffer, and its numbers. Only what the asked columns need is
 * noted; nothing is copied before Spark takes a value. The columns are made once for a range and filled again for
 * every block, so a batch is valid until the next one is begun.
 */
final class EventBatch {
  private final boolean parsesRecords;
  private final boolean needsValues;
  private final boolean needsNumbers;
  private final boolean needsTimes;
  private final boolean needsHeaders;
  private final boolean needsContents;
  private final boolean needsBytes;
  private final RowBuffers.Longs offsets = new RowBuffers.Longs();
  private final RowBuffers.Longs numbers = new RowBuffers.Longs();
  private final RowBuffers.Longs times = new RowBuffers.Longs();
  private final RowBuffers.Slices keys = new RowBuffers.Slices();
  private final RowBuffers.Slices values = new RowBuffers.Slices();
  private final RowBuffers.Longs headerEnds = new RowBuffers.Longs();
  private final RowBuffers.Slices headerNames = new RowBuffers.Slices();
  private final RowBuffers.Slices headerValues = new RowBuffers.Slices();
  private final RecordParser records = new RecordParser();
  private final ColumnarBatch batch;
  private ByteBuffer content;

  EventBatch(SegmentRange range, StructType columns) {
    ColumnVector[] vectors = new ColumnVector[columns.size()];
    for (int at = 0; at < vectors.length; at++) {
      StructField field = columns.apply(at);
      vectors[at] = column(field.name(), field.dataType(), range);
    }
    Set<String> asked = Set.of(columns.fieldNames());
    boolean holdsRecords = range.content() == SegmentRange.Content.RECORD;
    needsNumbers = asked.contains("event_number");
    needsTimes = asked.contains("timestamp");
    needsHeaders = holdsRecords && asked.contains("headers");
    needsValues = asked.contains("value") || asked.contains("bytes");
    parsesRecords =
        holdsRecords && (needsValues || needsTimes || needsHeaders || asked.contains("key"));
    needsContents =
        parsesRecords || needsValues || range.content() == SegmentRange.Content.BYTES;
    needsBytes = needsContents || asked.contains("offset");
    batch = new ColumnarBatch(vectors);
  }

  private ColumnVector column(String name, DataType type, SegmentRange range) {
    boolean holdsRecords = range.content() == SegmentRange.Content.RECORD;
    return switch (name) {
      case "key" -> holdsRecords ? new EventColumns.Bytes(type, keys) : EventColumns.Constant.ofNull(type);
      case "value", "bytes" -> new EventColumns.Bytes(type, values);
      case "scope" -> EventColumns.Constant.ofText(type, range.scope());
      case "stream" -> EventColumns.Constant.ofText(type, range.stream());
      case "segment" -> EventColumns.Constant.ofText(type, range.segment());
      case "segment_id" ->
          range.segmentId() == null
              ? EventColumns.Constant.ofNull(type)
              : EventColumns.Constant.ofLong(type, range.segmentId());
      case "offset" -> new EventColumns.Longs(type, offsets);
      case "event_number" -> new EventColumns.Longs(type, numbers);
      case "timestamp" -> new EventColumns.Longs(type, times);
      case "headers" ->
          holdsRecords
              ? new EventColumns.Headers(type, headerEnds, headerNames, headerValues)
              : EventColumns.Constant.ofNull(type);
      default -> throw new IllegalArgumentException("no column is called " + name);
    };
  }

  /** Whether a column is asked for that only the bytes of a block tell. */
  boolean needsBytes() {
    return needsBytes;
  }

  /** Whether a column is asked for that bytes inside of events tell. */
  boolean needsContents() {
    return needsContents;
  }

  /** A new batch over this content; the one before is gone. */
  void begin(ByteBuffer content) {
    this.content = content;
    offsets.clear();
    numbers.clear();
    times.clear();
    keys.reset(content);
    values.reset(content);
    headerEnds.clear();
    headerNames.reset(content);
    headerValues.reset(content);
  }

  /** A row for the bytes [position, position + length) of the content. */
  void add(int position, int length, long offset, long number, long timeMicros)
      throws IOException {
    offsets.add(offset);
    if (needsNumbers) {
      numbers.add(number);
    }
    if (!parsesRecords) {
      if (needsValues) {
        values.add(position, length);
      }
      if (needsTimes) {
        times.add(timeMicros);
      }
      return;
    }
    records.parse(content, position, length, offset);
    keys.add(records.keyPosition(), records.keyLength());
    values.add(records.valuePosition(), records.valueLength());
    times.add(records.timeMicros());
    if (needsHeaders) {
      records.addHeaders(headerNames, headerValues);
      headerEnds.add(headerNames.size());
    }
  }

  int size() {
    return offsets.size();
  }

  /** What was added since the beginning, for Spark. */
  ColumnarBatch rows() {
    batch.setNumRows(size());
    return batch;
  }
}
