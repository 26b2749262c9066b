package segmentstore.bookkeeper;

import io.netty.buffer.ByteBuf;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;

/** Entries that were read, taken over as one stretch of bytes, a buffer at a time. */
public final class EntryBatch implements AutoCloseable {
  private final LedgerEntries entries;
  private final List<ByteBuf> left = new ArrayList<>();
  private final long[] lengths;
  private int next;

  EntryBatch(LedgerEntries entries) {
    this.entries = entries;
    // Of a LedgerEntry, getLength() is the length of the ledger up to it.
    for (LedgerEntry each : entries) {
      left.add(each.getEntryBuffer());
    }
    lengths = left.stream().mapToLong(ByteBuf::readableBytes).toArray();
  }

  /** Of each entry, in order. */
  public long[] lengths() {
    return lengths;
  }

  /** Put the next bytes into the buffer, from its start; how many. 0: there are no more. */
  public int fill(ByteBuffer buffer) {
    ByteBuffer room = buffer.duplicate().clear();
    while (next < left.size()) {
      ByteBuf entry = left.get(next);
      int taken = Math.min(entry.readableBytes(), room.remaining());
      entry.readBytes(room.limit(room.position() + taken));
      room.limit(room.capacity());
      if (entry.isReadable()) {
        break;
      }
      next++;
    }
    return room.position();
  }

  @Override
  public void close() {
    entries.close();
  }
}
