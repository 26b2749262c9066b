package segmentstore.spark;

import java.sql.Timestamp;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;

/**
 * Filters on segment_id, offset and timestamp as (column, comparison, numbers) for the planner; times are microseconds.
 * What cannot be said so gives no term: it leaves out nothing.
 */
final class FilterTerms {
  private static final Set<String> COLUMNS = Set.of("segment_id", "offset", "timestamp");

  private FilterTerms() {}

  static List<List<Object>> of(Filter filter) {
    if (filter instanceof And and) {
      List<List<Object>> both = new ArrayList<>(of(and.left()));
      both.addAll(of(and.right()));
      return both;
    }
    if (filter instanceof EqualTo equal) {
      return term(equal.attribute(), "=", equal.value());
    }
    if (filter instanceof EqualNullSafe equal) {
      return term(equal.attribute(), "=", equal.value());
    }
    if (filter instanceof GreaterThan greater) {
      return term(greater.attribute(), ">", greater.value());
    }
    if (filter instanceof GreaterThanOrEqual greater) {
      return term(greater.attribute(), ">=", greater.value());
    }
    if (filter instanceof LessThan less) {
      return term(less.attribute(), "<", less.value());
    }
    if (filter instanceof LessThanOrEqual less) {
      return term(less.attribute(), "<=", less.value());
    }
    if (filter instanceof In in) {
      return term(in.attribute(), "in", in.values());
    }
    return List.of();
  }

  private static List<List<Object>> term(String column, String comparison, Object... values) {
    if (!COLUMNS.contains(column)) {
      return List.of();
    }
    List<Object> numbers = new ArrayList<>();
    for (Object value : values) {
      Long number = number(value);
      if (number == null) {
        return List.of();
      }
      numbers.add(number);
    }
    return List.of(List.of(column, comparison, numbers));
  }

  private static Long number(Object value) {
    if (value instanceof Number number) {
      return number.longValue();
    }
    if (value instanceof Timestamp time) {
      return ChronoUnit.MICROS.between(Instant.EPOCH, time.toInstant());
    }
    if (value instanceof Instant time) {
      return ChronoUnit.MICROS.between(Instant.EPOCH, time);
    }
    return null;
  }
}
