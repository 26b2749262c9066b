"""Merges and updates of a table that wait while a backup of the whole store is made."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from containers.held_changes import HELD_UPDATES_MAX
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.containers import BACKUP_HOLD_SECONDS_MAX
from segmentstore.contracts.errors import (
    BackupInterruptedError,
    SegmentStoreError,
    TooManyWaitersError,
)
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry
from tests.containers.node import MemoryTiers, running
from tests.containers.test_segment_container import append, read_all
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

HELD = ["table"]
TURNS = 100
"""Enough for a merge or an update that does not wait."""


def run(main: Callable[[StreamSegmentContainer], Coroutine[Any, Any, None]]) -> None:
    async def simulated(_: SimLoop) -> None:
        async with running(MemoryTiers()) as container:
            await container.create("a")
            await container.create("a#transaction.00000000000000000000000000000001")
            await append(container, SOURCE, b"of a transaction")
            for name in ("table", "other"):
                await container.create_table(name)
            await main(container)

    run_simulation(1, simulated)


SOURCE = "a#transaction.00000000000000000000000000000001"


def merging(container: StreamSegmentContainer, *, many: bool) -> asyncio.Future[Any]:
    if many:
        return asyncio.ensure_future(container.merge_all("a", [SOURCE], seal_sources=True))
    return asyncio.ensure_future(container.merge("a", SOURCE, seal_source=True))


async def put(container: StreamSegmentContainer, name: str, key: bytes) -> None:
    async with container.open_table(name) as table:
        await table.update([TableEntry(key, b"value", NOT_EXISTS)])


async def has(container: StreamSegmentContainer, name: str, key: bytes) -> bool:
    async with container.open_table(name) as table:
        return (await table.get([key]))[0] is not None


def lengths(container: StreamSegmentContainer) -> list[int]:
    """What is durable of the target and of the table, told without a wait."""
    found = [container.container_metadata.get(name) for name in ("a", "table")]
    return [each.length for each in found if each is not None]


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def both_begun(container: StreamSegmentContainer, *, many: bool) -> list[asyncio.Future[Any]]:
    """A merge and an update of the table, and time for both to end if nothing holds them."""
    waiting: list[asyncio.Future[Any]] = [
        merging(container, many=many),
        asyncio.ensure_future(put(container, "table", b"1")),
    ]
    await turns()
    return waiting


@pytest.mark.parametrize("many", [False, True])
def test_what_is_held_waits_and_everything_else_goes_on(many: bool) -> None:
    async def main(container: StreamSegmentContainer) -> None:
        await container.backups.hold("h", HELD)
        waiting = await both_begun(container, many=many)
        assert not any(each.done() for each in waiting)
        await append(container, "a", b"by a writer, ")
        await put(container, "other", b"1")
        assert not await has(container, "table", b"1")
        made = await container.backups.make("monday", hold_id="h")
        assert made.name == "monday"
        assert not any(each.done() for each in waiting)
        assert container.backups.is_held("h")
        container.backups.let_go("h")
        await asyncio.gather(*waiting)
        assert await read_all(container, "a") == b"by a writer, of a transaction"
        assert await has(container, "table", b"1")
        assert not container.backups.is_held("h")

    run(main)


@pytest.mark.parametrize("what", ["merge", "merge_all", "update"])
def test_what_was_begun_before_is_durable_when_all_is_held(what: str) -> None:
    async def main(container: StreamSegmentContainer) -> None:
        for before in range(30):
            source = f"a#transaction.{before + 2:032x}"
            await container.create(source)
            await append(container, source, b"x")
            if what == "update":
                work: Coroutine[Any, Any, Any] = put(container, "table", b"%d" % before)
            elif what == "merge":
                work = container.merge("a", source, seal_source=True)
            else:
                work = container.merge_all("a", [source], seal_sources=True)
            begun = asyncio.ensure_future(work)
            for _ in range(before):
                await asyncio.sleep(0)
            # The caller leaves; what it has submitted is on its way.
            begun.cancel()
            await container.backups.hold(f"h{before}", HELD if what == "update" else [])
            there = lengths(container)
            await turns()
            assert lengths(container) == there
            assert container.backups.is_held(f"h{before}")
            container.backups.let_go(f"h{before}")
            await asyncio.gather(begun, return_exceptions=True)

    run(main)


def test_an_update_whose_caller_has_left_is_not_made() -> None:
    async def main(container: StreamSegmentContainer) -> None:
        await container.backups.hold("h", HELD)
        leaving = asyncio.ensure_future(put(container, "table", b"1"))
        await turns()
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        container.backups.let_go("h")
        await put(container, "table", b"2")
        assert not await has(container, "table", b"1")

    run(main)


def test_updates_that_wait_are_made_in_order_and_bounded() -> None:
    async def main(container: StreamSegmentContainer) -> None:
        await container.backups.hold("h", HELD)
        async with container.open_table("table") as table:
            updates = [
                table.update([TableEntry(b"k", b"%d" % number)])
                for number in range(HELD_UPDATES_MAX)
            ]
            with pytest.raises(TooManyWaitersError):
                await table.update([TableEntry(b"k", b"one too many")])
            container.backups.let_go("h")
            await asyncio.gather(*updates)
            (found,) = await table.get([b"k"])
            assert found is not None
            assert found.value == b"%d" % (HELD_UPDATES_MAX - 1)

    run(main)


def test_a_hold_ends_by_itself_and_no_snapshot_is_taken_late_in_it() -> None:
    async def main(container: StreamSegmentContainer) -> None:
        backups = container.backups
        await backups.hold("h", HELD)
        merge = merging(container, many=False)
        await asyncio.sleep(BACKUP_HOLD_SECONDS_MAX * 0.6)
        with pytest.raises(BackupInterruptedError, match="make it again"):
            await backups.make("monday", hold_id="h")
        assert not merge.done()
        await asyncio.sleep(BACKUP_HOLD_SECONDS_MAX * 0.6)
        await merge
        assert not backups.is_held("h")
        with pytest.raises(BackupInterruptedError):
            await backups.make("monday", hold_id="h")
        assert await backups.list() == []

    run(main)


def test_there_is_one_hold_at_a_time() -> None:
    async def main(container: StreamSegmentContainer) -> None:
        backups = container.backups
        await backups.hold("h", HELD)
        await backups.hold("h", HELD)
        with pytest.raises(BackupInterruptedError, match="another backup is being made"):
            await backups.hold("i", HELD)
        with pytest.raises(BackupInterruptedError):
            await backups.make("monday", hold_id="i")
        backups.let_go("i")
        assert backups.is_held("h")
        backups.let_go("h")
        await backups.hold("j", HELD)
        assert backups.is_held("j")

    run(main)


def test_a_hold_that_its_end_has_overtaken_is_refused() -> None:
    async def main(container: StreamSegmentContainer) -> None:
        backups = container.backups
        await backups.hold("other", HELD)
        backups.let_go("h")
        assert backups.is_held("other")
        backups.let_go("other")
        for ended in ("h", "other"):
            with pytest.raises(BackupInterruptedError, match="given up"):
                await backups.hold(ended, HELD)
        await put(container, "table", b"1")

    run(main)


def test_what_waits_at_a_container_that_ends_is_told() -> None:
    async def main(container: StreamSegmentContainer) -> None:
        await container.backups.hold("h", HELD)
        waiting = await both_begun(container, many=True)
        await container.close()
        for each in waiting:
            with pytest.raises(SegmentStoreError):
                await each

    run(main)
