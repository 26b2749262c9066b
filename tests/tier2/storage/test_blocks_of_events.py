"""H76: what blocks say of events, through moves, repacking, and a look by somebody who owns nothing."""

from contextlib import aclosing

import pytest

from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece, MergePiece, RunEvents, StoredBlock
from tests.contracts.storage_publications import change, data, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tier2.container_objects import ObjectIdentity
from tier2.layout_entry import EntryEvents, LayoutEntry
from tier2.object_stores.memory import MemoryObjectStore
from tier2.read.published_segments import PublishedSegments

INSIDE = RunEvents(None, 5, 6)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, SMALL)


def event(number: int) -> RunEvents:
    return RunEvents(number, 1000 + number, 2000 - number)


def declared(offset: int, *runs: tuple[int, RunEvents | None]) -> DataPiece:
    contents = [bytes([number]) * length for number, (length, _) in enumerate(runs)]
    return DataPiece(offset, contents, [events for _, events in runs])


async def blocks_of(
    reader: PublishedSegments, segment_id: int, start: int, end: int
) -> list[StoredBlock]:
    async with aclosing(reader.list_blocks(SegmentId(segment_id), start, end)) as blocks:
        return [block async for block in blocks]


def known(blocks: list[StoredBlock]) -> list[tuple[int, int, int | None, int]]:
    """(offset, length, first event's offset, its number); the last is -1 where nothing is known."""
    return [
        (b.offset, b.length, b.first_event_offset, b.event_number if b.events_known else -1)
        for b in blocks
    ]


async def test_h76_blocks_are_listed_with_their_first_event_and_the_bounds_of_their_times(
    backing: ObjectStoreBacking,
) -> None:
    owner = await backing.claimed(1)
    piece = declared(0, (10, event(7)), (90, INSIDE), (9000, INSIDE), (20, event(8)), (80, INSIDE))
    total = 9200
    await owner.publish(round_of(change(1, "a", length=total, sequence_number=1, pieces=[piece])))
    blocks = await blocks_of(owner, 1, 0, total)
    assert sum(block.length for block in blocks) == total
    assert known(blocks) == [(0, 100, 0, 7), (100, 9000, None, 0), (9100, 100, 9100, 8)]
    assert [(b.lowest_time_ms, b.highest_time_ms) for b in blocks] == [(5, 1993), (5, 6), (5, 1992)]
    assert [block.begins_on_event for block in blocks] == [True, False, True]
    one = await blocks_of(owner, 1, total - 1, total)
    assert one == blocks[-1:]
    for block in blocks:
        assert block.object_key.startswith("containers/")
        assert block.position > block.image_position
        assert block.stored_length <= block.length


async def test_h76_moved_bytes_have_the_targets_numbers(backing: ObjectStoreBacking) -> None:
    owner = await backing.claimed(1)
    await owner.publish(
        round_of(
            change(1, "a", length=4, sequence_number=1, pieces=[declared(0, (4, event(0)))]),
            change(2, "b", length=6, sequence_number=1, pieces=[declared(0, (6, event(0)))]),
            change(3, "c", length=2, sequence_number=1, pieces=[data(0, b"cc")]),
            change(4, "d", length=2, sequence_number=1, pieces=[declared(0, (2, event(0)))]),
        )
    )
    await owner.publish(
        round_of(
            change(
                2,
                "b",
                length=10,
                sequence_number=2,
                pieces=[
                    MergePiece(6, SegmentId(3), 2, first_event=3, begins_event=True),
                    MergePiece(8, SegmentId(4), 2),
                ],
            ),
            change(3, "c", length=2, sequence_number=2, deleted=True),
            change(4, "d", length=2, sequence_number=2, deleted=True),
            highest_id=4,
        )
    )
    assert known(await blocks_of(owner, 2, 0, 10)) == [(0, 6, 0, 0), (6, 2, 6, 3), (8, 2, None, -1)]
    await owner.publish(
        round_of(
            change(
                1,
                "a",
                length=14,
                sequence_number=3,
                pieces=[MergePiece(4, SegmentId(2), 10, first_event=100, begins_event=True)],
            ),
            change(2, "b", length=10, sequence_number=3, deleted=True),
            highest_id=4,
        )
    )
    expected = [(0, 4, 0, 0), (4, 6, 4, 100), (10, 2, 10, 103), (12, 2, None, -1)]
    assert known(await blocks_of(owner, 1, 0, 14)) == expected
    assert known(await blocks_of(await backing.claimed(2), 1, 5, 12)) == expected[1:3]


async def test_h76_what_is_known_of_events_survives_repacking(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    await owner.publish(
        round_of(
            *(
                change(n, f"s{n}", length=2, sequence_number=n, pieces=[declared(0, (2, event(n)))])
                for n in range(1, 17)
            )
        )
    )
    (pack,) = {key for key in store.put_keys if "/chunks/" in key}
    await owner.publish(
        round_of(
            change(
                1,
                "s1",
                length=4,
                sequence_number=20,
                pieces=[MergePiece(2, SegmentId(2), 2, first_event=30, begins_event=False)],
            ),
            *(change(n, f"s{n}", length=2, sequence_number=20, deleted=True) for n in range(2, 17)),
            highest_id=16,
        )
    )
    before = await blocks_of(owner, 1, 0, 4)
    assert known(before) == [(0, 2, 0, 1), (2, 2, 2, 32)]
    assert {block.object_key for block in before} == {pack}
    while await owner.maintain():
        pass
    after = await blocks_of(owner, 1, 0, 4)
    assert known(after) == known(before)
    assert pack not in {block.object_key for block in after}


async def test_blocks_outside_the_published_bytes_are_refused(backing: ObjectStoreBacking) -> None:
    owner = await backing.claimed(1)
    await owner.publish(
        round_of(
            change(1, "a", length=9, start_offset=3, sequence_number=1, pieces=[data(3, b"x" * 6)])
        )
    )
    assert known(await blocks_of(owner, 1, 3, 9)) == [(3, 6, None, -1)]
    with pytest.raises(SegmentTruncatedError):
        await blocks_of(owner, 1, 2, 9)
    for start, end in ((3, 10), (-1, 3)):
        with pytest.raises(ValueError, match="nothing is published"):
            await blocks_of(owner, 1, start, end)
    with pytest.raises(SegmentNotFoundError):
        await blocks_of(owner, 2, 0, 1)
    assert await blocks_of(owner, 1, 9, 9) == []


@pytest.mark.parametrize("events", list(EntryEvents))
def test_a_layout_entry_says_more_only_where_there_is_more_to_say(events: EntryEvents) -> None:
    plain = LayoutEntry(3, 9, ObjectIdentity(1, 2, 3), 4096, 65536, 0xDEADBEEF, 0)
    entry = LayoutEntry(3, 9, ObjectIdentity(1, 2, 3), 4096, 65536, 0xDEADBEEF, 0, events, 0)
    moved = LayoutEntry(3, 9, ObjectIdentity(1, 2, 3), 4096, 65536, 0xDEADBEEF, 0, events, 1 << 40)
    for one in (plain, entry, moved):
        assert LayoutEntry.decode(9, one.encode()) == one
    assert len(moved.encode()) == len(plain.encode()) + 9
    assert moved.encode()[: len(plain.encode())] == plain.encode()
    with pytest.raises(CorruptedDataError):
        LayoutEntry.decode(9, moved.encode()[:-9] + b"\x03" + bytes(8))
    with pytest.raises(CorruptedDataError):
        LayoutEntry.decode(9, moved.encode()[:-1])
