package peers;

import io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperServiceRunner;
import java.util.Arrays;
import java.util.List;

/**
 * A ZooKeeper and bookies that sync their journals, as Pravega's own tests start them: in a process of their own, so
 * that what they use can be told from what the segment store uses.
 *
 * <pre>PravegaBookies ZOOKEEPER_PORT BOOKIE_PORT...</pre>
 *
 * Their data is below java.io.tmpdir, and is deleted when they end in order. Prints "READY".
 */
public final class PravegaBookies {
    /** The cluster empties /pravega in ZooKeeper when it starts, so the ledgers are kept elsewhere. */
    static final String LEDGERS = "/ledgers-of-the-bookie/ledgers";

    private PravegaBookies() {
    }

    public static void main(String[] arguments) throws Exception {
        int zookeeper = Integer.parseInt(arguments[0]);
        start(zookeeper, Arrays.stream(arguments).skip(1).map(Integer::valueOf).toList());
        System.out.println("READY");
        System.out.flush();
        Thread.sleep(Long.MAX_VALUE);
    }

    static void start(int zookeeper, List<Integer> bookies) throws Exception {
        BookKeeperServiceRunner.builder()
                .startZk(true).zkPort(zookeeper).bookiePorts(bookies).ledgersPath(LEDGERS)
                .secureBK(false).secureZK(false).tLSKeyStore("").tLSKeyStorePasswordPath("").tlsTrustStore("")
                .build().startAll();
    }
}
