package segmentstore.spark;

import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * One record as an event holds it; the format is written down in tier2/format/records.py.
 *
 * <pre>
 * offset   varint          not used here: an event has an offset of its own
 * time     zigzag varint   Unix milliseconds
 * key      varint length, bytes
 * value    varint length, bytes
 * headers  varint count, then name and value of each as the key
 * </pre>
 */
final class RecordParser {
  private static final int VARINT_BITS_MAX = 63;
  private static final long MICROS_OF_A_MILLISECOND = 1000;
  /** Spark has no time beyond it: such a one is the last that it has, or the first. */
  private static final long MILLIS_MAX = Long.MAX_VALUE / MICROS_OF_A_MILLISECOND;

  private ByteBuffer content;
  private int position;
  private int end;
  private long eventOffset;

  private long timeMicros;
  private int keyPosition;
  private int keyLength;
  private int valuePosition;
  private int valueLength;
  private int headersPosition;
  private long headerCount;

  /** Read the record in [start, start + length) of the content; its parts are asked for afterwards. */
  void parse(ByteBuffer content, int start, int length, long eventOffset) throws IOException {
    this.content = content;
    this.eventOffset = eventOffset;
    position = start;
    end = start + length;
    varint();
    long zigzag = varint();
    long millis = (zigzag >>> 1) ^ -(zigzag & 1);
    timeMicros = Math.max(-MILLIS_MAX, Math.min(MILLIS_MAX, millis)) * MICROS_OF_A_MILLISECOND;
    keyLength = countedBytes();
    keyPosition = position - keyLength;
    valueLength = countedBytes();
    valuePosition = position - valueLength;
    headerCount = varint();
    headersPosition = position;
    if (headerCount < 0 || headerCount > end - position) {
      throw damaged("headers are cut off");
    }
    for (long header = 0; header < headerCount; header++) {
      countedBytes();
      countedBytes();
    }
    if (position != end) {
      throw damaged("bytes are left over");
    }
  }

  void addHeaders(RowBuffers.Slices names, RowBuffers.Slices values) throws IOException {
    position = headersPosition;
    for (long header = 0; header < headerCount; header++) {
      int nameLength = countedBytes();
      names.add(position - nameLength, nameLength);
      int length = countedBytes();
      values.add(position - length, length);
    }
  }

  long timeMicros() {
    return timeMicros;
  }

  int keyPosition() {
    return keyPosition;
  }

  int keyLength() {
    return keyLength;
  }

  int valuePosition() {
    return valuePosition;
  }

  int valueLength() {
    return valueLength;
  }

  /** Length of bytes that the position has been moved behind. */
  private int countedBytes() throws IOException {
    long length = varint();
    if (length < 0 || length > end - position) {
      throw damaged("bytes are cut off");
    }
    position += (int) length;
    return (int) length;
  }

  private long varint() throws IOException {
    long value = 0;
    for (int shift = 0; shift <= VARINT_BITS_MAX && position < end; shift += 7) {
      byte part = content.get(position++);
      value |= (long) (part & 0x7F) << shift;
      if (part >= 0) {
        return value;
      }
    }
    throw damaged("bad varint");
  }

  private IOException damaged(String why) {
    return new IOException("event holds no record: " + why + " offset=" + eventOffset);
  }
}
