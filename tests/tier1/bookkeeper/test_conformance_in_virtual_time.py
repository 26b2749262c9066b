"""The log on BookKeeper keeps the promises of every log, on bookies whose answers take time and come in any order."""

from random import Random

import pytest

from tests.contracts.durable_data_log_suite import LogWithoutReserveSuite
from tests.tier1.bookkeeper.simulated_network import Network
from tests.tier1.bookkeeper.worlds import BookKeeperLogWorld


class TestOnSlowBookies(LogWithoutReserveSuite):
    @pytest.fixture
    def world(self) -> BookKeeperLogWorld:
        return BookKeeperLogWorld(
            network=Network(Random(7), message_seconds=0.001), sync_seconds=0.002
        )
