"""The simulated coordination store keeps what a real one keeps."""

from random import Random

import pytest

from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.contracts.coordination_store_suite import CoordinationStoreSuite
from tests.tier1.bookkeeper.simulated_network import Network


class _World:
    def __init__(self) -> None:
        self._coordination = SimulatedCoordination(Random(1))

    async def store(self) -> SimulatedSession:
        return await SimulatedSession.connect(self._coordination, Network(Random(2)))


class TestSimulatedCoordination(CoordinationStoreSuite):
    @pytest.fixture
    def world(self) -> _World:
        return _World()
