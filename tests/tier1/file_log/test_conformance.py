"""The file log keeps the door's promises, on the simulated disk and on a real one."""

from pathlib import Path

import pytest

from tests.contracts.durable_data_log_suite import LogWithReserveSuite
from tests.tier1.file_log.worlds import DirectoryLogWorld, SimulatedLogWorld


class TestOnSimulatedDisk(LogWithReserveSuite):
    @pytest.fixture
    def world(self) -> SimulatedLogWorld:
        return SimulatedLogWorld()


class TestInDirectory(LogWithReserveSuite):
    @pytest.fixture
    def world(self, tmp_path: Path) -> DirectoryLogWorld:
        return DirectoryLogWorld(f"{tmp_path}/log")
