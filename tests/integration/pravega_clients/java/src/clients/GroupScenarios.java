package clients;

import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.ConfigMismatchException;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupNotFoundException;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Reader groups: where they begin, how they share, how they remember. */
final class GroupScenarios {
    private GroupScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("a_group_begins_at_head_tail_or_a_cut", GroupScenarios::beginnings),
                new Scenario("several_readers_share_a_group", GroupScenarios::sharing),
                new Scenario("a_reader_that_went_away_is_continued_by_another", GroupScenarios::takeover),
                new Scenario("a_group_is_reset_to_a_checkpoint", GroupScenarios::checkpoint),
                new Scenario("a_group_makes_cuts_for_retention", GroupScenarios::retention),
                new Scenario("a_group_reads_several_streams_up_to_a_cut", GroupScenarios::bounded),
                new Scenario("a_deleted_group_is_gone", GroupScenarios::deletion));
    }

    private static void beginnings(Session session) throws Exception {
        Stream stream = session.stream("s", 3);
        session.write("s", 9, 0, 10);
        StreamCut cut = session.tail("s");
        session.write("s", 9, 10, 20);
        StreamCut tail = session.tail("s");
        session.group("head", session.brisk().stream(stream).build());
        session.group("cut", session.brisk().stream(stream, cut).build());
        session.group("tail", session.brisk().stream(stream, tail).build());
        session.write("s", 9, 20, 30);
        expectFrom(session, "head", 0, 270);
        expectFrom(session, "cut", 10, 180);
        expectFrom(session, "tail", 20, 90);
    }

    private static void expectFrom(Session session, String group, int first, int count) {
        try (EventStreamReader<String> reader = session.reader("r", group)) {
            List<String> taken = session.take(reader, count);
            session.expectNothing(reader);
            Check.holds(
                    taken.stream().allMatch(event -> Integer.parseInt(event.split(":")[1]) >= first),
                    "group " + group + " begins at " + first);
            Check.same(count, new TreeSet<>(taken).size(), "each event once");
        }
    }

    private static void sharing(Session session) throws Exception {
        session.stream("s", 6);
        session.group("g", "s");
        KeyOrder order = new KeyOrder();
        AtomicInteger busy = new AtomicInteger();
        // No reader asks for segments before all of them are in the group: each has a share then.
        CountDownLatch online = new CountDownLatch(3);
        ExecutorService threads = Executors.newFixedThreadPool(3);
        List<Future<?>> readers = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            String name = "r" + number;
            readers.add(threads.submit(() -> {
                int own = 0;
                long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
                try (EventStreamReader<String> reader = session.reader(name, "g")) {
                    online.countDown();
                    online.await(180, TimeUnit.SECONDS);
                    while (order.count() < 1800 && System.nanoTime() < deadline) {
                        String event = reader.readNextEvent(200).getEvent();
                        if (event != null) {
                            order.add(event);
                            own++;
                        }
                    }
                }
                if (own > 0) {
                    busy.incrementAndGet();
                }
                return null;
            }));
        }
        for (int round = 0; round < 10; round++) {
            session.write("s", 60, round * 3, round * 3 + 3);
            Thread.sleep(300);
        }
        for (Future<?> reader : readers) {
            reader.get();
        }
        threads.shutdown();
        order.check(1800);
        Check.holds(busy.get() >= 2, "at least two readers had work, not " + busy.get());
    }

    private static void takeover(Session session) {
        session.stream("s", 2);
        session.write("s", 6, 20);
        ReaderGroup group = session.group("g", "s");
        KeyOrder order = new KeyOrder();
        Position last;
        try (EventStreamReader<String> first = session.reader("first", "g")) {
            session.take(first, 40).forEach(order::add);
        }
        EventStreamReader<String> second = session.reader("second", "g");
        session.take(second, 29).forEach(order::add);
        EventRead<String> read = second.readNextEvent(180_000);
        order.add(read.getEvent());
        last = read.getPosition();
        // It is declared gone without having been closed, as after a crash.
        group.readerOffline("second", last);
        Check.same(Set.of(), group.getOnlineReaders(), "readers that are online");
        try (EventStreamReader<String> third = session.reader("third", "g")) {
            session.take(third, 50).forEach(order::add);
            session.expectNothing(third);
        }
        order.check(120);
    }

    private static void checkpoint(Session session) throws Exception {
        Stream stream = session.stream("s", 2);
        session.write("s", 4, 10);
        ReaderGroupConfig config = ReaderGroupConfig.builder().disableAutomaticCheckpoints().stream(stream).build();
        ReaderGroup group = session.group("g", config);
        Checkpoint checkpoint;
        int later = 0;
        try (EventStreamReader<String> reader = session.reader("r", "g")) {
            int taken = session.take(reader, 15).size();
            CompletableFuture<Checkpoint> pending = group.initiateCheckpoint("c", session.timer);
            boolean seen = false;
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
            while (!pending.isDone() || taken < 40) {
                Check.holds(System.nanoTime() < deadline, "checkpoint seen=" + seen + " taken=" + taken);
                EventRead<String> read = reader.readNextEvent(300);
                seen = seen || read.isCheckpoint();
                taken += read.getEvent() == null ? 0 : 1;
                later += read.getEvent() != null && seen ? 1 : 0;
            }
            Check.holds(seen, "the reader was told of the checkpoint");
            checkpoint = pending.get();
            group.resetReaderGroup(ReaderGroupConfig.builder().disableAutomaticCheckpoints()
                    .startFromCheckpoint(checkpoint).build());
            Check.fails(ReinitializationRequiredException.class, () -> {
                for (int attempt = 0; attempt < 120; attempt++) {
                    reader.readNextEvent(500);
                }
            }, "a reader of before the reset");
        }
        session.write("s", 4, 10, 12);
        try (EventStreamReader<String> reader = session.reader("r2", "g")) {
            session.take(reader, later + 8);
            session.expectNothing(reader);
        }
        Checkpoint same = Checkpoint.fromBytes(checkpoint.toBytes());
        Check.same(checkpoint.getName(), same.getName(), "a checkpoint as bytes");
    }

    private static void retention(Session session) throws Exception {
        Stream stream = session.stream("s", 2);
        session.write("s", 4, 10);
        ReaderGroup group = session.group("g", ReaderGroupConfig.builder().groupRefreshTimeMillis(500)
                .disableAutomaticCheckpoints().stream(stream)
                .retentionType(ReaderGroupConfig.StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT).build());
        try (EventStreamReader<String> reader = session.reader("r", "g")) {
            session.take(reader, 40);
            CompletableFuture<Map<Stream, StreamCut>> pending = group.generateStreamCuts(session.timer);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
            while (!pending.isDone()) {
                Check.holds(System.nanoTime() < deadline, "no cut");
                reader.readNextEvent(300);
            }
            Map<Stream, StreamCut> cuts = pending.get();
            Check.same(
                    session.tail("s").asImpl().getPositions(), cuts.get(stream).asImpl().getPositions(),
                    "the cut after all events");
            group.updateRetentionStreamCut(cuts);
        }
        List<String> subscribers = session.controller().listSubscribers(session.scope, "s").get(60, TimeUnit.SECONDS);
        Check.same(1, subscribers.size(), "subscribers");
    }

    private static void bounded(Session session) throws Exception {
        Stream one = session.stream("one", 1);
        Stream two = session.stream("two", 2);
        session.write("one", 3, 10);
        session.write("two", 3, 10);
        StreamCut endOne = session.tail("one");
        StreamCut endTwo = session.tail("two");
        session.write("one", 3, 10, 20);
        session.write("two", 3, 10, 20);
        session.group("g", session.brisk().stream(one, StreamCut.UNBOUNDED, endOne)
                .stream(two, StreamCut.UNBOUNDED, endTwo).build());
        try (EventStreamReader<String> reader = session.reader("r", "g")) {
            List<String> taken = session.take(reader, 60);
            session.expectNothing(reader);
            Check.holds(
                    taken.stream().allMatch(event -> Integer.parseInt(event.split(":")[1]) < 10), "up to the cut");
        }
    }

    private static void deletion(Session session) {
        session.stream("s", 1);
        session.write("s", 1, 5);
        session.readAllInOrder("g", "s", 5);
        ReaderGroupConfig same = session.brisk().stream(Stream.of(session.scope, "s")).build();
        // The same group once more is no error; only other settings are.
        session.groups.createReaderGroup("g", same);
        Check.fails(ConfigMismatchException.class, () -> session.groups.createReaderGroup("g",
                ReaderGroupConfig.builder().groupRefreshTimeMillis(7000).stream(Stream.of(session.scope, "s")).build()),
                "the same name, other settings");
        session.groups.deleteReaderGroup("g");
        Check.fails(ReaderGroupNotFoundException.class, () -> session.groups.getReaderGroup("g"), "a deleted group");
        Check.holds(session.groups.createReaderGroup("g", same), "the name again");
        try (EventStreamReader<String> reader = session.reader("r", "g")) {
            session.take(reader, 5);
        }
    }
}
