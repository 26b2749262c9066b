package segmentstore.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** Stretches of one buffer, filled in again for every batch, in memory that is kept. */
final class Slices {
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
