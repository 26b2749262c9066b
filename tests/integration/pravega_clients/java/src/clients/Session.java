package clients;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** One scope of a server and the clients that work in it. */
final class Session implements AutoCloseable {
    static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(180);

    final String scope;
    final ClientConfig config;
    final StreamManager streams;
    final ReaderGroupManager groups;
    final EventStreamClientFactory events;
    final ScheduledExecutorService timer = Executors.newScheduledThreadPool(2);
    private Controller controller;

    Session(URI server, String scope) {
        this.scope = scope;
        config = ClientConfig.builder().controllerURI(server).build();
        streams = StreamManager.create(config);
        streams.createScope(scope);
        groups = ReaderGroupManager.withScope(scope, config);
        events = EventStreamClientFactory.withScope(scope, config);
    }

    @Override
    public void close() {
        events.close();
        groups.close();
        streams.close();
        if (controller != null) {
            controller.close();
        }
        timer.shutdownNow();
    }

    Controller controller() {
        if (controller == null) {
            controller = new ControllerImpl(ControllerImplConfig.builder().clientConfig(config).build(), timer);
        }
        return controller;
    }

    Stream stream(String name, int segments) {
        StreamConfiguration fixed =
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build();
        Check.holds(streams.createStream(scope, name, fixed), "created " + name);
        return Stream.of(scope, name);
    }

    EventStreamWriter<String> writer(String stream) {
        return events.createEventWriter(stream, TEXT, EventWriterConfig.builder().build());
    }

    /** Events "k0:0", "k1:0", ..., "k0:1", ..., written and acknowledged. */
    void write(String stream, int keys, int perKey) {
        write(stream, keys, 0, perKey);
    }

    void write(String stream, int keys, int from, int to) {
        try (EventStreamWriter<String> writer = writer(stream)) {
            for (int number = from; number < to; number++) {
                for (int key = 0; key < keys; key++) {
                    writer.writeEvent("k" + key, KeyOrder.event("k" + key, number));
                }
            }
            writer.flush();
        }
    }

    /** A group that looks for new work often: readers meet successors only after a checkpoint. */
    ReaderGroupConfig.ReaderGroupConfigBuilder brisk() {
        return ReaderGroupConfig.builder().groupRefreshTimeMillis(500).automaticCheckpointIntervalMillis(1000);
    }

    ReaderGroup group(String name, ReaderGroupConfig given) {
        Check.holds(groups.createReaderGroup(name, given), "created reader group " + name);
        return groups.getReaderGroup(name);
    }

    ReaderGroup group(String name, String stream) {
        return group(name, brisk().stream(Stream.of(scope, stream)).build());
    }

    EventStreamReader<String> reader(String name, String group) {
        return events.createReader(name, group, TEXT, ReaderConfig.builder().build());
    }

    /** `count` events; fails if they do not come in time. */
    List<String> take(EventStreamReader<String> reader, int count) {
        List<String> taken = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE_NANOS;
        while (taken.size() < count) {
            Check.holds(System.nanoTime() < deadline, "read only " + taken.size() + " of " + count + " events");
            EventRead<String> read = reader.readNextEvent(500);
            if (read.getEvent() != null) {
                taken.add(read.getEvent());
            }
        }
        return taken;
    }

    /** Nothing more comes; a checkpoint is not an event. */
    void expectNothing(EventStreamReader<String> reader) {
        for (int attempt = 0; attempt < 2; attempt++) {
            String event = reader.readNextEvent(400).getEvent();
            Check.holds(event == null, "an event too many: " + event);
        }
    }

    /** All `count` events of a stream by a new group, then nothing. */
    List<String> readAll(String group, String stream, int count) {
        group(group, stream);
        try (EventStreamReader<String> reader = reader("only", group)) {
            List<String> taken = take(reader, count);
            expectNothing(reader);
            return taken;
        }
    }

    /** The same, each key in order. */
    void readAllInOrder(String group, String stream, int count) {
        KeyOrder order = new KeyOrder();
        readAll(group, stream, count).forEach(order::add);
        order.check(count);
    }

    /** All current segments are replaced by `count` equal ones. */
    void scale(String stream, int count) throws Exception {
        Map<Double, Double> ranges = new TreeMap<>();
        for (int number = 0; number < count; number++) {
            ranges.put((double) number / count, (double) (number + 1) / count);
        }
        boolean scaled = false;
        long deadline = System.nanoTime() + PATIENCE_NANOS;
        // Refused while a transaction that commits is replacing the segments itself: asked again.
        while (!scaled) {
            Check.holds(System.nanoTime() < deadline, "not scaled to " + count);
            List<Long> sealed = new ArrayList<>();
            for (Segment segment : controller().getCurrentSegments(scope, stream).get().getSegments()) {
                sealed.add(segment.getSegmentId());
            }
            scaled = controller().scaleStream(Stream.of(scope, stream), sealed, ranges, timer).getFuture()
                    .get(180, TimeUnit.SECONDS);
        }
        Check.same(count, controller().getCurrentSegments(scope, stream).get().getSegments().size(), "segments");
    }

    StreamCut tail(String stream) throws Exception {
        return streams.fetchStreamInfo(scope, stream).get(60, TimeUnit.SECONDS).getTailStreamCut();
    }

    StreamCut head(String stream) throws Exception {
        return streams.fetchStreamInfo(scope, stream).get(60, TimeUnit.SECONDS).getHeadStreamCut();
    }
}
