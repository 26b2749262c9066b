package clients;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableInfo;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.BadKeyVersionException;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.IteratorItem;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import io.pravega.common.util.AsyncIterator;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/** Key-value tables. */
final class TableScenarios {
    private TableScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("a_table_takes_conditional_changes", TableScenarios::conditions),
                new Scenario("a_table_is_iterated_by_range_and_prefix", TableScenarios::iteration),
                new Scenario("tables_are_made_listed_and_deleted", TableScenarios::life));
    }

    interface Use {
        void run(KeyValueTable table) throws Exception;
    }

    private static KeyValueTableConfiguration shape(int partitions, int primary, int secondary) {
        return KeyValueTableConfiguration.builder().partitionCount(partitions).primaryKeyLength(primary)
                .secondaryKeyLength(secondary).build();
    }

    private static void with(Session session, KeyValueTableConfiguration shape, Use use) throws Exception {
        try (KeyValueTableManager tables = KeyValueTableManager.create(session.config);
                KeyValueTableFactory factory = KeyValueTableFactory.withScope(session.scope, session.config)) {
            Check.holds(tables.createKeyValueTable(session.scope, "t", shape), "created");
            try (KeyValueTable table =
                    factory.forKeyValueTable("t", KeyValueTableClientConfiguration.builder().build())) {
                use.run(table);
            }
        }
    }

    private static ByteBuffer text(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.US_ASCII));
    }

    private static String text(ByteBuffer buffer) {
        return StandardCharsets.US_ASCII.decode(buffer.duplicate()).toString();
    }

    private static TableKey key(String text) {
        return new TableKey(text(text));
    }

    private static void conditions(Session session) throws Exception {
        with(session, shape(2, 4, 0), table -> {
            Version first = table.update(new Insert(key("key1"), text("a"))).get(60, TimeUnit.SECONDS);
            Check.fails(BadKeyVersionException.class,
                    () -> table.update(new Insert(key("key1"), text("x"))).get(60, TimeUnit.SECONDS), "insert twice");
            TableEntry entry = table.get(key("key1")).get(60, TimeUnit.SECONDS);
            Check.same("a", text(entry.getValue()), "value");
            Check.same(first, entry.getVersion(), "version");
            Version second = table.update(new Put(key("key1"), text("b"), first)).get(60, TimeUnit.SECONDS);
            Check.fails(ConditionalTableUpdateException.class,
                    () -> table.update(new Put(key("key1"), text("c"), first)).get(60, TimeUnit.SECONDS),
                    "put with an old version");
            Version third = table.update(new Put(key("key1"), text("d"))).get(60, TimeUnit.SECONDS);
            Check.fails(ConditionalTableUpdateException.class,
                    () -> table.update(new Remove(key("key1"), second)).get(60, TimeUnit.SECONDS),
                    "remove with an old version");
            Check.holds(table.exists(key("key1")).get(60, TimeUnit.SECONDS), "exists");
            Check.holds(!table.exists(key("none")).get(60, TimeUnit.SECONDS), "does not exist");
            Check.same(null, table.get(key("none")).get(60, TimeUnit.SECONDS), "a missing entry");
            table.update(new Remove(key("key1"), third)).get(60, TimeUnit.SECONDS);
            Check.same(null, table.get(key("key1")).get(60, TimeUnit.SECONDS), "a removed entry");
            table.update(new Remove(key("key1"))).get(60, TimeUnit.SECONDS);
            table.update(new Insert(key("key1"), text("e"))).get(60, TimeUnit.SECONDS);
            List<TableEntry> both = table.getAll(List.of(key("none"), key("key1"))).get(60, TimeUnit.SECONDS);
            Check.same(null, both.get(0), "first of two");
            Check.same("e", text(both.get(1).getValue()), "second of two");
        });
    }

    private static void iteration(Session session) throws Exception {
        with(session, shape(2, 2, 4), table -> {
            Set<String> wanted = new TreeSet<>();
            for (int primary = 0; primary < 4; primary++) {
                List<TableModification> changes = new ArrayList<>();
                for (int number = 0; number < 50; number++) {
                    String secondary = String.format("%04d", number);
                    TableKey key = new TableKey(text("p" + primary), text(secondary));
                    changes.add(number % 2 == 0 ? new Insert(key, text("v")) : new Put(key, text("v")));
                    wanted.add("p" + primary + secondary);
                }
                table.update(changes).get(60, TimeUnit.SECONDS);
            }
            Check.same(wanted, new TreeSet<>(keys(table.iterator().maxIterationSize(7).all().entries())), "all");
            Check.same(200, keys(table.iterator().maxIterationSize(1000).all().entries()).size(), "each once");
            List<String> part = keys(table.iterator().maxIterationSize(3)
                    .forPrimaryKey(text("p2"), text("0010"), text("0019")).entries());
            List<String> ten = new ArrayList<>();
            for (int number = 10; number < 20; number++) {
                ten.add(String.format("p2%04d", number));
            }
            Check.same(ten, part, "a range of one primary key, in order");
            Check.same(50, keys(table.iterator().maxIterationSize(9).forPrimaryKey(text("p1")).entries()).size(),
                    "one primary key");
            Check.same(200, keys(table.iterator().maxIterationSize(20).forPrefix(text("p")).entries()).size(),
                    "a prefix");
            Check.same(100, keys(table.iterator().maxIterationSize(20).forRange(text("p1"), text("p2")).entries())
                    .size(), "a range of primary keys");
        });
    }

    private static List<String> keys(AsyncIterator<IteratorItem<TableEntry>> pages) throws Exception {
        List<String> keys = new ArrayList<>();
        IteratorItem<TableEntry> page = pages.getNext().get(60, TimeUnit.SECONDS);
        while (page != null) {
            for (TableEntry entry : page.getItems()) {
                keys.add(text(entry.getKey().getPrimaryKey()) + text(entry.getKey().getSecondaryKey()));
            }
            page = pages.getNext().get(60, TimeUnit.SECONDS);
        }
        return keys;
    }

    private static void life(Session session) throws Exception {
        try (KeyValueTableManager tables = KeyValueTableManager.create(session.config)) {
            Set<String> wanted = new TreeSet<>();
            for (int number = 0; number < 12; number++) {
                Check.holds(tables.createKeyValueTable(session.scope, "t" + number, shape(1, 8, 0)), "created");
                wanted.add("t" + number);
            }
            Check.holds(!tables.createKeyValueTable(session.scope, "t3", shape(1, 8, 0)), "created twice");
            Set<String> listed = new TreeSet<>();
            tables.listKeyValueTables(session.scope)
                    .forEachRemaining((KeyValueTableInfo table) -> listed.add(table.getKeyValueTableName()));
            Check.same(wanted, listed, "tables");
            Check.same(8, session.controller().getKeyValueTableConfiguration(session.scope, "t5").join()
                    .getPrimaryKeyLength(), "shape");
            Check.holds(tables.deleteKeyValueTable(session.scope, "t5"), "deleted");
            Check.holds(!tables.deleteKeyValueTable(session.scope, "t5"), "deleted twice");
        }
    }
}
