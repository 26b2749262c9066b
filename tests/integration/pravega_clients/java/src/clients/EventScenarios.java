package clients;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Events of all sizes, written in bursts and one by one, read by readers, by pointer and in batches. */
final class EventScenarios {
    private EventScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("events_of_nine_megabytes_are_whole", EventScenarios::large),
                new Scenario("events_of_one_byte_to_eight_megabytes_are_whole", EventScenarios::sizes),
                new Scenario("a_burst_over_several_segments_keeps_each_keys_order", EventScenarios::burst),
                new Scenario("an_acknowledged_event_is_read_one_by_one", EventScenarios::oneByOne),
                new Scenario("writers_share_a_connection", EventScenarios::pooled),
                new Scenario("an_event_list_is_written_as_one", EventScenarios::together),
                new Scenario("an_event_is_fetched_by_its_pointer", EventScenarios::pointers),
                new Scenario("the_batch_client_reads_each_segment_between_two_cuts", EventScenarios::batch));
    }

    private static byte[] bytes(int count) {
        byte[] made = new byte[count];
        new Random(count).nextBytes(made);
        return made;
    }

    private static void roundTrip(Session session, EventWriterConfig config, int... sizes) throws Exception {
        session.stream("s", 2);
        ByteArraySerializer serializer = new ByteArraySerializer();
        try (EventStreamWriter<byte[]> writer = session.events.createEventWriter("s", serializer, config)) {
            for (int size : sizes) {
                writer.writeEvent("one key", bytes(size)).get(120, TimeUnit.SECONDS);
            }
        }
        session.group("g", "s");
        try (EventStreamReader<byte[]> reader =
                session.events.createReader("r", "g", serializer, ReaderConfig.builder().build())) {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
            for (int size : sizes) {
                byte[] event = null;
                while (event == null) {
                    Check.holds(System.nanoTime() < deadline, "waited too long for an event of " + size);
                    event = reader.readNextEvent(1000).getEvent();
                }
                Check.same(size, event.length, "bytes of an event");
                Check.holds(Arrays.equals(bytes(size), event), "content of an event of " + size);
            }
        }
    }

    private static void sizes(Session session) throws Exception {
        roundTrip(session, EventWriterConfig.builder().build(),
                1, 100, 4096, 100_000, 262_144, 524_288, 1_048_576, 7, 8 * 1024 * 1024 - 8, 3);
    }

    private static void large(Session session) throws Exception {
        roundTrip(session, EventWriterConfig.builder().enableLargeEvents(true).build(), 10, 9_000_000, 11, 17_000_000, 12);
    }

    private static void burst(Session session) {
        session.stream("s", 3);
        session.write("s", 30, 200);
        session.readAllInOrder("g", "s", 6000);
    }

    private static void oneByOne(Session session) throws Exception {
        session.stream("s", 1);
        session.group("g", "s");
        try (EventStreamWriter<String> writer = session.writer("s");
                EventStreamReader<String> reader = session.reader("r", "g")) {
            for (int number = 0; number < 50; number++) {
                writer.writeEvent("k", KeyOrder.event("k", number)).get(60, TimeUnit.SECONDS);
                Check.same(List.of(KeyOrder.event("k", number)), session.take(reader, 1), "the event just written");
            }
        }
    }

    private static void pooled(Session session) throws Exception {
        session.stream("s", 2);
        EventWriterConfig pooling = EventWriterConfig.builder().enableConnectionPooling(true).build();
        List<EventStreamWriter<String>> writers = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            writers.add(session.events.createEventWriter("s", Session.TEXT, pooling));
        }
        for (int number = 0; number < 400; number++) {
            for (int each = 0; each < writers.size(); each++) {
                String key = "w" + each + "k" + number % 3;
                writers.get(each).writeEvent(key, KeyOrder.event(key, number / 3));
            }
        }
        for (EventStreamWriter<String> writer : writers) {
            writer.flush();
            writer.close();
        }
        session.readAllInOrder("g", "s", 1600);
    }

    private static void together(Session session) throws Exception {
        session.stream("s", 2);
        try (EventStreamWriter<String> writer = session.writer("s")) {
            for (int round = 0; round < 5; round++) {
                List<String> events = new ArrayList<>();
                for (int number = 0; number < 20; number++) {
                    events.add(KeyOrder.event("k", round * 20 + number));
                }
                writer.writeEvents("k", events).get(60, TimeUnit.SECONDS);
            }
        }
        session.readAllInOrder("g", "s", 100);
    }

    private static void pointers(Session session) throws Exception {
        session.stream("s", 2);
        session.write("s", 5, 10);
        session.group("g", "s");
        List<EventPointer> pointers = new ArrayList<>();
        List<String> events = new ArrayList<>();
        try (EventStreamReader<String> reader = session.reader("r", "g")) {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
            while (events.size() < 50) {
                Check.holds(System.nanoTime() < deadline, "read only " + events.size());
                EventRead<String> read = reader.readNextEvent(500);
                if (read.getEvent() != null) {
                    events.add(read.getEvent());
                    pointers.add(read.getEventPointer());
                }
            }
            for (int index = 0; index < 50; index += 7) {
                Check.same(events.get(index), reader.fetchEvent(pointers.get(index)), "an event by its pointer");
            }
        }
        CompletableFuture<String> fetched = session.streams.fetchEvent(pointers.get(3), Session.TEXT);
        Check.same(events.get(3), fetched.get(60, TimeUnit.SECONDS), "an event without a reader");
    }

    private static void batch(Session session) throws Exception {
        session.stream("s", 2);
        session.write("s", 8, 0, 10);
        StreamCut from = session.tail("s");
        session.write("s", 8, 10, 20);
        session.scale("s", 3);
        session.write("s", 8, 20, 30);
        StreamCut to = session.tail("s");
        session.write("s", 8, 30, 40);
        try (BatchClientFactory batches = BatchClientFactory.withScope(session.scope, session.config)) {
            Check.same(320, count(batches, session, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED), "all events");
            Check.same(160, count(batches, session, from, to), "events between two cuts");
            Check.same(80, count(batches, session, StreamCut.UNBOUNDED, from), "events before a cut");
        }
    }

    private static int count(BatchClientFactory batches, Session session, StreamCut from, StreamCut to) {
        int count = 0;
        Iterator<SegmentRange> ranges =
                batches.getSegments(Stream.of(session.scope, "s"), from, to).getIterator();
        while (ranges.hasNext()) {
            try (SegmentIterator<String> events = batches.readSegment(ranges.next(), Session.TEXT)) {
                while (events.hasNext()) {
                    Check.holds(events.next().startsWith("k"), "an event");
                    count++;
                }
            }
        }
        return count;
    }
}
