"""A proof that a table is one's own is worth what lies before it, and nothing that lies behind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.controller.errors import RetryLaterError
from segmentstore.controller.metadata.ownership_proof import OwnershipProof
from tests.controller.crashing_doors import CrashingTables, CrashPlan
from tests.reference.memory_tables import MemoryTables

Outcome = TypeVar("Outcome")


class SlowPlan(CrashPlan):
    """The first change takes effect when it is let go; every later one finds the log lost."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        if self.count > 1:
            raise ContainerStoppedError("fenced")
        await self.let_go.wait()
        return await call()


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def tables_with_one() -> MemoryTables:
    tables = MemoryTables()
    await tables.create_table("t")
    return tables


async def test_h24_who_reads_while_a_proof_is_under_way_needs_the_next_one() -> None:
    plan = SlowPlan()
    proof = OwnershipProof(tables=CrashingTables(await tables_with_one(), plan), name="t")
    first = asyncio.create_task(proof.wait())
    await some_turns()
    assert plan.count == 1
    second = asyncio.create_task(proof.wait())
    await some_turns()
    plan.let_go.set()
    await first
    with pytest.raises(ContainerStoppedError):
        await second
    assert plan.count == 2


async def test_a_proof_counts_from_its_submission_on() -> None:
    plan = SlowPlan()
    proof = OwnershipProof(tables=CrashingTables(await tables_with_one(), plan), name="t")
    loop = asyncio.get_running_loop()
    before = loop.time()
    first = asyncio.create_task(proof.wait())
    await some_turns()
    submitted = loop.time()
    plan.let_go.set()
    await first
    await proof.wait_unless_since(before)
    with pytest.raises(ContainerStoppedError):
        await proof.wait_unless_since(submitted + 0.001)


async def test_a_table_that_is_gone_proves_nothing() -> None:
    proof = OwnershipProof(tables=MemoryTables(), name="t")
    with pytest.raises(RetryLaterError):
        await proof.wait()


async def test_a_proof_leaves_one_empty_record_behind() -> None:
    tables = await tables_with_one()
    proof = OwnershipProof(tables=tables, name="t")
    for _ in range(3):
        await proof.wait()
    async with tables.open_table("t") as table:
        assert table.info().entry_count == 1
        page = await table.read_entries(count=10)
    assert [entry.value for entry in page.entries] == [b""]
