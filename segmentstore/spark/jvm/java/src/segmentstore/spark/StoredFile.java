package segmentstore.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkEnv;

/**
 * A file with stored bytes: an object of its own, or a volume. It stays open, so that what compaction removes meanwhile
 * can still be read.
 *
 * <p>On a local file system it is mapped into memory, a stretch at a time: reading a page cache through a copy costs four
 * times the CPU of checking its checksum in place. The store never shortens a file of which it has given out places. On
 * other file systems a file can vanish under its mapping, which would take the whole JVM down, so there it is read.
 */
final class StoredFile implements Closeable {
  private static final String MAP_SETTING = "spark.segmentstore.mapFiles";
  private static final Set<String> LOCAL =
      Set.of("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay");
  private static final Map<Path, Boolean> IS_LOCAL = new ConcurrentHashMap<>();
  private static final int WINDOW_BYTES = 64 << 20;

  private final Path path;
  private final FileChannel file;
  private final boolean isMapped;
  private MappedByteBuffer window;
  private long windowStart;
  private ByteBuffer copied;

  private StoredFile(Path path, FileChannel file, boolean isMapped) {
    this.path = path;
    this.file = file;
    this.isMapped = isMapped;
  }

  static StoredFile open(String name) throws IOException {
    Path path = Path.of(name);
    try {
      FileChannel file = FileChannel.open(path, StandardOpenOption.READ);
      return new StoredFile(path, file, mayMap() && isLocal(path.getParent()));
    } catch (NoSuchFileException error) {
      throw new ObjectReader.VanishedException("no such file " + path);
    }
  }

  /** So many bytes from position 0 on; valid until the next call. */
  ByteBuffer read(long position, int length) throws IOException {
    return isMapped ? mapped(position, length) : copied(position, length);
  }

  private ByteBuffer mapped(long position, int length) throws IOException {
    boolean isInside =
        window != null
            && windowStart <= position
            && position + length <= windowStart + window.limit();
    if (!isInside) {
      long room = file.size() - position;
      if (room < length) {
        throw endsBefore(position + length);
      }
      // The one before is unmapped when it is collected: no slice of it is in use then.
      long size = Math.min(room, Math.max(length, WINDOW_BYTES));
      window = file.map(FileChannel.MapMode.READ_ONLY, position, size);
      windowStart = position;
    }
    return window.slice((int) (position - windowStart), length);
  }

  private ByteBuffer copied(long position, int length) throws IOException {
    copied = Buffers.withRoom(copied, length);
    while (copied.hasRemaining()) {
      if (file.read(copied, position + copied.position()) < 0) {
        throw endsBefore(position + length);
      }
    }
    return copied;
  }

  private ObjectReader.VanishedException endsBefore(long end) throws IOException {
    return new ObjectReader.VanishedException(
        "file ends too early size=" + file.size() + " wanted=" + end + " " + path);
  }

  private static boolean mayMap() {
    return SparkEnv.get() == null || SparkEnv.get().conf().getBoolean(MAP_SETTING, true);
  }

  private static boolean isLocal(Path directory) {
    return IS_LOCAL.computeIfAbsent(
        directory,
        each -> {
          try {
            return LOCAL.contains(Files.getFileStore(each).type());
          } catch (IOException error) {
            return false;
          }
        });
  }

  @Override
  public void close() throws IOException {
    file.close();
    Buffers.giveBack(copied);
    copied = null;
    window = null;
  }
}
