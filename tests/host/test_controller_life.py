"""The controller beside containers that recover, and end: in simulated time."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

import pytest

from segmentstore.codec.container_hash import container_of
from segmentstore.codec.controller_records.record_keys import (
    SCOPES_TABLE,
    TRANSACTIONS_TABLE,
    scope_table,
)
from segmentstore.contracts.errors import ContainerNotFoundError, DataCorruptionError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import Table
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.runtime.clock import SystemWallClock
from tests.host.simple_container import SimpleContainer
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

CONTAINERS = 64


class LateTables(MemoryTables):
    """Tables whose container recovers for a while, or is broken in some other way."""

    def __init__(self, recovered_at: float) -> None:
        super().__init__()
        self._recovered_at = recovered_at
        self.broken: Exception | None = None
        self.missing: set[str] = set()
        """Tables whose container is down while the others work."""
        self.starts = 0

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        if name in self.missing:
            raise ContainerNotFoundError(ContainerId(0), "failed: will not be restarted")
        return super().open_table(name)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        self.starts += name == SCOPES_TABLE
        if self.broken is not None:
            raise self.broken
        if asyncio.get_running_loop().time() < self._recovered_at:
            raise ContainerNotFoundError(ContainerId(0), "recovering")
        await super().create_table(name, key_length=key_length)


class World:
    """A controller over tables in memory, and a registry in which containers begin and end."""

    def __init__(self, loop: SimLoop, *, recovery_seconds: float = 0.0) -> None:
        self.loop = loop
        self.tables = LateTables(loop.time() + recovery_seconds)
        self.registry = ContainerRegistry(container_count=CONTAINERS)
        self.controller = Controller(
            segments=MemorySegments(),
            tables=self.tables,
            wall_clock=SystemWallClock(),
            random=Random(1),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        self.supervisor = ControllerSupervisor(controller=self.controller, containers=self.registry)
        self.running = loop.create_task(self.supervisor.run())

    def works(self) -> bool:
        return self.controller.is_ready

    @property
    def lives(self) -> float:
        return self.supervisor.metrics()["controller_lives_total"]

    def begins(self, table: str) -> SimpleContainer:
        """The container of that table."""
        container = SimpleContainer(container_of(table, CONTAINERS))
        self.registry.set_starting(container)
        self.registry.set_running(container)
        return container

    def ends(self, container: SimpleContainer) -> None:
        self.registry.set_absent(container, reason="moved", failed=False)

    async def stop(self) -> None:
        self.running.cancel()
        [outcome] = await asyncio.gather(self.running, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        assert not self.controller.is_ready


@pytest.mark.parametrize("recovery_seconds", [0.05, 0.31, 0.75, 4.0])
@pytest.mark.parametrize("is_told", [True, False])
def test_the_controller_is_ready_soon_after_its_containers(
    recovery_seconds: float, is_told: bool
) -> None:
    async def main(loop: SimLoop) -> None:
        begin = loop.time()
        world = World(loop, recovery_seconds=recovery_seconds)
        if is_told:
            loop.call_later(recovery_seconds, world.begins, SCOPES_TABLE)
        await world.supervisor.wait_until_recovered()
        late = loop.time() - begin - recovery_seconds
        late_max = 0.01 if is_told else 0.03 + recovery_seconds / 4
        assert late <= late_max, f"late={late:.3f}"
        await world.stop()

    run_simulation(1, main)


@pytest.mark.parametrize("table", [SCOPES_TABLE, TRANSACTIONS_TABLE, scope_table("s", 1)])
def test_a_life_ends_with_a_container_of_its_tables_and_the_next_one_begins_with_it(
    table: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop)
        container = world.begins(table)
        await world.supervisor.wait_until_recovered()
        await world.controller.components.scopes.create("s")
        await world.controller.components.scopes.streams("s", after="", count=1)
        components = world.controller.components
        world.tables.broken = ContainerNotFoundError(container.container_id, "moved")
        world.ends(container)
        await asyncio.sleep(1.0)
        assert not world.works()
        assert world.supervisor.complaints()
        world.tables.broken = None
        began = loop.time()
        world.begins(table)
        while not world.works():
            await asyncio.sleep(0.001)
        assert loop.time() - began < 0.01
        assert world.lives == 2
        assert world.controller.components is not components
        assert world.controller.components.clock_watch is components.clock_watch
        await world.stop()

    run_simulation(1, main)
    assert "the controller starts anew" in caplog.text


def test_a_container_that_stays_away_takes_only_its_own_scopes_with_it() -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop)
        container = world.begins(scope_table("s", 1))
        await world.supervisor.wait_until_recovered()
        for scope in ("s", "other"):
            await world.controller.components.scopes.create(scope)
        # The first time it may be back soon, and is waited for; later it is known to be away.
        for patience in (15.0, 0.5, 0.5):
            began = loop.time()
            await world.controller.components.scopes.streams("other", after="", count=1)
            await world.controller.components.metadata.scope_table("s")
            world.tables.missing = {scope_table("s", 1)}
            world.ends(container)
            await asyncio.sleep(0.1)
            while not world.works():
                await asyncio.sleep(0.1)
            assert loop.time() - began < patience
            await world.controller.components.scopes.streams("other", after="", count=1)
            assert any("scope s" in each for each in world.supervisor.complaints())
            assert world.controller.is_incomplete
            world.tables.missing = set()
            container = world.begins(scope_table("s", 1))
            await asyncio.sleep(11.0)
            assert world.controller.complaints() == []
        await world.stop()

    run_simulation(1, main)


def test_a_container_without_tables_may_end_and_the_life_goes_on() -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop)
        await world.supervisor.wait_until_recovered()
        mine = {container_of(name, CONTAINERS) for name in (SCOPES_TABLE, TRANSACTIONS_TABLE)}
        other = next(n for n in range(CONTAINERS) if ContainerId(n) not in mine)
        container = SimpleContainer(ContainerId(other))
        world.registry.set_starting(container)
        world.registry.set_running(container)
        world.ends(container)
        await asyncio.sleep(1.0)
        assert world.works()
        assert world.lives == 1
        await world.stop()

    run_simulation(1, main)


def test_an_attempt_that_hangs_on_a_container_ends_with_it() -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop)
        container = world.begins(SCOPES_TABLE)
        works = world.tables.create_table
        hangs = asyncio.Event()

        async def create_table(name: str, *, key_length: int = 0) -> None:
            hangs.set()
            await asyncio.Event().wait()

        world.tables.create_table = create_table  # type: ignore[method-assign]
        await hangs.wait()
        world.tables.create_table = works  # type: ignore[method-assign]
        world.ends(container)
        await world.supervisor.wait_until_recovered()
        await world.stop()

    run_simulation(1, main)


@pytest.mark.parametrize("error", [DataCorruptionError("bytes"), ValueError("our bug")])
def test_what_breaks_the_start_is_told_and_tried_again_in_pauses_that_grow(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop)
        world.tables.broken = error
        await asyncio.sleep(100.0)
        assert 20 < world.tables.starts < 50
        assert world.supervisor.complaints() == [f"the controller does not work now: {error}"]
        world.tables.broken = None
        await asyncio.sleep(10.0)
        assert world.works()
        await world.stop()

    run_simulation(1, main)
    assert f"{error}" in caplog.text


def test_work_that_breaks_again_and_again_is_begun_again_in_pauses_that_grow(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: SimLoop) -> None:
        broken = True

        async def run() -> None:
            if broken:
                raise ValueError("our bug")
            await asyncio.Event().wait()

        world = World(loop)
        build = world.controller._build

        def built(**rest: object) -> object:
            components = build(**rest)  # type: ignore[arg-type]
            components.auto_scale.run = run  # type: ignore[method-assign]
            return components

        world.controller._build = built  # type: ignore[assignment]
        world.controller.components.auto_scale.run = run  # type: ignore[method-assign]
        await asyncio.sleep(100.0)
        assert 20 < world.lives < 50
        broken = False
        await asyncio.sleep(10.0)
        assert world.works()
        await world.stop()

    with caplog.at_level(logging.ERROR):
        run_simulation(1, main)
    assert "our bug" in caplog.text


def test_lives_that_end_with_their_containers_one_behind_the_other_make_no_longer_pauses() -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop)
        container = world.begins(SCOPES_TABLE)
        await world.supervisor.wait_until_recovered()
        # As in a cluster: it is told when a container is given to a node, which recovers it for a while.
        for _ in range(40):
            await asyncio.sleep(5.0)
            world.tables.broken = ContainerNotFoundError(container.container_id, "recovering")
            world.ends(container)
            container = world.begins(SCOPES_TABLE)
            await asyncio.sleep(2.0)
            assert not world.works()
            world.tables.broken = None
            began = loop.time()
            while not world.works():
                await asyncio.sleep(0.01)
            assert loop.time() - began <= 1.1
        await world.stop()

    run_simulation(1, main)


def test_scopes_are_resumed_side_by_side() -> None:
    reads = 0

    class SlowTables(MemoryTables):
        """Each table takes a while to be reached, as over a network."""

        @asynccontextmanager
        async def open_table(self, name: str) -> AsyncIterator[Table]:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.01)
            async with super().open_table(name) as table:
                yield table

    async def main(loop: SimLoop) -> None:
        tables = SlowTables()
        controller = Controller(
            segments=MemorySegments(),
            tables=tables,
            wall_clock=SystemWallClock(),
            random=Random(1),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        await controller.start()
        for number in range(320):
            await controller.components.scopes.create(f"scope{number}")
        nonlocal reads
        reads, began = 0, loop.time()
        await controller.start()
        assert reads > 320
        assert loop.time() - began < 0.01 * reads / 16

    run_simulation(1, main)
