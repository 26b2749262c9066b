"""A layout longer than one look is joined to its end, and joined blocks claim no times that a part does not have."""

from dataclasses import replace

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece, MergePiece, RunEvents
from tests.contracts.storage_publications import change, data, merge, read_all, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.test_blocks_of_events import blocks_of
from tests.tier2.storage.test_compaction import rounds, settle
from tests.tier2.storage.test_swap_proposals import chunks
from tier2.object_stores.memory import MemoryObjectStore

ROOMY = replace(SMALL, sst_block_bytes=4096, sst_part_bytes=1 << 20, sst_cache_bytes=1 << 20)
MANY = 2_500
"""More than two looks take in."""


async def test_a_layout_of_many_pages_is_joined_in_one_life() -> None:
    store = FaultyStore(MemoryObjectStore())
    idle = replace(ROOMY, compaction_bytes_per_second=0)
    owner = await ObjectStoreBacking(store, idle).claimed(1)
    content = bytes(number % 251 for number in range(MANY * 4))
    sources = [
        change(
            number + 2,
            f"t{number}",
            length=4,
            sequence_number=1,
            pieces=[data(0, content[number * 4 : number * 4 + 4])],
            deleted=True,
        )
        for number in range(MANY)
    ]
    pieces = [merge(number * 4, number + 2, 4) for number in range(MANY)]
    target = change(1, "a", length=len(content), sequence_number=1, pieces=pieces)
    await owner.publish(round_of(target, *sources, highest_id=MANY + 2))
    assert len(await chunks(owner)) == MANY
    owner = await ObjectStoreBacking(store, ROOMY).claimed(2)
    await settle(owner)
    assert len(await chunks(owner)) < 10
    assert await read_all(owner, 1, 0, len(content)) == content


async def test_h76_a_block_without_times_is_not_joined_with_one_that_has_some() -> None:
    store = FaultyStore(MemoryObjectStore())
    owner = await ObjectStoreBacking(store, replace(SMALL, cold_seconds=0.0)).claimed(1)
    dated = DataPiece(0, [b"e" * 100], [RunEvents(0, 1_000, 2_000)])
    undated = change(2, "b", length=100, sequence_number=2, pieces=[data(0, b"f" * 100)])
    moved = MergePiece(100, SegmentId(2), 100, first_event=1, begins_event=True)
    await owner.publish(
        rounds(change(1, "a", length=100, sequence_number=1, pieces=[dated]), undated)
    )
    await owner.publish(
        rounds(
            change(1, "a", length=200, sequence_number=3, pieces=[moved]),
            change(2, "b", length=100, sequence_number=3, deleted=True),
        )
    )
    await settle(owner)
    blocks = await blocks_of(owner, 1, 0, 200)
    assert [(block.length, block.event_number, block.events_known) for block in blocks] == [
        (100, 0, True),
        (100, 1, True),
    ]
    assert [(block.lowest_time_ms, block.highest_time_ms) for block in blocks] == [
        (1_000, 2_000),
        (0, 0),
    ]
