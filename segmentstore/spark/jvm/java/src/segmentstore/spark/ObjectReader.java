package segmentstore.spark;

import java.io.Closeable;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

/** Where stored bytes are, as segmentstore/spark/jvm/block_locations.py names it. One for each reader. */
final class ObjectReader implements Closeable {
  /** The place of bytes that are not in Tier 2 yet: the position is their offset in the segment. */
  static final String SERVICE = "service:";

  /** The bytes of a small object are in the name of its place; none of one that is gone. */
  private static final String DATA = "data:";

  private static final Duration CONNECT_MAX = Duration.ofSeconds(10);
  private static final Duration ANSWER_MAX = Duration.ofSeconds(60);
  private static final int ATTEMPTS_MAX = 4;
  private static final long RETRY_MILLIS = 200;
  private static final int PARTIAL_CONTENT = 206;

  /** Made when the first URL is read; its threads are shared by all readers of the JVM. */
  private static final class Http {
    static final HttpClient CLIENT = HttpClient.newBuilder().connectTimeout(CONNECT_MAX).build();
  }

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
    return readUrl(place, position, length);
  }

  private static ByteBuffer readData(String place, int position, int length)
      throws VanishedException {
    byte[] content = Base64.getDecoder().decode(place.substring(DATA.length()));
    if (content.length < position + length) {
      throw new VanishedException("the object is gone");
    }
    return ByteBuffer.wrap(content, position, length).slice();
  }

  /** By a URL that carries the permission to read an object of a bucket. */
  private static ByteBuffer readUrl(String url, long position, int length) throws IOException {
    String range = "bytes=" + position + "-" + (position + length - 1);
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(url)).timeout(ANSWER_MAX).header("Range", range).build();
    for (int attempt = 1; ; attempt++) {
      try {
        HttpResponse<byte[]> answer =
            Http.CLIENT.send(request, HttpResponse.BodyHandlers.ofByteArray());
        if (answer.statusCode() == PARTIAL_CONTENT && answer.body().length == length) {
          return ByteBuffer.wrap(answer.body());
        }
        refuse(answer.statusCode(), withoutQuery(url), attempt);
      } catch (VanishedException error) {
        throw error;
      } catch (IOException error) {
        if (attempt == ATTEMPTS_MAX) {
          throw error;
        }
      } catch (InterruptedException error) {
        throw cancelled(error);
      }
      pause(attempt);
    }
  }

  private static void refuse(int status, String url, int attempt) throws IOException {
    switch (status) {
        // 403: the permission in the URL has expired; a reader that asks again gets another URL.
      case 403, 404, 416, PARTIAL_CONTENT ->
          throw new VanishedException("HTTP status " + status + " " + url);
      default -> {
        if (attempt == ATTEMPTS_MAX) {
          throw new IOException("HTTP status " + status + " " + url);
        }
      }
    }
  }

  private static void pause(int attempt) throws IOException {
    try {
      Thread.sleep(RETRY_MILLIS << attempt);
    } catch (InterruptedException error) {
      throw cancelled(error);
    }
  }

  private static IOException cancelled(InterruptedException error) {
    Thread.currentThread().interrupt();
    return new IOException("the task was cancelled", error);
  }

  /** The query carries a signature, which belongs into no message. */
  static String withoutQuery(String url) {
    int query = url.indexOf('?');
    return query < 0 ? url : url.substring(0, query);
  }

  @Override
  public void close() throws IOException {
    for (StoredFile file : files.values()) {
      file.close();
    }
    files.clear();
  }
}
