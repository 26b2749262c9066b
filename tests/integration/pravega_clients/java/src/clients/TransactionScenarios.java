package clients;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.Transaction.Status;
import io.pravega.client.stream.TransactionInfo;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/** Transactions: all of their events or none, once, in the order of the commits. */
final class TransactionScenarios {
    private static final EventWriterConfig CONFIG =
            EventWriterConfig.builder().transactionTimeoutTime(30_000).build();

    private TransactionScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("a_forgotten_transaction_is_aborted_after_its_lease", TransactionScenarios::forgotten),
                new Scenario("a_transaction_is_committed_across_a_scale", TransactionScenarios::acrossScale),
                new Scenario("transactions_commit_in_the_order_of_their_commits", TransactionScenarios::sequence),
                new Scenario("an_aborted_transaction_leaves_nothing", TransactionScenarios::aborted),
                new Scenario("a_transaction_is_resumed_by_its_id", TransactionScenarios::resumed));
    }

    private static TransactionalEventStreamWriter<String> writer(Session session, EventWriterConfig config) {
        return session.events.createTransactionalEventWriter("w", "s", Session.TEXT, config);
    }

    static void expect(Transaction<String> transaction, Status wanted, int seconds) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        Status status = transaction.checkStatus();
        while (status != wanted && System.nanoTime() < deadline) {
            Thread.sleep(20);
            status = transaction.checkStatus();
        }
        Check.same(wanted, status, "status of a transaction");
    }

    private static void write(Transaction<String> transaction, int keys, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            for (int key = 0; key < keys; key++) {
                transaction.writeEvent("k" + key, KeyOrder.event("k" + key, number));
            }
        }
    }

    private static void sequence(Session session) throws Exception {
        session.stream("s", 3);
        session.group("g", "s");
        try (TransactionalEventStreamWriter<String> writer = writer(session, CONFIG);
                EventStreamReader<String> reader = session.reader("r", "g")) {
            for (int round = 0; round < 5; round++) {
                Transaction<String> transaction = writer.beginTxn();
                Check.same(Status.OPEN, transaction.checkStatus(), "status after the begin");
                write(transaction, 6, round * 10, round * 10 + 10);
                transaction.flush();
                if (round == 0) {
                    session.expectNothing(reader);
                }
                transaction.commit();
                expect(transaction, Status.COMMITTED, 180);
            }
            KeyOrder order = new KeyOrder();
            session.take(reader, 300).forEach(order::add);
            session.expectNothing(reader);
            order.check(300);
        }
        List<TransactionInfo> completed = session.streams.listCompletedTransactions(Stream.of(session.scope, "s"));
        for (TransactionInfo one : completed) {
            Check.same(Status.COMMITTED, one.getTransactionStatus(), "a completed transaction");
        }
    }

    private static void aborted(Session session) throws Exception {
        session.stream("s", 2);
        try (TransactionalEventStreamWriter<String> writer = writer(session, CONFIG)) {
            Transaction<String> dropped = writer.beginTxn();
            write(dropped, 4, 0, 10);
            dropped.flush();
            dropped.abort();
            expect(dropped, Status.ABORTED, 180);
            Check.fails(TxnFailedException.class, dropped::commit, "a commit after the abort");
            Transaction<String> kept = writer.beginTxn();
            write(kept, 4, 0, 5);
            kept.commit();
            expect(kept, Status.COMMITTED, 180);
            Transaction<String> empty = writer.beginTxn();
            empty.commit();
            expect(empty, Status.COMMITTED, 180);
        }
        session.readAllInOrder("g", "s", 20);
    }

    private static void resumed(Session session) throws Exception {
        session.stream("s", 2);
        UUID id;
        try (TransactionalEventStreamWriter<String> first = writer(session, CONFIG)) {
            Transaction<String> transaction = first.beginTxn();
            write(transaction, 4, 0, 5);
            transaction.flush();
            id = transaction.getTxnId();
            try (TransactionalEventStreamWriter<String> second = writer(session, CONFIG)) {
                Transaction<String> same = second.getTxn(id);
                Check.same(Status.OPEN, same.checkStatus(), "status");
                same.commit();
                expect(same, Status.COMMITTED, 180);
            }
        }
        session.readAllInOrder("g", "s", 20);
    }

    private static void acrossScale(Session session) throws Exception {
        session.stream("s", 2);
        session.write("s", 6, 0, 5);
        try (TransactionalEventStreamWriter<String> writer = writer(session, CONFIG)) {
            Transaction<String> early = writer.beginTxn();
            write(early, 6, 5, 10);
            early.flush();
            Transaction<String> late = writer.beginTxn();
            session.scale("s", 3);
            write(late, 6, 10, 15);
            early.commit();
            expect(early, Status.COMMITTED, 180);
            late.commit();
            expect(late, Status.COMMITTED, 180);
        }
        session.write("s", 6, 15, 20);
        session.readAllInOrder("g", "s", 120);
        session.readAllInOrder("g2", "s", 120);
    }

    private static void forgotten(Session session) throws Exception {
        session.stream("s", 1);
        EventWriterConfig brief = EventWriterConfig.builder().transactionTimeoutTime(10_000).build();
        UUID id;
        try (TransactionalEventStreamWriter<String> writer = writer(session, brief)) {
            Transaction<String> transaction = writer.beginTxn();
            write(transaction, 2, 0, 5);
            transaction.flush();
            id = transaction.getTxnId();
        }
        // A closed writer pings no more; nor does this way of asking.
        Stream stream = Stream.of(session.scope, "s");
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
        Status status = Status.OPEN;
        while (status != Status.ABORTED && System.nanoTime() < deadline) {
            Thread.sleep(500);
            status = session.controller().checkTransactionStatus(stream, id).get(60, TimeUnit.SECONDS);
        }
        Check.same(Status.ABORTED, status, "status of a forgotten transaction");
        session.write("s", 1, 3);
        session.readAllInOrder("g", "s", 3);
    }
}
