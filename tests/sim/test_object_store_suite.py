"""With faults off, the simulated object store is an object store like any other. The suite runs in virtual time."""

import asyncio

import pytest

from segmentstore.contracts.object_store import ObjectStore
from tests.contracts.object_store_suite import ObjectStoreSuite
from tests.sim.loop import SimLoop
from tests.sim.object_store import SimulatedObjectStore

pytestmark = pytest.mark.simulation


class TestSimulatedObjectStore(ObjectStoreSuite):
    @pytest.fixture
    async def shared(self) -> SimulatedObjectStore:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return SimulatedObjectStore(loop, loop.random, strict=False)

    @pytest.fixture
    async def store(self, shared: SimulatedObjectStore) -> ObjectStore:
        return shared.mount()

    @pytest.fixture
    async def second_store(self, shared: SimulatedObjectStore) -> ObjectStore:
        return shared.mount()
