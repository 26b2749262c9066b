package segmentstore.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

/** Where stored bytes are, as segmentstore/spark/jvm/block_locations.py names it. One for each reader. */
final class Places implements Closeable {
  /** The place of bytes that are not in Tier 2 yet: the position is their offset in the segment. */
  static final String SERVICE = "service:";

  /** The bytes of a small object are in the name of its place; none of one that is gone. */
  private static final String DATA = "data:";

  /** There is nothing at a place, or not enough: the layout has moved on. */
  static final class VanishedException extends IOException {
    private static final long serialVersionUID = 1L;

    VanishedException(String what) {
      super(what);
    }
  }

  private final Map<String, StoredFile> files = new HashMap<>();

  static boolean isFile(String place) {
    return place.startsWith("/");
  }

  /** So many bytes from position 0 on; valid until the next call. */
  ByteBuffer read(String place, long position, int length) throws IOException {
    if (isFile(place)) {
      StoredFile file = files.get(place);
      if (file == null) {
        file = StoredFile.open(place);
        files.put(place, file);
      }
      return file.read(position, length);
    }
    if (place.startsWith(DATA)) {
      return readData(place, (int) position, length);
    }
    return StoredUrl.read(place, position, length);
  }

  private static ByteBuffer readData(String place, int position, int length)
      throws VanishedException {
    byte[] content = Base64.getDecoder().decode(place.substring(DATA.length()));
    if (content.length < position + length) {
      throw new VanishedException("the object is gone");
    }
    return ByteBuffer.wrap(content, position, length).slice();
  }

  @Override
  public void close() throws IOException {
    for (StoredFile file : files.values()) {
      file.close();
    }
    files.clear();
  }
}
