package segmentstore.spark;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;

/**
 * Memory outside the heap for blocks. Files are read into it and checksums and decompression work on it without
 * another copy. It is handed on from task to task, because such memory is given back only by a garbage collection.
 */
final class Buffers {
  private static final int KEPT_MAX = 64;
  private static final ArrayBlockingQueue<ByteBuffer> KEPT = new ArrayBlockingQueue<>(KEPT_MAX);

  private Buffers() {}

  /** The given buffer or a larger one, empty, with room for {@code size} bytes. Null is a buffer too small. */
  static ByteBuffer withRoom(ByteBuffer given, int size) {
    ByteBuffer buffer = given;
    if (buffer == null) {
      buffer = KEPT.poll();
    }
    if (buffer == null || buffer.capacity() < size) {
      // Some room above, so that blocks that vary a little do not make a new one each time.
      buffer = ByteBuffer.allocateDirect(Math.max(size + size / 8, 1 << 16));
    }
    return buffer.clear().limit(size);
  }

  /** For another task; the caller must not touch it again. */
  static void giveBack(ByteBuffer buffer) {
    if (buffer != null) {
      boolean kept = KEPT.offer(buffer);
      assert kept || KEPT.remainingCapacity() == 0 : "a queue with room takes a buffer";
    }
  }
}
