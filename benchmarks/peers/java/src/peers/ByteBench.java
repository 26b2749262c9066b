package peers;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.util.Random;
import java.util.concurrent.TimeUnit;

/** `megabytes` in pieces of `size` bytes into a byte stream, then all of it out again. */
final class ByteBench {
    private final Bench bench;

    ByteBench(Bench bench) {
        this.bench = bench;
    }

    void run() throws Exception {
        byte[] piece = new byte[bench.number("size", 65_536)];
        new Random(6).nextBytes(piece);
        long target = bench.number("megabytes", 1000) * 1_000_000L;
        long warm = target / 5;
        String stream = bench.newStream(1);
        ByteStreamClientFactory factory = ByteStreamClientFactory.withScope(Bench.SCOPE, bench.config);
        double writeSeconds;
        try (ByteStreamWriter writer = factory.createByteStreamWriter(stream)) {
            long written = 0;
            for (; written < warm; written += piece.length) {
                writer.write(piece);
            }
            writer.flush();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(bench.number("seconds", 20));
            long started = System.nanoTime();
            Bench.begin();
            for (written = 0; written < target && System.nanoTime() < deadline; written += piece.length) {
                writer.write(piece);
            }
            writer.flush();
            Bench.end();
            writeSeconds = (System.nanoTime() - started) / 1e9;
            target = written;
        }
        try (ByteStreamReader reader = factory.createByteStreamReader(stream)) {
            byte[] buffer = new byte[1 << 16];
            long tail = reader.fetchTailOffset();
            long count = 0;
            long started = System.nanoTime();
            long deadline = started + TimeUnit.SECONDS.toNanos(bench.number("seconds", 20));
            while (count < tail && System.nanoTime() < deadline) {
                int read = reader.read(buffer);
                if (read < 0) {
                    break;
                }
                count += read;
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            Bench.figures("write_megabytes_per_second", target / writeSeconds / 1e6,
                    "read_megabytes_per_second", count / seconds / 1e6, "bytes", target, "bytes_read", count);
        }
    }
}
