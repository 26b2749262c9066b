from contextlib import aclosing
from itertools import pairwise

import pytest

from segmentstore.contracts.errors import SegmentTruncatedError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import StoredChunk
from tests.contracts.storage_publications import change, data, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.tiered_storage import TieredStorage

ROUNDS = 20
LENGTH = 100


@pytest.fixture
async def owner() -> TieredStorage:
    """A segment of as many chunks as there were rounds."""
    owner = await ObjectStoreBacking(FaultyStore(MemoryObjectStore()), SMALL).claimed(1)
    for number in range(ROUNDS):
        await owner.publish(
            round_of(
                change(
                    1,
                    "s",
                    length=(number + 1) * LENGTH,
                    sequence_number=number + 1,
                    pieces=[data(number * LENGTH, bytes(LENGTH))],
                )
            )
        )
    return owner


async def listed(owner: TieredStorage, start: int, end: int) -> list[StoredChunk]:
    async with aclosing(owner.list_chunks(SegmentId(1), start, end)) as chunks:
        return [chunk async for chunk in chunks]


async def test_chunks_meet_and_cover_the_range_whole_ones_at_both_sides(
    owner: TieredStorage,
) -> None:
    chunks = await listed(owner, 250, 1750)
    assert (chunks[0].start_offset, chunks[-1].end_offset) == (200, 1800)
    assert all(left.end_offset == right.start_offset for left, right in pairwise(chunks))


async def test_what_is_truncated_or_not_published_is_refused(owner: TieredStorage) -> None:
    await owner.publish(
        round_of(
            change(1, "s", length=ROUNDS * LENGTH, start_offset=500, sequence_number=ROUNDS + 1)
        )
    )
    with pytest.raises(SegmentTruncatedError):
        await listed(owner, 499, 600)
    with pytest.raises(ValueError, match="nothing is published there"):
        await listed(owner, 600, ROUNDS * LENGTH + 1)
