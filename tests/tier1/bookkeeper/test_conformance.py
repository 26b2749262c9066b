"""The log on BookKeeper keeps the promises of every log, on bookies that answer at once."""

import pytest

from tests.contracts.durable_data_log_suite import LogWithoutReserveSuite
from tests.tier1.bookkeeper.worlds import BookKeeperLogWorld


class TestOnSimulatedBookies(LogWithoutReserveSuite):
    @pytest.fixture
    def world(self) -> BookKeeperLogWorld:
        return BookKeeperLogWorld()
