package segmentstore.spark;

import com.github.luben.zstd.Zstd;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.zip.CRC32;
import net.jpountz.lz4.LZ4Exception;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;

/**
 * From stored bytes to those of the segment. The checksum is compared before anything is decompressed and the length
 * after it, so what comes out is what was appended, or nothing.
 */
final class BlockDecoder {
  static final int CHECKSUM_BYTES = 4;
  static final int NONE = 0;

  private static final int LZ4 = 1;
  private static final int ZSTD = 2;
  private static final LZ4SafeDecompressor LZ4_DECOMPRESSOR =
      LZ4Factory.fastestInstance().safeDecompressor();

  /** A block fails its checksum or does not decompress. */
  static final class DamagedException extends IOException {
    private static final long serialVersionUID = 1L;

    DamagedException(String what, Block block) {
      super(
          what + " place=" + ObjectReader.withoutQuery(block.place()) + " position=" + block.position()
              + " offset=" + block.offset() + " length=" + block.length());
    }
  }

  private final CRC32 checksum = new CRC32();
  private ByteBuffer decompressed;

  /**
   * The content of a block, from position 0 to the limit; it may be {@code stored} itself, and is valid until the next
   * call. {@code stored} holds the stored bytes and their checksum.
   */
  ByteBuffer decode(Block block, ByteBuffer stored) throws DamagedException {
    int storedLength = block.storedLength();
    checksum.reset();
    checksum.update(stored.duplicate().position(0).limit(storedLength));
    if ((int) checksum.getValue() != stored.getInt(storedLength)) {
      throw new DamagedException("block fails its checksum", block);
    }
    if (block.compression() == NONE) {
      if (storedLength != block.length()) {
        throw new DamagedException("block has another length", block);
      }
      return stored.slice(0, storedLength);
    }
    decompressed = Buffers.withRoom(decompressed, block.length());
    long length = decompress(block, stored);
    if (length != block.length()) {
      throw new DamagedException("block does not decompress to its length", block);
    }
    return decompressed;
  }

  private long decompress(Block block, ByteBuffer stored) throws DamagedException {
    switch (block.compression()) {
      case LZ4:
        try {
          return LZ4_DECOMPRESSOR.decompress(
              stored, 0, block.storedLength(), decompressed, 0, block.length());
        } catch (LZ4Exception error) {
          return -1;
        }
      case ZSTD:
        // An error is a negative number.
        return decompressZstd(block, stored);
      default:
        throw new DamagedException("unknown compression " + block.compression(), block);
    }
  }

  private long decompressZstd(Block block, ByteBuffer stored) {
    if (stored.isDirect()) {
      return Zstd.decompressDirectByteBuffer(
          decompressed, 0, block.length(), stored, 0, block.storedLength());
    }
    byte[] content = new byte[block.length()];
    long length =
        Zstd.decompressByteArray(
            content, 0, content.length, stored.array(), stored.arrayOffset(), block.storedLength());
    decompressed.put(0, content);
    return length;
  }

  void close() {
    Buffers.giveBack(decompressed);
    decompressed = null;
  }
}
