package segmentstore.spark;

import java.util.Arrays;

/** Numbers that are filled in again for every batch, in memory that is kept. */
final class LongList {
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
