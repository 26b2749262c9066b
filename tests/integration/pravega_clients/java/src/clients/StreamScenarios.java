package clients;

import io.pravega.client.admin.StreamInfo;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import java.time.Duration;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/** Scopes and streams: their life, their settings, their lists. */
final class StreamScenarios {
    private StreamScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("scopes_are_made_listed_and_deleted", StreamScenarios::scopes),
                new Scenario("streams_are_listed_over_many_pages", StreamScenarios::pages),
                new Scenario("tags_and_settings_of_a_stream_are_kept_and_changed", StreamScenarios::settings),
                new Scenario("a_stream_tells_its_head_and_tail", StreamScenarios::info),
                new Scenario("a_truncated_stream_is_read_from_the_cut", StreamScenarios::truncate),
                new Scenario("a_sealed_stream_takes_no_event_and_is_read_to_its_end", StreamScenarios::seal),
                new Scenario("a_stream_made_again_after_deletion_is_empty", StreamScenarios::again));
    }

    private static void scopes(Session session) throws Exception {
        String extra = session.scope + "extra";
        Check.holds(!session.streams.checkScopeExists(extra), "not there yet");
        Check.holds(session.streams.createScope(extra), "created");
        Check.holds(!session.streams.createScope(extra), "created twice");
        Check.holds(session.streams.checkScopeExists(extra), "there");
        Set<String> listed = new HashSet<>();
        session.streams.listScopes().forEachRemaining(listed::add);
        Check.holds(listed.contains(extra) && listed.contains(session.scope), "both are listed");
        session.stream("one", 1);
        Check.fails(Exception.class, () -> session.streams.deleteScope(session.scope), "a scope with a stream");
        Check.holds(session.streams.deleteScope(extra), "deleted");
        Check.holds(!session.streams.checkScopeExists(extra), "gone");
        Check.holds(!session.streams.deleteScope(extra), "deleted twice");
    }

    private static void pages(Session session) {
        Set<String> wanted = new TreeSet<>();
        for (int number = 0; number < 60; number++) {
            String name = String.format("s%03d", number);
            StreamConfiguration tagged = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1))
                    .tag(number % 2 == 0 ? "even" : "odd").build();
            Check.holds(session.streams.createStream(session.scope, name, tagged), "created");
            wanted.add(name);
        }
        Set<String> listed = new TreeSet<>();
        int count = 0;
        Iterator<Stream> all = session.streams.listStreams(session.scope);
        while (all.hasNext()) {
            String name = all.next().getStreamName();
            // Streams that the server made for its own use begin with an underscore.
            if (!name.startsWith("_")) {
                listed.add(name);
                count++;
            }
        }
        Check.same(wanted, listed, "streams");
        Check.same(wanted.size(), count, "each stream is listed once");
        Set<String> even = new TreeSet<>();
        session.streams.listStreams(session.scope, "even")
                .forEachRemaining(stream -> even.add(stream.getStreamName()));
        wanted.removeIf(name -> Integer.parseInt(name.substring(1)) % 2 == 1);
        Check.same(wanted, even, "streams of a tag");
    }

    private static void settings(Session session) {
        StreamConfiguration first = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(2)).tag("red").tag("round").build();
        Check.holds(session.streams.createStream(session.scope, "s", first), "created");
        Check.holds(!session.streams.createStream(session.scope, "s", first), "created twice");
        Check.same(Set.of("red", "round"), Set.copyOf(session.streams.getStreamTags(session.scope, "s")), "tags");
        StreamConfiguration second = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.byEventRate(9, 2, 2))
                .retentionPolicy(RetentionPolicy.byTime(Duration.ofHours(3))).tag("blue").build();
        Check.holds(session.streams.updateStream(session.scope, "s", second), "updated");
        Check.same(Set.of("blue"), Set.copyOf(session.streams.getStreamTags(session.scope, "s")), "new tags");
        StreamConfiguration given = session.controller().getStreamConfiguration(session.scope, "s").join();
        Check.same(second.getScalingPolicy(), given.getScalingPolicy(), "scaling policy");
        Check.same(second.getRetentionPolicy(), given.getRetentionPolicy(), "retention policy");
        session.write("s", 4, 5);
        session.readAllInOrder("g", "s", 20);
    }

    private static void info(Session session) throws Exception {
        session.stream("s", 3);
        StreamInfo empty = session.streams.fetchStreamInfo(session.scope, "s").get(60, TimeUnit.SECONDS);
        Check.same(empty.getHeadStreamCut(), empty.getTailStreamCut(), "an empty stream");
        Check.holds(!empty.isSealed(), "open");
        session.write("s", 12, 2);
        StreamInfo full = session.streams.fetchStreamInfo(session.scope, "s").get(60, TimeUnit.SECONDS);
        Check.same(empty.getHeadStreamCut(), full.getHeadStreamCut(), "the head stays");
        long bytes = full.getTailStreamCut().asImpl().getPositions().values().stream().mapToLong(each -> each).sum();
        long wanted = 0;
        for (int key = 0; key < 12; key++) {
            wanted += 2L * (8 + KeyOrder.event("k" + key, 0).length());
        }
        Check.same(wanted, bytes, "bytes at the tail");
    }

    private static void truncate(Session session) throws Exception {
        session.stream("s", 2);
        session.write("s", 6, 0, 10);
        StreamCut cut = session.tail("s");
        session.write("s", 6, 10, 15);
        Check.holds(session.streams.truncateStream(session.scope, "s", cut), "truncated");
        Check.same(cut.asImpl().getPositions(), session.head("s").asImpl().getPositions(), "head");
        List<String> left = session.readAll("g", "s", 30);
        Check.holds(left.stream().allMatch(event -> Integer.parseInt(event.split(":")[1]) >= 10), "only later events");
        session.scale("s", 3);
        session.write("s", 6, 15, 20);
        StreamCut later = session.tail("s");
        Check.holds(session.streams.truncateStream(session.scope, "s", later), "truncated over a scale");
        session.write("s", 6, 20, 22);
        List<String> last = session.readAll("g2", "s", 12);
        Check.holds(last.stream().allMatch(event -> Integer.parseInt(event.split(":")[1]) >= 20), "only the last");
    }

    private static void seal(Session session) {
        session.stream("s", 2);
        session.write("s", 5, 4);
        try (EventStreamWriter<String> writer = session.writer("s")) {
            Check.fails(Exception.class, () -> session.streams.deleteStream(session.scope, "s"), "delete while open");
            Check.holds(session.streams.sealStream(session.scope, "s"), "sealed");
            Check.fails(Exception.class, () -> {
                writer.writeEvent("k0", "late").get(20, TimeUnit.SECONDS);
                writer.flush();
            }, "a write after the seal");
        } catch (IllegalStateException closing) {
            // A writer that met a sealed stream may complain once more when it is closed.
        }
        session.readAllInOrder("g", "s", 20);
        Check.holds(session.streams.deleteStream(session.scope, "s"), "deleted");
        Check.holds(!session.streams.checkStreamExists(session.scope, "s"), "gone");
    }

    private static void again(Session session) {
        for (int life = 0; life < 3; life++) {
            session.stream("s", 2);
            session.write("s", 4, 3 + life);
            session.readAllInOrder("g" + life, "s", 4 * (3 + life));
            Check.holds(session.streams.sealStream(session.scope, "s"), "sealed");
            Check.holds(session.streams.deleteStream(session.scope, "s"), "deleted");
        }
        session.stream("s", 1);
        session.group("last", "s");
        try (EventStreamReader<String> reader = session.reader("r", "last")) {
            session.expectNothing(reader);
        }
    }
}
