package segmentstore.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads the events that begin in a range, a batch for each block.
 *
 * <p>Invariants:
 *
 * <ul>
 *   <li>{@code nextOffset} is where the first event begins that was not given yet, so what is left of a range can be
 *       resolved anew at any time: offsets are what was asked for, places are not.
 *   <li>A place that vanished or is damaged is no answer: the planner is asked where the rest lies by now. Only if it
 *       names the same place again is that an error.
 *   <li>An event belongs to the block in which it begins: number and time are that block's. One that goes on in the next
 *       block is put together in {@code joined}. Where the blocks end inside it the service is asked for the rest, if it
 *       may be; one whose end is nowhere is no event yet, and is left out.
 *   <li>Bytes that no column needs are not read: how many events begin in a block follows from the numbers of its first
 *       one and of the next block's, where the index knows both.
 *   <li>A block's sum is compared before any of its contents is given out. Where only positions are asked for, the index
 *       may stand in for it: the events' headers have to lead from the first event of the block to that of the next one
 *       in as many steps as the index counts. Where they do not, the block is read as any other.
 * </ul>
 */
final class RangeReader implements PartitionReader<ColumnarBatch> {
  private static final int HEADER_BYTES = 8;
  private static final long UNCOUNTED = -1;
  private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

  private final Planner planner;
  private final EventBatch batch;
  private final ObjectReader objects = new ObjectReader();
  private final BlockDecoder decoder = new BlockDecoder();
  private final long rowsMax;
  private final boolean checksAll;

  private SegmentRange range;
  private int nextBlock;
  /** Events before it are walked over, but not given. */
  private long start;
  private long end;
  private long nextOffset;
  /** The block in which the last event began that was met, and the facts of the next one that begins there. */
  private Block begun;
  private long nextNumber = EventColumns.UNKNOWN;
  private long timeMicros = EventColumns.UNKNOWN;
  /** The beginning of an event whose end is in a later block; its position is its length. */
  private ByteBuffer joined = NOTHING;

  private Block failed;
  private long rows;
  private long blocksRead;
  private long storedBytes;

  RangeReader(SegmentRange range, Planner planner, StructType columns, long rowsMax) {
    this.planner = planner;
    this.rowsMax = rowsMax;
    checksAll = planner.checksAll();
    batch = new EventBatch(range, columns);
    this.range = range;
    start = range.start();
    nextOffset = range.content() == SegmentRange.Content.BYTES ? start : range.walkFrom();
    end = range.end();
    if (range.blocks() != null) {
      begin(range);
    }
  }

  private void begin(SegmentRange resolved) {
    range = resolved;
    start = resolved.start();
    end = resolved.end();
    nextBlock = 0;
    begun = null;
    joined = NOTHING;
    long first = start;
    if (range.content() != SegmentRange.Content.BYTES && !range.blocks().isEmpty()) {
      first = range.blocks().get(0).firstEventOffset();
    }
    if (first != nextOffset) {
      nextNumber = EventColumns.UNKNOWN; // it is that of another event
    }
    nextOffset = first;
  }

  @Override
  public boolean next() throws IOException {
    if (range.blocks() == null && !resolve()) {
      return false;
    }
    while (nextOffset < end && rows < rowsMax && hasBlock()) {
      Block block = range.blocks().get(nextBlock);
      if (countsWithoutBytes(block)) {
        rows += batch.size();
        return true;
      }
      ByteBuffer content;
      try {
        if (walksByHeaders(block)) {
          rows += batch.size();
          return true;
        }
        content = contentOf(block);
      } catch (ObjectReader.VanishedException | BlockDecoder.DamagedException error) {
        refuseTwice(block, error);
        if (!resolve()) {
          return false;
        }
        continue;
      }
      nextBlock++;
      blocksRead++;
      if (range.content() == SegmentRange.Content.BYTES) {
        addBytes(block, content);
      } else {
        addEvents(block, content);
      }
      rows += batch.size();
      if (batch.size() > 0) {
        return true;
      }
    }
    return completesLast();
  }

  @Override
  public ColumnarBatch get() {
    return batch.rows();
  }

  /** Make the rows of a block of which the index says everything that is asked for; false if it must be read. */
  private boolean countsWithoutBytes(Block block) throws IOException {
    long count = batch.needsBytes() ? UNCOUNTED : countOf(block);
    if (count == UNCOUNTED) {
      return false;
    }
    enter(block);
    batch.begin(NOTHING);
    for (long each = 0; each < count; each++) {
      batch.add(0, 0, nextOffset, nextNumber++, timeMicros);
    }
    nextOffset = range.blocks().get(++nextBlock).firstEventOffset();
    return true;
  }

  /** Make the rows of a block by the headers in it, if they agree with the index; false if it must be read as a whole. */
  private boolean walksByHeaders(Block block) throws IOException {
    boolean isWanted = !batch.needsContents() && !checksAll && block.isPlainFile();
    long count = isWanted ? countOf(block) : UNCOUNTED;
    if (count == UNCOUNTED) {
      return false;
    }
    ByteBuffer content = objects.read(block.place(), block.position(), block.length());
    enter(block);
    batch.begin(NOTHING);
    long position = nextOffset - block.offset();
    long last = 0;
    for (long each = 0; each < count && position <= block.length() - HEADER_BYTES; each++) {
      // Type and length. Guessing that it is as the one before, the processor need not wait for it to look at the next.
      long header = content.getLong((int) position);
      if (header != last) {
        if (header >>> 31 != 0) {
          break; // a type that is not 0, or a negative length
        }
        last = header;
      }
      batch.add(0, 0, block.offset() + position, nextNumber + each, timeMicros);
      position += HEADER_BYTES + last;
    }
    Block following = range.blocks().get(nextBlock + 1);
    if (batch.size() != count || block.offset() + position != following.firstEventOffset()) {
      begun = null;
      return false;
    }
    nextNumber += count;
    nextOffset = following.firstEventOffset();
    nextBlock++;
    blocksRead++;
    storedBytes += count * HEADER_BYTES;
    return true;
  }

  /** How many events begin in the block that is next, if all of them are to be given and the index knows it. */
  private long countOf(Block block) {
    boolean isWhole = nextOffset == block.firstEventOffset() && nextOffset >= start;
    if (!isWhole || nextBlock + 1 == range.blocks().size()) {
      return UNCOUNTED;
    }
    Block following = range.blocks().get(nextBlock + 1);
    boolean isKnown =
        block.eventNumber() != EventColumns.UNKNOWN
            && following.eventNumber() != EventColumns.UNKNOWN
            && following.firstEventOffset() != EventColumns.UNKNOWN
            && following.offset() == block.endOffset();
    long count = following.eventNumber() - block.eventNumber();
    // Of a block at the end of the range, or of the limit, only some events are ours.
    boolean isOurs = following.firstEventOffset() <= end && 0 < count && count <= rowsMax - rows;
    return isKnown && isOurs ? count : UNCOUNTED;
  }

  /** Make a row of the last event, of which the blocks have only the beginning; false if its end is nowhere. */
  private boolean completesLast() throws IOException {
    if (nextOffset >= end || rows >= rowsMax || !hasJoined(HEADER_BYTES)) {
      return false;
    }
    isWhole(joined.duplicate().flip(), 0);
    if (!hasJoined(HEADER_BYTES + joined.getInt(4))) {
      return false;
    }
    ByteBuffer whole = joined.flip();
    batch.begin(whole);
    cut(range.blocks().get(nextBlock - 1), whole, nextOffset);
    rows += batch.size();
    return batch.size() > 0;
  }

  /** Whether so many bytes of an event are there, at last with those that the service has behind the blocks. */
  private boolean hasJoined(int length) {
    int waiting = joined.position();
    if (waiting == 0 || waiting >= length) {
      return waiting > 0;
    }
    byte[] rest = tail(nextOffset + waiting, nextOffset + length);
    append(ByteBuffer.wrap(rest));
    return rest.length == length - waiting;
  }

  private boolean hasBlock() throws IOException {
    List<Block> blocks = range.blocks();
    if (nextBlock < blocks.size()) {
      return true;
    }
    if (blocks.isEmpty() || blocks.get(nextBlock - 1).endOffset() < end) {
      throw new IOException(
          "the planned blocks end before the range segment=" + range.segment()
              + " offset=" + nextOffset + " end=" + end);
    }
    return false;
  }

  private ByteBuffer contentOf(Block block) throws IOException {
    if (block.place().equals(ObjectReader.SERVICE)) {
      byte[] tail = tail(block.offset(), block.endOffset());
      if (tail.length != block.length()) {
        throw new ObjectReader.VanishedException("the service has fewer bytes than planned");
      }
      return ByteBuffer.wrap(tail);
    }
    int length = block.storedLength() + BlockDecoder.CHECKSUM_BYTES;
    storedBytes += length;
    return decoder.decode(block, objects.read(block.place(), block.position(), length));
  }

  /** What the service has of these bytes; an error if what is still to be given is gone. */
  private byte[] tail(long from, long to) {
    byte[] tail = planner.tail(range, from, to, Math.max(nextOffset, start));
    storedBytes += tail.length;
    return tail;
  }

  private void refuseTwice(Block block, IOException why) throws IOException {
    if (failed != null && block.isAtTheSamePlaceAs(failed)) {
      // Without its cause: a driver that knows the jar by ADD JAR alone could not load a class of ours.
      throw new IOException(
          "what the current layout names cannot be read segment=" + range.segment()
              + " offset=" + nextOffset + ": " + why.getMessage());
    }
    failed = block;
  }

  /** Go on where the rest lies by now; false if nothing is left. */
  private boolean resolve() {
    Optional<SegmentRange> rest = planner.resolve(range, nextOffset, Math.max(nextOffset, start));
    rest.ifPresent(this::begin);
    return rest.isPresent();
  }

  private void addBytes(Block block, ByteBuffer content) throws IOException {
    batch.begin(content);
    int from = (int) (nextOffset - block.offset());
    int to = (int) (Math.min(end, block.endOffset()) - block.offset());
    batch.add(from, to - from, nextOffset, EventColumns.UNKNOWN, block.timeMicros());
    nextOffset = block.offset() + to;
  }

  private void addEvents(Block block, ByteBuffer content) throws IOException {
    int waiting = joined.position();
    if (waiting == 0) {
      batch.begin(content);
      cut(block, content, block.offset());
      return;
    }
    append(content);
    ByteBuffer whole = joined.duplicate().flip();
    batch.begin(whole);
    if (isWhole(whole, 0)) {
      cut(block, whole, block.offset() - waiting);
    }
  }

  /** Add the events that are whole; keep the rest if it is the beginning of one of ours. */
  private void cut(Block block, ByteBuffer content, long contentOffset) throws IOException {
    int limit = content.limit();
    int position = (int) (nextOffset - contentOffset);
    while (nextOffset < end && position < limit && rows + batch.size() < rowsMax) {
      if (nextOffset >= block.offset() && begun != block) {
        enter(block);
      }
      if (!isWhole(content, position)) {
        break;
      }
      int length = content.getInt(position + 4);
      if (nextOffset >= start) {
        batch.add(position + HEADER_BYTES, length, nextOffset, nextNumber, timeMicros);
      }
      position += HEADER_BYTES + length;
      nextOffset = contentOffset + position;
      if (nextNumber != EventColumns.UNKNOWN) {
        nextNumber++;
      }
    }
    joined = NOTHING;
    if (nextOffset < end && position < limit) {
      ByteBuffer rest = ByteBuffer.allocate(Math.max(2 * (limit - position), 1 << 16));
      joined = rest.put(content.duplicate().position(position).limit(limit));
    }
  }

  /** The first event that begins in a block is met: from here on its facts count. */
  private void enter(Block block) throws IOException {
    long known = block.firstEventOffset();
    if (known != EventColumns.UNKNOWN && known != nextOffset) {
      throw new IOException(
          "an event is expected elsewhere segment=" + range.segment()
              + " expected=" + known + " found=" + nextOffset);
    }
    begun = block;
    // What is unknown of this block goes on from the one before: events follow each other without a gap.
    if (known != EventColumns.UNKNOWN && block.eventNumber() != EventColumns.UNKNOWN) {
      nextNumber = block.eventNumber();
    }
    if (block.timeMicros() != EventColumns.UNKNOWN) {
      timeMicros = block.timeMicros();
    }
  }

  private void append(ByteBuffer content) {
    if (joined.remaining() < content.limit()) {
      ByteBuffer larger = ByteBuffer.allocate(2 * joined.capacity() + content.limit());
      joined = larger.put(joined.flip());
    }
    joined.put(content.duplicate().position(0));
  }

  /** Whether the event that begins there ends in the content, too; refuses what cannot be an event. */
  private boolean isWhole(ByteBuffer content, int position) throws IOException {
    int room = content.limit() - position - HEADER_BYTES;
    if (room < 0) {
      return false;
    }
    int kind = content.getInt(position);
    int length = content.getInt(position + 4);
    if (kind != 0 || length < 0) {
      throw new IOException(
          "no event begins here segment=" + range.segment() + " offset=" + nextOffset
              + " type=" + kind + " length=" + length);
    }
    return length <= room;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return ScanMetrics.ofTask(blocksRead, storedBytes);
  }

  @Override
  public void close() throws IOException {
    objects.close();
    decoder.close();
  }

  /** Makes the reader of a range on an executor. */
  record Factory(Planner planner, StructType columns, long rowsMax) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new RangeReader((SegmentRange) partition, planner, columns, rowsMax);
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("ranges are read in batches");
    }
  }
}
