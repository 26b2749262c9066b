"""The official client on real bookies keeps what a log builds on."""

import pytest

from tests.contracts.ledger_client_suite import LedgerClientSuite
from tests.integration.bookkeeper.cluster import Cluster

pytestmark = pytest.mark.integration


class TestJavaLedgerClient(LedgerClientSuite):
    @pytest.fixture
    def world(self, cluster: Cluster) -> Cluster:
        return cluster
