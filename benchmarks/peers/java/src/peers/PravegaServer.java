package peers;

import io.pravega.local.InProcPravegaCluster;
import io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperServiceRunner;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * A whole Pravega in one process: ZooKeeper, one bookie that syncs its journal, controller and segment store.
 *
 * <pre>PravegaServer DIRECTORY CONTROLLER_PORT STORE_PORT ZOOKEEPER_PORT BOOKIE_PORT CONTAINERS</pre>
 *
 * The cluster builder knows no durable setting but HDFS. What it is told here is "in memory"; the properties of the
 * process are read after its own choices, so BookKeeper and the file system win.
 */
public final class PravegaServer {
    private static final long CACHE_BYTES = 2L << 30;

    private PravegaServer() {
    }

    public static void main(String[] arguments) throws Exception {
        Path tier2 = Files.createDirectories(Path.of(arguments[0]).toAbsolutePath().resolve("tier2"));
        int controller = Integer.parseInt(arguments[1]);
        int store = Integer.parseInt(arguments[2]);
        int zookeeper = Integer.parseInt(arguments[3]);
        int bookie = Integer.parseInt(arguments[4]);
        int containers = Integer.parseInt(arguments[5]);
        // The cluster empties /pravega in ZooKeeper when it starts, so the ledgers are kept elsewhere.
        String ledgers = "/ledgers-of-the-bookie/ledgers";
        BookKeeperServiceRunner.builder()
                .startZk(true).zkPort(zookeeper).bookiePorts(List.of(bookie)).ledgersPath(ledgers)
                .secureBK(false).secureZK(false).tLSKeyStore("").tLSKeyStorePasswordPath("").tlsTrustStore("")
                .build().startAll();
        Map.of(
                "pravegaservice.dataLog.impl.name", "BOOKKEEPER",
                "bookkeeper.zk.connect.uri", "localhost:" + zookeeper,
                "bookkeeper.ledger.path", ledgers,
                "bookkeeper.ensemble.size", "1",
                "bookkeeper.write.quorum.size", "1",
                "bookkeeper.ack.quorum.size", "1",
                "pravegaservice.storage.impl.name", "FILESYSTEM",
                "filesystem.root", tier2.toString()).forEach(System::setProperty);
        System.setProperty("pravegaservice.service.listener.host.nameOrIp", "127.0.0.1");
        System.setProperty("pravegaservice.service.published.host.nameOrIp", "127.0.0.1");
        System.setProperty("pravegaservice.cache.size.max", Long.toString(CACHE_BYTES));
        InProcPravegaCluster cluster = InProcPravegaCluster.builder()
                .isInProcZK(false).zkUrl("localhost:" + zookeeper).zkPort(zookeeper)
                .isInMemStorage(true)
                .isInProcController(true).controllerCount(1)
                .isInProcSegmentStore(true).segmentStoreCount(1).containerCount(containers)
                .enableRestServer(false).restServerPort(0)
                .enableAdminGateway(false).adminGatewayPort(0)
                .build();
        cluster.setControllerPorts(new int[] {controller});
        cluster.setSegmentStorePorts(new int[] {store});
        cluster.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
