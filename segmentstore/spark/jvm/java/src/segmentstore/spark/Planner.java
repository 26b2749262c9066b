package segmentstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.types.StructType;

/** Asks Python what a read means: its columns, its ranges, and where a range lies by now. */
final class Planner implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final String PYTHON_OPTION = "python";
  private static final String[] PYTHON_SETTINGS = {
    "spark.segmentstore.python", "spark.pyspark.driver.python", "spark.pyspark.python"
  };
  /** Numbers of a block in an answer, see segmentstore/spark/jvm/planner_server.py. */
  private static final int BLOCK_NUMBERS = 9;

  private final String python;
  private final Map<String, String> options;

  Planner(Map<String, String> given) {
    options = new HashMap<>();
    given.forEach((name, value) -> options.put(name.toLowerCase(Locale.ROOT), value));
    String named = options.remove(PYTHON_OPTION);
    python = named != null ? named : defaultPython();
  }

  /** The columns that these options give. */
  StructType schema() {
    JsonNode fields = ask("schema", Map.of()).fields();
    return StructType.fromDDL(fields.get("schema").asText());
  }

  /** Ranges that hold every row for which the filters hold. Each filter is (column, comparison, number). */
  List<SegmentRange> plan(List<List<Object>> filters) {
    return ranges(ask("plan", Map.of("filters", filters)).fields());
  }

  /**
   * Where what is left of a range lies by now: the events that begin at {@code start} or behind it, when one begins at
   * {@code walkFrom}; empty if nothing is left that may be left out.
   */
  Optional<SegmentRange> resolve(SegmentRange range, long walkFrom, long start) {
    Map<String, Object> rest = place(range, start, range.end());
    rest.put("walk_from", walkFrom);
    return ranges(ask("resolve", Map.of("range", rest)).fields()).stream().findFirst();
  }

  /** Bytes [start, end) of a segment that are not in Tier 2 yet; what lies before {@code wanted} may be gone. */
  byte[] tail(SegmentRange range, long start, long end, long wanted) {
    return ask("tail", Map.of("range", place(range, start, end), "wanted", wanted)).bytes();
  }

  /** As Python's SegmentRange has it. */
  private static Map<String, Object> place(SegmentRange range, long start, long end) {
    Map<String, Object> place = new HashMap<>();
    place.put("scope", range.scope());
    place.put("stream", range.stream());
    place.put("segment_id", range.segmentId());
    place.put("own_id", range.ownId());
    place.put("segment_name", range.segment());
    place.put("container_id", range.containerId());
    place.put("start", start);
    place.put("end", end);
    place.put("content", range.content().name().toLowerCase(Locale.ROOT));
    return place;
  }

  /** Whether every block's sum is to be compared, even if nothing of its contents is given out. */
  boolean checksAll() {
    return options.getOrDefault("verifychecksums", "").strip().equalsIgnoreCase("all");
  }

  private PlanningProcess.Answer ask(String verb, Map<String, ?> arguments) {
    Map<String, Object> question = new HashMap<>(arguments);
    question.put("verb", verb);
    question.put("options", options);
    return PlanningProcess.of(python).ask(question);
  }

  private static List<SegmentRange> ranges(JsonNode answer) {
    List<String> places = new ArrayList<>();
    answer.get("places").forEach(place -> places.add(place.asText()));
    List<SegmentRange> ranges = new ArrayList<>();
    for (JsonNode range : answer.get("ranges")) {
      ranges.add(
          new SegmentRange(
              range.get("scope").textValue(),
              range.get("stream").textValue(),
              longOrNull(range.get("segment_id")),
              longOrNull(range.get("own_id")),
              range.get("segment").textValue(),
              range.get("container_id").asInt(),
              SegmentRange.Content.valueOf(range.get("content").asText().toUpperCase(Locale.ROOT)),
              range.get("start").asLong(),
              range.get("end").asLong(),
              range.get("walk_from").asLong(),
              range.get("blocks").isNull() ? null : blocks(range.get("blocks"), places)));
    }
    return ranges;
  }

  private static List<Block> blocks(JsonNode numbers, List<String> places) {
    List<Block> blocks = new ArrayList<>(numbers.size() / BLOCK_NUMBERS);
    for (int at = 0; at < numbers.size(); at += BLOCK_NUMBERS) {
      blocks.add(
          new Block(
              places.get(numbers.get(at).asInt()),
              numbers.get(at + 1).asLong(),
              numbers.get(at + 2).asInt(),
              numbers.get(at + 3).asInt(),
              numbers.get(at + 4).asLong(),
              numbers.get(at + 5).asInt(),
              knownOrNot(numbers.get(at + 6)),
              knownOrNot(numbers.get(at + 7)),
              knownOrNot(numbers.get(at + 8))));
    }
    return blocks;
  }

  private static Long longOrNull(JsonNode number) {
    return number.isNull() ? null : number.asLong();
  }

  private static long knownOrNot(JsonNode number) {
    return number.isNull() ? EventColumns.UNKNOWN : number.asLong();
  }

  private static String defaultPython() {
    if (SparkEnv.get() != null) {
      for (String setting : PYTHON_SETTINGS) {
        String value = SparkEnv.get().conf().get(setting, "");
        if (!value.isEmpty()) {
          return value;
        }
      }
    }
    for (String variable : new String[] {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"}) {
      String value = System.getenv(variable);
      if (value != null && !value.isEmpty()) {
        return value;
      }
    }
    return "python3";
  }
}
