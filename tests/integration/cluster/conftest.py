"""One cluster for all files here: ZooKeeper, bookies, an S3 server, nodes and controllers, each a process on loopback.

Tests end its processes, and start them again by what `processes.json` says.
"""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.demo.local_cluster import (
    ZOOKEEPER,
    ClusterNotReadyError,
    ClusterPlan,
    LocalCluster,
)
from segmentstore.demo.s3_gateway import built_gateway
from tests.integration.bookkeeper.registered_bookies import registered
from tests.integration.cluster.spreading import until_settled
from tests.integration.java_libraries import missing
from tier1.bookkeeper.jars import Part, build

SESSION_SECONDS = 15.0
"""Of nodes and controllers; a lease is 7/10 of it. Of the usual ten seconds a stall of five leaves a part of a second,
and what has lost its lease without a fault refuses what a test asks of it."""
PATIENT = (
    # A node that does not reach the bookies in time ends, and no supervisor starts it again here. The usual half a
    # minute was too little for its JVM and the first connections at a load of forty.
    "bookkeeper.start_seconds=120",
    f"cluster.session_seconds={SESSION_SECONDS:g}",
    # Behind it a node ends though it has containers: requests that it had taken are of unknown outcome.
    "cluster.drain_seconds=120",
    # Bookies share one disk, which may stall for seconds: no container is given up for that.
    "cluster.append_seconds=30",
    "cluster.recovery_seconds=120",
)
"""Settings of nodes and controllers on a machine that is busy with other tests."""


@pytest.fixture(scope="session")
def cluster_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    try:
        for part in Part:
            build(part)
        built_gateway()
    except InvalidRequestError as error:
        missing(f"nothing was run on a real cluster: {error}")
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), ClusterPlan(settings=PATIENT))
    try:
        asyncio.run(until_up(cluster))
        yield cluster
    finally:
        asyncio.run(cluster.down(signal.SIGKILL))


@pytest.fixture
def cluster(cluster_of_session: LocalCluster) -> LocalCluster:
    """Everything in it runs, and nothing is about to move; a test that ends a process need not start it again."""
    asyncio.run(until_up(cluster_of_session))
    asyncio.run(until_all_bookies_are_registered(cluster_of_session))
    asyncio.run(until_settled(cluster_of_session))
    return cluster_of_session


async def until_up(cluster: LocalCluster) -> None:
    """It is waited for three times: two minutes are little for all of its nodes together on a busy machine."""
    for is_last in (False, False, True):
        try:
            await cluster.up()
        except ClusterNotReadyError:
            if is_last:
                raise
        else:
            return


async def until_all_bookies_are_registered(cluster: LocalCluster) -> None:
    """One whose session ended in the test before may still listen, and end itself. However long it takes."""
    bookies = cluster.with_role("bookie")
    servers, ports = f"127.0.0.1:{cluster.of(ZOOKEEPER).port}", [each.port for each in bookies]
    while await asyncio.to_thread(registered, servers, ports) < len(ports):
        for each in bookies:
            cluster.start(each.name)
        await asyncio.sleep(0.2)
