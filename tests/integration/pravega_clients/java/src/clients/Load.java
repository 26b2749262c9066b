package clients;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.Transaction.Status;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A writer and a reader at work while the test does harm to their server:
 *
 * <pre>Load CONTROLLER_URI SCOPE [keys=10] [events=4000] [segments=2] [inflight=300] [per_second=1000]
 *      [transactions=0] [pause_at=0] [until_told=0] [seconds=190]</pre>
 *
 * Events carry a number per key, so that the reader sees what is lost, repeated or out of order. Lines tell how many
 * were acknowledged and read; the last line has the verdict. With `transactions` every so many numbers of all keys are
 * one transaction. At `pause_at` written events the writer waits for a line on stdin. With `until_told` it writes until
 * there is such a line, however many events that are. It has failed if it is not done after `seconds`.
 */
public final class Load {
    private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(120);

    private final Session session;
    private final Map<String, Integer> options;
    private final KeyOrder order = new KeyOrder();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    /** So many events are written in all, once that is known. */
    private volatile int total = Integer.MAX_VALUE;
    private volatile boolean told;
    private int readersLost;

    private Load(Session session, Map<String, Integer> options) {
        this.session = session;
        this.options = options;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Integer> options = new HashMap<>(Map.of("keys", 10, "events", 4000, "segments", 2, "inflight", 300,
                "per_second", 1000, "transactions", 0, "pause_at", 0, "until_told", 0, "seconds", 190));
        for (int index = 2; index < arguments.length; index++) {
            String[] option = arguments[index].split("=", 2);
            options.put(option[0], Integer.valueOf(option[1]));
        }
        new Load(new Session(URI.create(arguments[0]), arguments[1]), options).run();
        // Closing the clients is not the subject; a server that was killed may make it slow.
        System.exit(0);
    }

    private void run() throws Exception {
        session.stream("s", options.get("segments"));
        session.group("g", "s");
        ExecutorService threads = Executors.newFixedThreadPool(3);
        if (isUntilTold()) {
            threads.submit(guarded(() -> {
                waitForALine();
                told = true;
            }));
        }
        Future<?> writing = threads.submit(guarded(options.get("transactions") > 0 ? this::commit : this::write));
        Future<?> reading = threads.submit(guarded(this::read));
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(options.get("seconds"));
        while (!(writing.isDone() && reading.isDone()) && failure.get() == null && System.nanoTime() < deadline) {
            Report.line("acknowledged", acknowledged.get(), "read", order.count());
            Thread.sleep(100);
        }
        String verdict = "";
        try {
            if (failure.get() != null) {
                throw failure.get();
            }
            order.check(total);
        } catch (Throwable error) {
            error.printStackTrace();
            verdict = error.toString();
        }
        Report.line("passed", verdict.isEmpty(), "failure", verdict, "acknowledged", acknowledged.get(),
                "read", order.count(), "readers_lost", readersLost);
    }

    private Runnable guarded(Check.Action action) {
        return () -> {
            try {
                action.run();
            } catch (Throwable error) {
                failure.compareAndSet(null, error);
            }
        };
    }

    private boolean isUntilTold() {
        return options.get("until_told") > 0;
    }

    private int events() {
        int wanted = isUntilTold() ? Integer.MAX_VALUE : options.get("events");
        return wanted / options.get("keys") * options.get("keys");
    }

    private static void waitForALine() throws Exception {
        new BufferedReader(new InputStreamReader(System.in)).readLine();
    }

    /** The n-th event in all is the next one of key n modulo keys. */
    private String key(int index) {
        return "k" + index % options.get("keys");
    }

    private String event(int index) {
        return KeyOrder.event(key(index), index / options.get("keys"));
    }

    private void pace(int index, long started) throws Exception {
        if (index > 0 && index == options.get("pause_at")) {
            // The reader is at the tail then, with its long polls on their way.
            while (order.count() < index) {
                Thread.sleep(20);
            }
            Report.line("paused", index);
            waitForALine();
        }
        long due = started + TimeUnit.SECONDS.toNanos(index) / options.get("per_second");
        long wait = due - System.nanoTime();
        if (wait > 0) {
            TimeUnit.NANOSECONDS.sleep(wait);
        }
    }

    private void write() throws Exception {
        EventWriterConfig patient = EventWriterConfig.builder().initialBackoffMillis(20).backoffMultiple(2)
                .maxBackoffMillis(500).retryAttempts(300).build();
        Semaphore free = new Semaphore(options.get("inflight"));
        try (EventStreamWriter<String> writer = session.events.createEventWriter("s", Session.TEXT, patient)) {
            long started = System.nanoTime();
            int index = 0;
            for (; index < events() && !told; index++) {
                pace(index, started);
                free.acquire();
                writer.writeEvent(key(index), event(index)).whenComplete((nothing, error) -> {
                    free.release();
                    if (error == null) {
                        acknowledged.incrementAndGet();
                    } else {
                        failure.compareAndSet(null, error);
                    }
                });
            }
            writer.flush();
            total = index;
        }
    }

    private void commit() throws Exception {
        int size = options.get("keys") * options.get("transactions");
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(30_000).build();
        try (TransactionalEventStreamWriter<String> writer =
                session.events.createTransactionalEventWriter("w", "s", Session.TEXT, config)) {
            long started = System.nanoTime();
            int first = 0;
            while (first < events() && !told) {
                pace(first, started);
                int end = Math.min(first + size, events());
                while (!committed(writer, first, end)) {
                    Thread.sleep(100);
                }
                first = end;
                acknowledged.set(end);
            }
            total = first;
        }
    }

    /** One transaction with these events. False: it was aborted, nothing of it will ever be read. */
    private boolean committed(TransactionalEventStreamWriter<String> writer, int first, int end) throws Exception {
        Transaction<String> transaction = patiently(writer::beginTxn);
        boolean written = false;
        try {
            for (int index = first; index < end; index++) {
                transaction.writeEvent(key(index), event(index));
            }
            transaction.flush();
            written = true;
            transaction.commit();
        } catch (Exception error) {
            Report.line("transaction", transaction.getTxnId(), "error", error);
        }
        boolean whole = written;
        while (true) {
            Status status = patiently(transaction::checkStatus);
            if (status == Status.COMMITTED || status == Status.ABORTED) {
                return status == Status.COMMITTED;
            }
            if (status == Status.OPEN) {
                // The call that failed may not have reached the server.
                patiently(() -> {
                    if (whole) {
                        transaction.commit();
                    } else {
                        transaction.abort();
                    }
                    return true;
                });
            }
            Thread.sleep(20);
        }
    }

    interface Call<T> {
        T run() throws Exception;
    }

    /** The answer of a call that may meet a dead server several times. */
    private static <T> T patiently(Call<T> call) throws Exception {
        long deadline = System.nanoTime() + PATIENCE_NANOS;
        while (true) {
            try {
                return call.run();
            } catch (Exception error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
                Thread.sleep(250);
            }
        }
    }

    private void read() throws Exception {
        ReaderGroup group = session.groups.getReaderGroup("g");
        Position last = null;
        while (order.count() < total) {
            String name = "r" + readersLost;
            try (EventStreamReader<String> reader = session.reader(name, "g")) {
                while (order.count() < total) {
                    EventRead<String> read = reader.readNextEvent(200);
                    if (read.getEvent() != null) {
                        order.add(read.getEvent());
                        last = read.getPosition();
                    }
                }
                for (int attempt = 0; attempt < 3; attempt++) {
                    String more = reader.readNextEvent(300).getEvent();
                    Check.holds(more == null, "an event too many: " + more);
                }
            } catch (RuntimeException error) {
                // A reader that gave up is declared gone at the event it gave us last, and another goes on.
                Report.line("reader", name, "error", error);
                Position position = last;
                patiently(() -> {
                    group.readerOffline(name, position);
                    return true;
                });
                readersLost++;
            }
        }
    }
}
