package peers;

import io.pravega.local.InProcPravegaCluster;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * A whole Pravega in one process: ZooKeeper, one bookie that syncs its journal, controller and segment store; or the
 * last two alone, on the ZooKeeper and the bookies of another process.
 *
 * <pre>PravegaServer DIRECTORY CONTROLLER_PORT STORE_PORT ZOOKEEPER_PORT BOOKIE_PORT CONTAINERS
 * PravegaServer DIRECTORY CONTROLLER_PORT STORE_PORT ZOOKEEPER_PORT 0 CONTAINERS BOOKIES LEDGERS_PATH</pre>
 *
 * An entry goes to every bookie, and is acknowledged when half of them have it, rounded up.
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
        int bookies = bookie == 0 ? Integer.parseInt(arguments[6]) : 1;
        String ledgers = bookie == 0 ? arguments[7] : PravegaBookies.LEDGERS;
        if (bookie != 0) {
            PravegaBookies.start(zookeeper, List.of(bookie));
        }
        Map.of(
                "pravegaservice.dataLog.impl.name", "BOOKKEEPER",
                "bookkeeper.zk.connect.uri", "localhost:" + zookeeper,
                "bookkeeper.ledger.path", ledgers,
                "bookkeeper.ensemble.size", Integer.toString(bookies),
                "bookkeeper.write.quorum.size", Integer.toString(bookies),
                "bookkeeper.ack.quorum.size", Integer.toString((bookies + 1) / 2),
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
