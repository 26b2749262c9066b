"""The log on a real BookKeeper keeps the promises of every log."""

import pytest

from tests.contracts.durable_data_log_suite import LogWithoutReserveSuite
from tests.integration.bookkeeper.cluster import Cluster
from tests.integration.bookkeeper.log_owners import LogOwners

pytestmark = pytest.mark.integration


class TestBookKeeperDurableDataLog(LogWithoutReserveSuite):
    @pytest.fixture
    async def world(self, cluster: Cluster) -> LogOwners:
        return await LogOwners.started(cluster)
