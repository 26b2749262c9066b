package clients;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** State shared by conditional appends. */
final class StateScenarios {
    private StateScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("a_revisioned_stream_takes_conditional_writes_and_a_mark", StateScenarios::revisions),
                new Scenario("synchronized_state_counts_every_update", StateScenarios::counting));
    }

    private static void revisions(Session session) {
        session.stream("s", 1);
        try (SynchronizerClientFactory factory =
                        SynchronizerClientFactory.withScope(session.scope, session.config);
                RevisionedStreamClient<String> client = factory.createRevisionedStreamClient(
                        "s", Session.TEXT, SynchronizerConfig.builder().build())) {
            Revision start = client.fetchLatestRevision();
            Revision first = client.writeConditionally(start, "one");
            Check.holds(first != null, "a write at the latest revision");
            Check.same(null, client.writeConditionally(start, "lost"), "a write at an old revision");
            client.writeUnconditionally("two");
            Check.same(List.of("one", "two"), values(client.readFrom(start)), "values");
            Check.same(List.of("two"), values(client.readFrom(first)), "values from a revision");
            Check.same(null, client.getMark(), "no mark yet");
            Check.holds(client.compareAndSetMark(null, first), "first mark");
            Check.holds(!client.compareAndSetMark(null, start), "a mark against the wrong one");
            Check.same(first, client.getMark(), "mark");
            client.truncateToRevision(first);
            Check.same(first, client.fetchOldestRevision(), "oldest revision");
            Check.fails(TruncatedDataException.class, () -> values(client.readFrom(start)), "a truncated revision");
        }
    }

    private static List<String> values(Iterator<Map.Entry<Revision, String>> entries) {
        List<String> values = new ArrayList<>();
        entries.forEachRemaining(entry -> values.add(entry.getValue()));
        return values;
    }

    /** A number that remembers its revision. */
    record Total(String scopedStreamName, Revision revision, int total) implements Revisioned, Serializable {
        @Override
        public String getScopedStreamName() {
            return scopedStreamName;
        }

        @Override
        public Revision getRevision() {
            return revision;
        }
    }

    record Start(int total) implements InitialUpdate<Total>, Serializable {
        @Override
        public Total create(String scopedStreamName, Revision revision) {
            return new Total(scopedStreamName, revision, total);
        }
    }

    record Plus(int more) implements Update<Total>, Serializable {
        @Override
        public Total applyTo(Total old, Revision revision) {
            return new Total(old.scopedStreamName(), revision, old.total() + more);
        }
    }

    private static StateSynchronizer<Total> synchronizer(SynchronizerClientFactory factory) {
        return factory.createStateSynchronizer("s", new JavaSerializer<Plus>(), new JavaSerializer<Start>(),
                SynchronizerConfig.builder().build());
    }

    private static void counting(Session session) throws Exception {
        session.stream("s", 1);
        ExecutorService threads = Executors.newFixedThreadPool(3);
        try (SynchronizerClientFactory factory =
                SynchronizerClientFactory.withScope(session.scope, session.config)) {
            List<Future<?>> adding = new ArrayList<>();
            for (int thread = 0; thread < 3; thread++) {
                adding.add(threads.submit(() -> {
                    try (StateSynchronizer<Total> shared = synchronizer(factory)) {
                        shared.initialize(new Start(1000));
                        for (int number = 0; number < 20; number++) {
                            shared.updateState((state, updates) -> {
                                updates.add(new Plus(1));
                            });
                        }
                    }
                    return null;
                }));
            }
            for (Future<?> one : adding) {
                one.get();
            }
            try (StateSynchronizer<Total> shared = synchronizer(factory)) {
                shared.fetchUpdates();
                Check.same(1060, shared.getState().total(), "total");
                shared.compact(state -> new Start(state.total()));
                shared.updateStateUnconditionally(new Plus(5));
            }
            try (StateSynchronizer<Total> shared = synchronizer(factory)) {
                shared.fetchUpdates();
                Check.same(1065, shared.getState().total(), "total after the compaction");
            }
        }
        threads.shutdown();
    }
}
