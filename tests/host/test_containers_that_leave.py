"""M5: a container that is given to none serves while its log is shortened, and ends in any case."""

import asyncio
from collections.abc import Callable

from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import ContainerId
from tests.host.managed_host import Host, start_host
from tests.host.scripted_assignments import ScriptedAssignments
from tests.host.simple_container import SimpleContainer

C = ContainerId(0)
PATIENCE_SECONDS = 10.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.001)


def container_that_shortens(
    seconds: float, error: Exception | None = None
) -> Callable[[ContainerId], SimpleContainer]:
    def make(container_id: ContainerId) -> SimpleContainer:
        container = SimpleContainer(container_id)
        container.shorten_seconds, container.shortened = seconds, error
        return container

    return make


async def started(
    make: Callable[[ContainerId], SimpleContainer], shorten_seconds: float = PATIENCE_SECONDS
) -> tuple[ScriptedAssignments, Host]:
    assignments = ScriptedAssignments(0)
    host = start_host(assignments, make, shorten_seconds=shorten_seconds)
    await until(lambda: C in host.registry.running())
    return assignments, host


async def test_it_serves_until_its_log_is_short_and_ends_then() -> None:
    assignments, host = await started(container_that_shortens(0.2))
    assignments.assign()
    await asyncio.sleep(0.1)
    assert host.registry.running() == [C]
    await until(lambda: host.newest(0).state is ContainerState.STOPPED)
    assert not assignments.failures
    await host.stop()


async def test_given_anew_meanwhile_it_gets_no_request_any_more() -> None:
    assignments, host = await started(container_that_shortens(PATIENCE_SECONDS))
    first = host.newest(0)
    assignments.assign()
    await asyncio.sleep(0.05)
    assert host.registry.running() == [C]
    assignments.assign(0)
    await until(lambda: first.state is ContainerState.STOPPED)
    await until(lambda: C in host.registry.running())
    assert host.newest(0) is not first
    await host.stop()


async def test_it_ends_though_its_log_stays_long() -> None:
    for make, seconds in (
        (container_that_shortens(0, StorageError("tier 2 is away")), PATIENCE_SECONDS),
        (container_that_shortens(PATIENCE_SECONDS), 0.05),
    ):
        assignments, host = await started(make, seconds)
        assignments.assign()
        await until(lambda host=host: host.newest(0).state is ContainerState.STOPPED)  # type: ignore[misc]
        await host.stop()


async def test_one_that_fails_while_it_leaves_is_reported() -> None:
    assignments, host = await started(container_that_shortens(PATIENCE_SECONDS))
    assignments.assign()
    await asyncio.sleep(0.05)
    host.newest(0).fail(StorageError("no more"))
    await until(lambda: bool(assignments.failures))
    assert not host.registry.running()
    await host.stop()


async def test_the_end_of_the_session_does_not_wait_for_a_short_log() -> None:
    assignments, host = await started(container_that_shortens(PATIENCE_SECONDS))
    assignments.assign()
    await asyncio.sleep(0.05)
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        await host.stop()
