package segmentstore.spark;

import java.io.Serializable;

/**
 * One stored block of a segment and where its bytes are.
 *
 * @param place the object: a path of a file, a URL, or {@link ObjectReader#SERVICE} for bytes that are not stored yet
 * @param position of the stored bytes in that place
 * @param storedLength without the checksum behind them
 * @param compression as the chunk format numbers it
 * @param offset in the segment, of the first byte
 * @param length uncompressed bytes
 * @param firstEventOffset where the first event that starts in the block starts, or {@link EventColumns#UNKNOWN}
 * @param eventNumber of that event, or {@link EventColumns#UNKNOWN}
 * @param timeMicros lower bound of the time of its events, or {@link EventColumns#UNKNOWN}
 */
record Block(
    String place,
    long position,
    int storedLength,
    int compression,
    long offset,
    int length,
    long firstEventOffset,
    long eventNumber,
    long timeMicros)
    implements Serializable {

  long endOffset() {
    return offset + length;
  }

  /** Whether its bytes lie in a file as they are in the segment. */
  boolean isPlainFile() {
    return compression == BlockDecoder.NONE && storedLength == length && ObjectReader.isFile(place);
  }

  boolean isAtTheSamePlaceAs(Block other) {
    return place.equals(other.place) && position == other.position;
  }
}
