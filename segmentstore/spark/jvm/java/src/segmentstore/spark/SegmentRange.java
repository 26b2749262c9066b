package segmentstore.spark;

import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What one task reads: the events that begin in [start, end) of one segment. The blocks follow each other without a gap;
 * an event is known to begin in the first one at or before {@code start}, or there is none before it, and they go on
 * until the last event ends, if its end is anywhere. An event begins at {@code walkFrom}, at or before {@code start},
 * which is for the planner: it may know of none from elsewhere. Scope, stream and segment id are null for a segment that is no
 * stream's, and {@code ownId}, its id in its container, for any other. Blocks are null where their reader is to ask for
 * them.
 */
record SegmentRange(
    String scope,
    String stream,
    Long segmentId,
    Long ownId,
    String segment,
    int containerId,
    Content content,
    long start,
    long end,
    long walkFrom,
    List<Block> blocks)
    implements InputPartition {

  /** What the bytes of a segment are. */
  enum Content {
    /** Events, and the content of each is a value. */
    RAW,
    /** Events, and each holds one record with key, value, headers and time. */
    RECORD,
    /** Bytes without events: a row for each block. */
    BYTES
  }

  /** Of the segment, before compression. */
  long contentBytes() {
    return end - start;
  }
}
