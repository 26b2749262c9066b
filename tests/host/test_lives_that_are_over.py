"""Goal: a container's task ends with what it was begun for, also where the host never saw the assignment in between.

A host that idles does not notice that its log was fenced. What another host created meanwhile is unknown to it.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

import pytest

from segmentstore.contracts.containers import ContainerFailure, ContainerState, HostId
from segmentstore.contracts.errors import ContainerNotFoundError, StorageError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.runtime.cancellation import finish_despite_cancellation
from tests.host.managed_host import start_host
from tests.host.scripted_assignments import ScriptedAssignments
from tests.host.simple_container import SimpleContainer
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation
ZERO = ContainerId(0)


class SlowToEnd(SimpleContainer):
    """One that is not stopped while it starts, and works on for a while when it is told to stop."""

    def __init__(self, container_id: ContainerId, *, start_seconds: float) -> None:
        super().__init__(container_id)
        self.start_seconds = start_seconds

    async def start(self) -> None:
        with suppress(asyncio.CancelledError):
            await finish_despite_cancellation(super().start())

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await asyncio.sleep(25)


class FailsWhenStopped(SimpleContainer):
    """What stops its start ends with an error."""

    async def start(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise StorageError("the way to it was closed") from error


class SlowToReport(ScriptedAssignments):
    """The way there is long."""

    report_seconds = 0.0

    async def report(
        self,
        host_id: HostId,
        *,
        version: int,
        held: Mapping[ContainerId, int],
        running: Collection[ContainerId],
        failed: Collection[ContainerFailure] = (),
    ) -> None:
        await asyncio.sleep(self.report_seconds)
        await super().report(host_id, version=version, held=held, running=running, failed=failed)


def test_h24_a_container_that_another_host_had_meanwhile_gets_a_new_life() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0, 1)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        idle, other = host.newest(0), host.newest(1)
        assignments.assign(1)
        # No await: this host never sees the version in which it had container 0 no more.
        assignments.assign(0, 1)
        await asyncio.sleep(1)
        assert idle.state is ContainerState.STOPPED
        assert host.registry.get(ZERO) is host.newest(0) is not idle
        assert host.newest(1) is other
        assert host.registry.running() == [0, 1]
        assert assignments.failures == []
        await host.stop()

    run_simulation(1, main)


def test_a_container_that_stays_goes_on_living() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0, 1)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        for _version in range(5):
            assignments.assign(0)
            assignments.assign(0, 2)
            await asyncio.sleep(1)
        assert len(host.births_of(0)) == 1
        assert host.newest(0).state is ContainerState.RUNNING
        await host.stop()

    run_simulation(1, main)


@pytest.mark.parametrize("seconds", [0.0, 5.0], ids=["runs", "starts"])
def test_h24_nothing_is_asked_of_a_life_that_is_over_however_long_it_takes_to_end(
    seconds: float,
) -> None:
    def slow(container_id: ContainerId) -> SimpleContainer:
        return SlowToEnd(container_id, start_seconds=seconds)

    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments, slow, 1)
        await asyncio.sleep(1)
        old = host.newest(0)
        assignments.assign()
        assignments.assign(0)
        await asyncio.sleep(0.001)
        for _moment in range(400):
            with suppress(ContainerNotFoundError):
                assert host.registry.get(ZERO) is not old
            await asyncio.sleep(0.1)
        assert host.registry.get(ZERO) is host.newest(0)
        assert len(host.births_of(0)) == 2
        await host.stop()

    run_simulation(1, main)


def test_h24_a_life_ends_when_its_host_hears_of_it_not_when_a_report_has_arrived() -> None:
    async def main(_: SimLoop) -> None:
        assignments = SlowToReport(0, 1)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        await asyncio.sleep(5)
        assignments.report_seconds = 100.0
        host.newest(1).fail(StorageError("down"))
        await asyncio.sleep(1)
        assignments.assign()
        assignments.assign(0, 1)
        await asyncio.sleep(1)
        with pytest.raises(ContainerNotFoundError):
            host.registry.get(ZERO)
        await asyncio.sleep(200)
        assert len(host.births_of(0)) == 2
        await host.stop()

    run_simulation(1, main)


def test_m3_a_life_that_was_over_and_failed_does_not_keep_the_next_one_down() -> None:
    """It fails in its start, though it was told to stop: the assignment that gave the container anew is there already,
    and no later one comes."""

    def failing(container_id: ContainerId) -> SimpleContainer:
        made.append(FailsWhenStopped(container_id) if not made else SimpleContainer(container_id))
        return made[-1]

    made: list[SimpleContainer] = []

    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments, failing, 1)
        await asyncio.sleep(1)
        assignments.assign()
        assignments.assign(0)
        await asyncio.sleep(10)
        assert [(each.container_id, each.since) for each in assignments.failures] == [(ZERO, 1)]
        assert host.registry.running() == [ZERO]
        await host.stop()

    run_simulation(1, main)
