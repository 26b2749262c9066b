"""Which blocks a read brings along."""

import pytest

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece
from tests.contracts.storage_publications import change, round_of
from tests.tier2.storage.backings import ObjectStoreBacking
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings

MIB = 1 << 20
"""The length of a block: appends of this length are not joined."""


@pytest.mark.parametrize(
    ("offset", "length", "begin", "end"),
    [
        (0, 2 * MIB, 0, 2 * MIB),
        (0, 2 * MIB + 5, 0, 2 * MIB),
        (5, 2 * MIB, 0, 2 * MIB),
        (MIB - 5, MIB, 0, 2 * MIB),
        (MIB + 5, 10, MIB, 2 * MIB),
        (2 * MIB, 2 * MIB, 2 * MIB, 3 * MIB),
    ],
    ids=[
        "whole blocks",
        "a little of the last block is asked for",
        "less than all of the last block is asked for",
        "nearly all that is asked for is in the last block",
        "all that is asked for is in one block",
        "the end of the segment",
    ],
)
async def test_a_read_ends_at_a_block_unless_little_would_be_left(
    offset: int, length: int, begin: int, end: int
) -> None:
    owner = await ObjectStoreBacking(MemoryObjectStore(), StorageSettings()).claimed(1)
    blocks = [bytes([number]) * MIB for number in range(3)]
    piece = DataPiece(0, blocks)
    await owner.publish(round_of(change(1, "a", length=3 * MIB, sequence_number=1, pieces=[piece])))
    found = await owner.read(SegmentId(1), offset, length)
    assert (found.offset, found.offset + len(found.content)) == (begin, end)
    assert found.content == b"".join(blocks)[begin:end]
