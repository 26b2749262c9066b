package segmentstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A Python process that answers questions about the store: it knows the formats of what is published, this side only
 * those of blocks and events. There is one for each interpreter and JVM; it ends when the JVM does, or after it had
 * nothing to do for a while, and is started again when it is needed.
 *
 * <pre>
 * question   u32 length, JSON
 * answer     u32 length, JSON; u32 length, bytes
 * </pre>
 */
final class PlanningProcess {
  private static final String MODULE = "segmentstore.spark.jvm.planner_server";
  private static final int ANSWER_BYTES_MAX = 1 << 30;
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Map<String, PlanningProcess> SHARED = new ConcurrentHashMap<>();

  private final String python;
  private Process process;
  private DataOutputStream questions;
  private DataInputStream answers;

  private PlanningProcess(String python) {
    this.python = python;
  }

  static PlanningProcess of(String python) {
    return SHARED.computeIfAbsent(python, PlanningProcess::new);
  }

  /** What came back: never an error, that is thrown. */
  record Answer(JsonNode fields, byte[] bytes) {}

  /** One question at a time; the process answers in milliseconds, bytes of a tail in pieces. */
  synchronized Answer ask(Map<String, ?> question) {
    byte[] encoded;
    try {
      encoded = JSON.writeValueAsBytes(question);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    Answer answer;
    try {
      answer = exchange(encoded);
    } catch (IOException first) {
      // It may have ended just now because it was idle: a new one knows everything that the old one did.
      stop();
      try {
        answer = exchange(encoded);
      } catch (IOException second) {
        stop();
        throw new UncheckedIOException(
            "the planner does not answer: is the package segmentstore installed for " + python
                + "? Name another interpreter by the option 'python' or by spark.segmentstore.python",
            second);
      }
    }
    JsonNode error = answer.fields().get("error");
    if (error != null) {
      throw new IllegalArgumentException(error.asText());
    }
    return answer;
  }

  private Answer exchange(byte[] question) throws IOException {
    if (process == null || !process.isAlive()) {
      start();
    }
    questions.writeInt(question.length);
    questions.write(question);
    questions.flush();
    JsonNode fields = JSON.readTree(readCounted());
    return new Answer(fields, readCounted());
  }

  private byte[] readCounted() throws IOException {
    int length = answers.readInt();
    if (length < 0 || length > ANSWER_BYTES_MAX) {
      throw new IOException("the planner's answer has a bad length: " + length);
    }
    byte[] content = new byte[length];
    answers.readFully(content);
    return content;
  }

  private void start() throws IOException {
    process =
        new ProcessBuilder(python, "-m", MODULE)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    questions = new DataOutputStream(new BufferedOutputStream(process.getOutputStream()));
    answers = new DataInputStream(new BufferedInputStream(process.getInputStream(), 1 << 16));
  }

  private void stop() {
    if (process != null) {
      process.destroy();
      process = null;
    }
  }
}
