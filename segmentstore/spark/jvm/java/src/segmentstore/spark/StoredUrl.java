package segmentstore.spark;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.time.Duration;

/** Ranges of an object in a bucket, by a URL that carries the permission to read it. */
final class StoredUrl {
  private static final Duration CONNECT_MAX = Duration.ofSeconds(10);
  private static final Duration ANSWER_MAX = Duration.ofSeconds(60);
  private static final int ATTEMPTS_MAX = 4;
  private static final long RETRY_MILLIS = 200;
  private static final int PARTIAL_CONTENT = 206;

  /** Made when the first URL is read; its threads are shared by all readers of the JVM. */
  private static final class Http {
    static final HttpClient CLIENT = HttpClient.newBuilder().connectTimeout(CONNECT_MAX).build();
  }

  private StoredUrl() {}

  /** So many bytes from position 0 on. */
  static ByteBuffer read(String url, long position, int length) throws IOException {
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
      } catch (Places.VanishedException error) {
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
          throw new Places.VanishedException("HTTP status " + status + " " + url);
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
}
