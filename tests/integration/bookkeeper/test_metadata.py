"""Values in a real ZooKeeper keep what a log builds on."""

import pytest

from tests.contracts.metadata_store_suite import MetadataStoreSuite
from tests.integration.bookkeeper.cluster import Cluster

pytestmark = pytest.mark.integration


class TestZooKeeperMetadataStore(MetadataStoreSuite):
    @pytest.fixture
    def world(self, cluster: Cluster) -> Cluster:
        return cluster
