"""What the processes of a cluster are started with: `make cluster` runs them from here, compose/ is generated from it.

Names that a place fills in: `host`, an IP address, or a name that lasts, of the process; its ports by their names;
`data`, its directory; `name`; `zookeeper`, `s3`, HOST:PORT of the one and of the other; `segmentstore`, `versitygw`,
`classpath`, where these programs are; `settings`, its file of settings.

Invariants:

- Every word, variable, setting, port, count and version of a cluster's processes is here, or in a role named here.
- Nothing here knows where a process runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from segmentstore.demo.s3_gateway import GATEWAY_ROLE, PACKAGE, REGION, gateway_environment
from segmentstore.runtime.process_role import ProcessRole
from tier1.bookkeeper.local_ensemble import (
    BOOKIE_ROLE,
    BOOKIE_SHELL_ROLE,
    LEDGERS_PATH,
    ZOOKEEPER_ROLE,
)

ACCESS_KEY: Final = "local-cluster"
SECRET_KEY: Final = "not-a-secret-on-loopback"
BUCKET: Final = "cluster"
TIER2: Final = f"s3://{BUCKET}/tier2"
PLACE: Final = f"bookkeeper://{{zookeeper}}{LEDGERS_PATH}"
CLIENT_ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "SEGMENTSTORE_S3_ENDPOINT_URL": "http://{s3}",
}
"""What reaches the S3 server, besides its own variables."""

NODE_ROLE: Final = ProcessRole(
    name="node",
    count=3,
    ports={"http": 9091, "wire": 12345, "kafka": 9092},
    sizes={"containers": "6"},
    environment=CLIENT_ENVIRONMENT,
    command=(
        *("{segmentstore}", "node", "--data", "{data}"),
        *("--http", "{host}:{http}", "--wire", "{host}:{wire}"),
        *("--kafka", "{host}:{kafka}", "--tier2", TIER2),
        *("--containers", "{containers}"),
        *("--set", "cluster.node_name={name}"),
        *("--set", "bookkeeper.heap_bytes_max=96MiB"),
        *("--set", "bookkeeper.direct_bytes_max=128MiB"),
        *("--set", "cache.bytes_max=96MiB"),
        *("--cluster", PLACE),
    ),
)
CONTROLLER_ROLE: Final = ProcessRole(
    name="controller",
    count=2,
    ports={"http": 9091, "grpc": 9090},
    environment=CLIENT_ENVIRONMENT,
    command=(
        *("{segmentstore}", "controller", "--http", "{host}:{http}", "--listen", "{host}:{grpc}"),
        *("--cluster", PLACE),
    ),
)
S3_ROLE: Final = replace(
    GATEWAY_ROLE,
    directories=(f"{{data}}/{BUCKET}",),
    environment=gateway_environment(ACCESS_KEY, SECRET_KEY),
)
STANDALONE_ROLE: Final = ProcessRole(
    name="standalone",
    count=1,
    ports={"http": 9091, "wire": 12345, "grpc": 9090},
    command=(
        *("{segmentstore}", "standalone", "--data", "{data}"),
        *("--http", "{host}:{http}", "--wire", "{host}:{wire}", "--controller", "{host}:{grpc}"),
    ),
)
"""As `make run` starts it."""
SPARK_MASTER_ROLE: Final = ProcessRole(
    name="spark-master",
    count=1,
    ports={"spark": 7077, "web": 8080},
    command=(
        *("spark-class", "org.apache.spark.deploy.master.Master"),
        *("--host", "{host}", "--port", "{spark}", "--webui-port", "{web}"),
    ),
)
SPARK_WORKER_ROLE: Final = ProcessRole(
    name="spark-worker",
    count=2,
    ports={"web": 8081},
    sizes={"cores": "1", "memory": "1g"},
    environment=CLIENT_ENVIRONMENT,
    command=(
        *("spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "{host}"),
        *("--webui-port", "{web}", "--cores", "{cores}", "--memory", "{memory}"),
        *("--work-dir", "{data}", "spark://{master}"),
    ),
)
EXTRAS: Final = ("fast", "bookkeeper", "s3")
"""Of pyproject.toml, what nodes and controllers need; `make cluster` installs the same."""
SPARK_EXTRAS: Final = ("spark",)
"""What Spark's processes need besides."""


@dataclass(frozen=True, slots=True)
class ClusterRoles:
    """The processes of a cluster, servers before their clients."""

    zookeeper: ProcessRole = ZOOKEEPER_ROLE
    shell: ProcessRole = BOOKIE_SHELL_ROLE
    s3: ProcessRole = S3_ROLE
    bookie: ProcessRole = BOOKIE_ROLE
    node: ProcessRole = NODE_ROLE
    controller: ProcessRole = CONTROLLER_ROLE
    standalone: ProcessRole = STANDALONE_ROLE
    """A store in one process: no part of a cluster."""
    spark_master: ProcessRole = SPARK_MASTER_ROLE
    spark_worker: ProcessRole = SPARK_WORKER_ROLE
    gateway_package: str = PACKAGE
    """The S3 server as Go installs it, with its version."""

    def servers(self) -> Iterator[ProcessRole]:
        """Those that `make cluster` has running."""
        yield from (self.zookeeper, self.s3, self.bookie, self.node, self.controller)

    def others(self) -> Iterator[ProcessRole]:
        """Those that only compose/ has."""
        yield from (self.standalone, self.spark_master, self.spark_worker)


CLUSTER_ROLES: Final = ClusterRoles(bookie=replace(BOOKIE_ROLE, sizes={"heap": "160"}))
