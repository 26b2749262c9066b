"""Goal: an id is given out once, whatever ends, fails, runs beside, or is lost."""

import asyncio
from asyncio import Future
from collections.abc import Sequence

import pytest

from segmentstore.contracts.errors import ContainerStoppedError, CorruptedDataError
from segmentstore.contracts.tables import TableEntry
from segmentstore.runtime.cancellation import retrieve_exception
from segmentstore.topics.producer_ids import (
    BLOCK_IDS,
    PRODUCER_IDS_TABLE,
    ProducerIds,
    decode_free_ids,
    encode_free_ids,
)
from tests.reference.memory_tables import MemoryTable, MemoryTables


class SteppingClock:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


async def started(tables: MemoryTables, *, ms: int = 0) -> ProducerIds:
    ids = ProducerIds(tables=tables, wall_clock=SteppingClock(ms))
    await ids.start()
    return ids


def test_the_bytes_are_these() -> None:
    assert encode_free_ids(258).hex() == "01" + "0000000000000102"
    assert decode_free_ids(encode_free_ids((1 << 63) - 1)) == (1 << 63) - 1
    for wrong in (b"", b"\x02" + bytes(8), b"\x01" + bytes(9)):
        with pytest.raises(CorruptedDataError):
            decode_free_ids(wrong)


async def test_ids_grow_and_go_on_over_blocks() -> None:
    ids = await started(MemoryTables())
    assert [await ids.next() for _ in range(2_500)] == list(range(2_500))


async def test_callers_side_by_side_get_different_ids_and_waste_no_block() -> None:
    ids = await started(MemoryTables())
    given = await asyncio.gather(*(ids.next() for _ in range(BLOCK_IDS + 1)))
    assert sorted(given) == list(range(BLOCK_IDS + 1))


async def test_ids_differ_after_a_restart_and_between_processes() -> None:
    tables = MemoryTables()
    given: list[int] = []
    for _ in range(3):
        first, second = await started(tables), await started(tables)
        both = await asyncio.gather(*(each.next() for each in (first, second) for _ in range(700)))
        given += both
        given += [await first.next() for _ in range(600)]
        tables = tables.restarted()
    assert len(set(given)) == len(given)


async def test_a_block_is_durable_before_an_id_of_it_is_given_out() -> None:
    tables = MemoryTables()
    given = await (await started(tables)).next()
    async with tables.open_table(PRODUCER_IDS_TABLE) as table:
        (entry,) = await table.get([b"next"])
    assert entry is not None
    assert decode_free_ids(entry.value) > given


async def test_ids_differ_when_the_table_was_lost() -> None:
    before = await (await started(MemoryTables(), ms=1_000)).next()
    after = await (await started(MemoryTables(), ms=1_001)).next()
    assert after >= before + BLOCK_IDS


async def test_ids_differ_when_the_clock_went_back() -> None:
    tables = MemoryTables()
    before = await (await started(tables, ms=1_000)).next()
    after = await (await started(tables, ms=0)).next()
    assert after >= before + BLOCK_IDS


async def test_an_update_of_unknown_outcome_gives_out_nothing_of_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = MemoryTables()
    ids = await started(tables)
    original = MemoryTable.update

    def lose_the_answer(
        self: MemoryTable, entries: Sequence[TableEntry]
    ) -> "Future[Sequence[int]]":
        original(self, entries).add_done_callback(retrieve_exception)
        future: Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        future.set_exception(ContainerStoppedError("stopped"))
        return future

    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "update", lose_the_answer)
        with pytest.raises(ContainerStoppedError):
            await ids.next()
    assert await ids.next() == BLOCK_IDS


async def test_a_caller_that_leaves_takes_no_id_from_the_others() -> None:
    ids = await started(MemoryTables())
    leaves, stays = (asyncio.ensure_future(ids.next()) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await stays in range(2 * BLOCK_IDS)
    assert leaves.cancelled()
    assert await ids.next() != stays.result()
