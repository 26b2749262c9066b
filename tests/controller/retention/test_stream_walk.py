"""What looks at streams in the background gets round to all of them, whatever state other scopes are in."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from segmentstore.codec.controller_records.scope_records import ScopeState
from segmentstore.codec.controller_records.stream_records import (
    RetentionCut,
    RetentionCutsRecord,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfigurationRecord,
)
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.contracts.tables import Table, TableEntry
from segmentstore.controller import writer_marks
from segmentstore.controller.components import ControllerComponents
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import scope_key
from segmentstore.controller.retention import cuts_key
from segmentstore.controller.streams import stream_history
from segmentstore.controller.streams.stream_history import all_streams
from tests.controller.crashing_doors import CrashingTable
from tests.controller.transactions.feature_cluster import FeatureCluster
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTable, MemoryTables

STREAMS = 12
PER_READ = 4


def unexpected(scope: str, error: SegmentStoreError) -> None:
    raise AssertionError(f"scope {scope} does not answer") from error


async def turns_of_others_during(work: Awaitable[None]) -> int:
    """How often another task has its turn."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await asyncio.sleep(0)
    before = turns
    await work
    task.cancel()
    return turns - before


async def test_a_scope_whose_deletion_does_not_end_puts_off_no_other() -> None:
    cluster = FeatureCluster()
    await cluster.start()
    for scope in ("a", "s"):
        await cluster.scopes.create(scope)
    await cluster.create("x")
    known = await cluster.metadata.scopes.read(scope_key("a"))
    assert known.record is not None
    batch = Batch()
    batch.put(scope_key("a"), replace(known.record, state=ScopeState.DELETING), known)
    await cluster.metadata.scopes.commit(batch)
    async with aclosing(all_streams(cluster.metadata, on_unreadable=unexpected)) as streams:
        found = [(walked.scope, walked.stream) async for walked in streams]
    assert ("s", "x") in found
    await cluster.components.watermarks.look_at_all()


async def test_a_scope_whose_table_does_not_answer_puts_off_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FeatureCluster()
    await cluster.start()
    for scope in ("a", "s"):
        await cluster.scopes.create(scope)
    policy = RetentionPolicy(type=RetentionType.SIZE, limit=0)
    by_rate = ScalingPolicy(
        type=ScalingType.EVENTS_PER_SECOND, target_rate=1000, scale_factor=2, segment_count_min=1
    )
    for scope in ("a", "s"):
        await cluster.streams.create(
            scope, "x", StreamConfigurationRecord(scaling=by_rate, retention=policy)
        )
    watched = cluster.components.auto_scale
    await watched.look_at_all()
    await cluster.components.writer_marks.note_time("s", "x", "writer", 1, {0: 0})
    open_table = cluster.tables.open_table

    def open_or_refuse(name: str) -> AbstractAsyncContextManager[Table]:
        if name.startswith("_system/_tables/a/"):
            raise ContainerNotFoundError(ContainerId(3), "failed: will not be restarted")
        return open_table(name)

    monkeypatch.setattr(cluster.tables, "open_table", open_or_refuse)
    await cluster.components.retention.look_at_all()
    history = await cluster.streams.operations.history("s", "x")
    assert (await history.table.read(cuts_key("x"))).record is not None
    watched._refreshed_at = None
    await watched.look_at_all()
    assert sorted(watched._watched) == [("a", "x"), ("s", "x")]
    await cluster.components.watermarks.look_at_all()
    assert cluster.memory_segments.content("s/_MARKx/0.#epoch.0")


def answer_without_a_turn_of_the_loop(patch: pytest.MonkeyPatch) -> None:
    """As the tables and segments of a store in this process do with what is in memory."""

    @asynccontextmanager
    async def opened(tables: MemoryTables, name: str) -> AsyncIterator[Table]:
        yield MemoryTable(tables, tables._find(name))

    def get_nowait(
        table: CrashingTable, keys: Sequence[bytes]
    ) -> Sequence[TableEntry | None] | None:
        return table._table.get_nowait(keys)

    async def list_segments(
        segments: MemorySegments, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        names = [each for each in segments.names() if each.startswith(prefix)]
        return [segments._segments[each].properties() for each in names[:limit]]

    patch.setattr(MemoryTables, "_open", opened)
    patch.setattr(CrashingTable, "get_nowait", get_nowait)
    patch.setattr(MemorySegments, "list_segments", list_segments)


@pytest.mark.parametrize(
    ("look", "turns_min"),
    [
        # Each stream has a mark stream beside it.
        (lambda it: it.retention._look_for_rules_of_age(), 2 * STREAMS // PER_READ),
        (lambda it: it.auto_scale.look_at_all(), STREAMS + 2 * STREAMS // PER_READ),
        (lambda it: it.watermarks.look_at_all(), 2 * STREAMS + 4),
    ],
    ids=["retention", "scaling", "watermarks"],
)
async def test_others_run_while_all_streams_are_looked_at(
    look: Callable[[ControllerComponents], Awaitable[None]],
    turns_min: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With some thousand streams the process stood still for half a second, every minute."""
    cluster = FeatureCluster()
    await cluster.start()
    await cluster.scopes.create("s")
    by_rate = ScalingPolicy(
        type=ScalingType.EVENTS_PER_SECOND, target_rate=1000, scale_factor=2, segment_count_min=1
    )
    marks = cluster.components.writer_marks
    for number in range(STREAMS):
        await cluster.streams.create("s", f"x{number}", StreamConfigurationRecord(scaling=by_rate))
        await marks.note_time("s", f"x{number}", "writer", 1, {0: 0})
    for number in range(STREAMS):
        await marks.note_time("s", "x0", f"writer{number}", 1, {0: 0})
    # Nothing is due any more.
    await cluster.components.watermarks.look_at_all()
    monkeypatch.setattr(stream_history, "_NAMES_PER_READ", PER_READ)
    monkeypatch.setattr(writer_marks, "_NAMES_PER_READ", PER_READ)
    answer_without_a_turn_of_the_loop(monkeypatch)
    assert await turns_of_others_during(look(cluster.components)) >= turns_min


async def test_others_run_while_the_many_cuts_of_a_stream_are_read_and_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream of a hundred segments has 25,000 offsets in its cuts: reading them in one stretch took 100 ms."""
    count = 64
    cluster = FeatureCluster()
    await cluster.start()
    await cluster.scopes.create("s")
    policy = RetentionPolicy(type=RetentionType.SIZE, limit=1 << 40)
    await cluster.streams.create("s", "x", StreamConfigurationRecord(retention=policy))
    cuts = tuple(RetentionCut(1_000 + number, number, {0: number}) for number in range(count))
    history = await cluster.streams.operations.history("s", "x")
    key = cuts_key("x")
    batch = Batch()
    batch.put(key, key.decode(RetentionCutsRecord(cuts).encode()), await history.table.read(key))
    await history.table.commit(batch)
    answer_without_a_turn_of_the_loop(monkeypatch)
    assert await turns_of_others_during(cluster.components.retention.look_at("s", "x")) >= count
    known = (await history.table.read(key)).record
    assert known is not None
    after = RetentionCutsRecord.decode(known.encode())
    assert after.cuts[:count] == cuts
    assert [dict(cut.offsets) for cut in after.cuts[count:]] == [{0: 0}]
