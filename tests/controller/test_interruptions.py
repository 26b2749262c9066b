"""A call fails in the middle while the process goes on, and no caller asks again: what it began is finished.

Method: every call through the doors fails once, for each operation, before it takes effect or behind it; or takes so
long that the caller leaves before it takes effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import product
from random import Random
from typing import NoReturn, TypeVar

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import ContainerStoppedError, SegmentStoreError
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.errors import (
    EpochNotFoundError,
    RetryLaterError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from tests.controller.crashing_doors import CrashPlan
from tests.controller.far_tables import FarTable, FarTables, turns
from tests.controller.transactions.feature_cluster import FeatureCluster
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

Outcome = TypeVar("Outcome")

INDEXES = (PENDING_INDEX, "unfinished-groups", "unfinished-tables")


class Failure(Enum):
    """What becomes of the call that fails."""

    BEFORE = "before its effect"
    BEHIND = "behind its effect"
    LATE = "later than the caller waits"


class FailingPlan(CrashPlan):
    """One call fails, and all others go through."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self._failure = failure

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        fails = self.count == self.die_at
        if fails and self._failure is Failure.BEFORE:
            raise ContainerStoppedError("before")
        if fails and self._failure is Failure.LATE:
            await asyncio.sleep(5)
        outcome = await call()
        if fails and self._failure is Failure.BEHIND:
            raise ContainerStoppedError("behind")
        return outcome


async def delete_scope(cluster: FeatureCluster) -> None:
    await cluster.scopes.delete("s")


async def create_group(cluster: FeatureCluster) -> None:
    config = api.ReaderGroupConfiguration(scope="s", readerGroupName="g", readerGroupId="1")
    await cluster.components.reader_groups.create(config)


async def delete_group(cluster: FeatureCluster) -> None:
    info = api.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId="1")
    await cluster.components.reader_groups.delete(info)


async def create_table(cluster: FeatureCluster) -> None:
    config = api.KeyValueTableConfig(scope="s", kvtName="t", partitionCount=2, primaryKeyLength=3)
    await cluster.components.key_value_tables.create(config)


async def delete_table(cluster: FeatureCluster) -> None:
    info = api.KeyValueTableInfo(scope="s", kvtName="t")
    await cluster.components.key_value_tables.delete(info)


async def create_stream(cluster: FeatureCluster) -> None:
    await cluster.create("a", segments=2)


async def seal_stream(cluster: FeatureCluster) -> None:
    await cluster.streams.seal("s", "a")


async def nothing(_: FeatureCluster) -> None:
    return


Verb = Callable[[FeatureCluster], Awaitable[None]]


async def is_interrupted(before: Verb, verb: Verb, *, fail_at: int, failure: Failure) -> bool:
    """Whether the operation has so many calls."""
    cluster = FeatureCluster()
    cluster.plan = FailingPlan(failure)
    cluster._build()
    await cluster.start()
    await cluster.scopes.create("s")
    await before(cluster)
    cluster.plan.arm(die_at=fail_at, behind=False)
    with suppress(SegmentStoreError, TimeoutError):
        async with asyncio.timeout(1):
            await verb(cluster)
    fails = cluster.plan.count >= fail_at
    components = cluster.components
    runs = (
        components.scopes.run,
        components.reader_groups.items.run,
        components.key_value_tables.items.run,
    )
    work = [asyncio.ensure_future(run()) for run in (*runs, components.streams.operations.run)]
    await asyncio.sleep(60)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    assert not (await cluster.metadata.scopes.names(PENDING_INDEX, count=1)).names
    with suppress(ScopeNotFoundError):
        table = await cluster.metadata.scope_table("s")
        for index in INDEXES:
            left = (await table.names(index, count=10)).names
            assert not left, f"call {fail_at} {failure.value} left {left} in {index}"
    return fails


@pytest.mark.parametrize(
    ("before", "verb"),
    [
        (nothing, delete_scope),
        (nothing, create_group),
        (create_group, delete_group),
        (nothing, create_table),
        (create_table, delete_table),
        (nothing, create_stream),
        (create_stream, seal_stream),
    ],
    ids=[
        "delete scope",
        "create group",
        "delete group",
        "create table",
        "delete table",
        "create stream",
        "seal stream",
    ],
)
@pytest.mark.parametrize("failure", Failure)
def test_what_a_failing_door_interrupts_is_finished_though_nobody_asks_again(
    before: Verb, verb: Verb, failure: Failure
) -> None:
    async def main(_: SimLoop) -> int:
        fail_at = 1
        while await is_interrupted(before, verb, fail_at=fail_at, failure=failure):
            fail_at += 1
        return fail_at

    assert run_simulation(1, main).result > 3


def test_an_operation_is_taken_up_again_also_if_its_scope_did_not_answer_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(_: SimLoop) -> None:
        cluster = FeatureCluster()
        cluster.plan = FailingPlan(Failure.BEFORE)
        cluster._build()
        await cluster.start()
        await cluster.scopes.create("s")
        cluster.plan.arm(die_at=2, behind=False)
        with pytest.raises(ContainerStoppedError):
            await create_stream(cluster)
        table = await cluster.metadata.scope_table("s")
        assert (await table.names(PENDING_INDEX, count=1)).names == ["a"]

        def refuse(_: str) -> NoReturn:
            raise ContainerStoppedError("the table's container is elsewhere")

        work = asyncio.ensure_future(cluster.streams.operations.run())
        with monkeypatch.context() as patch:
            patch.setattr(cluster.tables, "open_table", refuse)
            await asyncio.sleep(5)
        await asyncio.sleep(30)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert not (await table.names(PENDING_INDEX, count=1)).names

    run_simulation(1, main)


def test_an_epoch_on_its_way_is_not_shown() -> None:
    """Its segments may not exist yet."""

    async def main(_: SimLoop) -> None:
        cluster = FeatureCluster()
        cluster.plan = FailingPlan(Failure.BEFORE)
        cluster._build()
        await cluster.start()
        await cluster.scopes.create("s")
        await create_stream(cluster)
        cluster.plan.arm(die_at=2, behind=False)
        with pytest.raises(ContainerStoppedError):
            await cluster.scale("a", [(0.0, 1.0)])
        with pytest.raises(EpochNotFoundError):
            await cluster.streams.queries.epoch_segments("s", "a", 1)
        await cluster.resume_operations()
        assert len(await cluster.streams.queries.epoch_segments("s", "a", 1)) == 1

    run_simulation(1, main)


def test_a_call_again_finds_the_intent_that_the_call_before_left_on_its_way() -> None:
    """Its table is on another node: a look is answered before the batch that was sent ahead of it is written."""

    async def main(_: SimLoop) -> int:
        left = 0
        for cancel_after, seed in product(range(2, 60), range(3)):
            cluster = FeatureCluster()
            cluster.memory_tables = FarTables(Random(seed))
            cluster._build()
            await cluster.start()
            await cluster.scopes.create("s")
            await create_stream(cluster)
            await seal_stream(cluster)
            first = asyncio.ensure_future(cluster.streams.delete("s", "a"))
            await turns(cancel_after)
            table = await cluster.metadata.scope_table("s")
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            with suppress(RetryLaterError):
                table.require_settled()
                left -= 1
            left += 1
            with suppress(StreamNotFoundError):
                await cluster.streams.delete("s", "a")
            assert not (await table.names(PENDING_INDEX, count=1)).names
        return left

    assert run_simulation(1, main).result > 3


def test_only_calls_on_the_same_stream_wait_for_an_intent_that_stays_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the log is full. What was broken off of another stream is taken up beside it."""

    async def main(_: SimLoop) -> None:
        cluster = FeatureCluster()
        cluster.memory_tables = FarTables(Random(1))
        cluster._build()
        await cluster.start()
        await cluster.scopes.create("s")
        await create_stream(cluster)
        await cluster.create("b")
        update = FarTable.update
        held: list[asyncio.Future[None]] = []

        def held_update(
            table: FarTable, entries: Sequence[TableEntry], *, offset: int | None = None
        ) -> "asyncio.Future[Sequence[int]]":
            going_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            held.append(going_on)

            async def later() -> Sequence[int]:
                await going_on
                return await update(table, entries, offset=offset)

            return asyncio.ensure_future(later())

        async def leave(stream: str) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(FarTable, "update", held_update)
                call = asyncio.ensure_future(cluster.streams.seal("s", stream))
                count = len(held)
                while len(held) == count:
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)

        work = asyncio.ensure_future(cluster.streams.operations.run())
        await leave("a")
        async with asyncio.timeout(5):
            await cluster.streams.seal("s", "b")
        again = asyncio.ensure_future(cluster.streams.seal("s", "a"))
        await asyncio.sleep(5)
        assert not again.done()
        held[0].set_result(None)
        async with asyncio.timeout(5):
            await again
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        table = await cluster.metadata.scope_table("s")
        assert not (await table.names(PENDING_INDEX, count=1)).names

    run_simulation(1, main)
