"""Values and sessions in a real ZooKeeper keep what a cluster builds on."""

import pytest

from segmentstore.coordination.zookeeper import ZooKeeperStore
from tests.contracts.coordination_store_suite import CoordinationStoreSuite
from tests.integration.bookkeeper.cluster import Cluster

pytestmark = pytest.mark.integration


class _World:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def store(self) -> ZooKeeperStore:
        return await self._cluster.session()


class TestZooKeeperStore(CoordinationStoreSuite):
    @pytest.fixture
    def world(self, cluster: Cluster) -> _World:
        return _World(cluster)
