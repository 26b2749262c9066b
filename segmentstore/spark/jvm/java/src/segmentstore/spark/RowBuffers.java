package segmentstore.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** What is noted of the rows of a batch: one value a row, filled in again for every batch, in memory that is kept. */
final class RowBuffers {
  private RowBuffers() {}

  /** Numbers. */
  static final class Longs {
    private long[] values = new long[1024];
    private int size;

    void clear() {
      size = 0;
    }

    void add(long value) {
      if (size == values.length) {
        values = Arrays.copyOf(values, 2 * size);
      }
      values[size++] = value;
    }

    long get(int index) {
      return values[index];
    }

    int size() {
      return size;
    }
  }

  /** Stretches of one buffer. */
  static final class Slices {
    private ByteBuffer content;
    private int[] positions = new int[1024];
    private int[] lengths = new int[1024];
    private int size;

    /** Begin anew, over this content. */
    void reset(ByteBuffer content) {
      this.content = content;
      size = 0;
    }

    void add(int position, int length) {
      if (size == positions.length) {
        positions = Arrays.copyOf(positions, 2 * size);
        lengths = Arrays.copyOf(lengths, 2 * size);
      }
      positions[size] = position;
      lengths[size++] = length;
    }

    byte[] copy(int index) {
      byte[] bytes = new byte[lengths[index]];
      content.get(positions[index], bytes);
      return bytes;
    }

    int position(int index) {
      return positions[index];
    }

    int length(int index) {
      return lengths[index];
    }

    int size() {
      return size;
    }
  }
}
