package clients;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Byte streams. */
final class ByteScenarios {
    private ByteScenarios() {
    }

    static List<Scenario> all() {
        return List.of(
                new Scenario("a_byte_stream_is_written_sought_and_truncated", ByteScenarios::offsets),
                new Scenario("a_byte_stream_of_twenty_megabytes_is_whole", ByteScenarios::bulk),
                new Scenario("a_byte_reader_at_the_tail_is_woken", ByteScenarios::tail));
    }

    private static ByteStreamClientFactory factory(Session session) {
        session.stream("b", 1);
        return ByteStreamClientFactory.withScope(session.scope, session.config);
    }

    private static void offsets(Session session) throws Exception {
        try (ByteStreamClientFactory bytes = factory(session);
                ByteStreamWriter writer = bytes.createByteStreamWriter("b");
                ByteStreamReader reader = bytes.createByteStreamReader("b")) {
            writer.write("0123456789".repeat(10).getBytes());
            writer.flush();
            Check.same(100L, writer.fetchTailOffset(), "tail");
            Check.same(0L, writer.fetchHeadOffset(), "head");
            byte[] ten = new byte[10];
            reader.seekToOffset(35);
            Check.same(10, reader.readNBytes(ten, 0, 10), "bytes read");
            Check.same("5678901234", new String(ten), "bytes from the middle");
            Check.same(45L, reader.getOffset(), "offset");
            writer.truncateDataBefore(20);
            Check.same(20L, reader.fetchHeadOffset(), "head after the truncation");
            reader.seekToOffset(20);
            Check.same((int) '0', reader.read(), "first byte");
            writer.closeAndSeal();
            reader.seekToOffset(95);
            Check.same(5, reader.readNBytes(ten, 0, 10), "bytes up to the end");
            Check.same(-1, reader.read(), "end of stream");
        }
    }

    private static void bulk(Session session) throws Exception {
        byte[] content = new byte[20_000_000];
        new Random(1).nextBytes(content);
        try (ByteStreamClientFactory bytes = factory(session)) {
            try (ByteStreamWriter writer = bytes.createByteStreamWriter("b")) {
                for (int at = 0; at < content.length; at += 65_000) {
                    writer.write(content, at, Math.min(65_000, content.length - at));
                }
                writer.flush();
            }
            try (ByteStreamReader reader = bytes.createByteStreamReader("b")) {
                byte[] given = new byte[content.length];
                Check.same(content.length, reader.readNBytes(given, 0, given.length), "bytes");
                Check.holds(Arrays.equals(content, given), "content");
            }
            // A second writer goes on where the first stopped.
            try (ByteStreamWriter writer = bytes.createByteStreamWriter("b")) {
                writer.write(new byte[] {1, 2, 3});
                writer.flush();
                Check.same(content.length + 3L, writer.fetchTailOffset(), "tail");
            }
        }
    }

    private static void tail(Session session) throws Exception {
        try (ByteStreamClientFactory bytes = factory(session);
                ByteStreamWriter writer = bytes.createByteStreamWriter("b");
                ByteStreamReader reader = bytes.createByteStreamReader("b")) {
            for (int round = 0; round < 20; round++) {
                CompletableFuture<Integer> woken = reader.onDataAvailable();
                writer.write(round);
                writer.flush();
                woken.get(60, TimeUnit.SECONDS);
                Check.same(round, reader.read(), "the byte just written");
            }
        }
    }
}
