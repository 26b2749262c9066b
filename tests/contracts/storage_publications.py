"""Publications as tests write them, and what can be read back through a storage."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import (
    DataPiece,
    MergePiece,
    Piece,
    Publication,
    ReadOnlyStorage,
    SegmentPublication,
    SegmentRecord,
    Storage,
)

LOG_ID = b"\x11" * 16


class StorageBacking(Protocol):
    """Where owners come from: each new one finds what the earlier ones published."""

    def new_owner(self) -> Storage: ...

    def new_owner_of_another_store(self) -> Storage:
        """With another store id over the same objects."""

    def new_owner_with_another_count(self) -> Storage:
        """With another container count."""


def change(
    segment_id: int,
    name: str,
    *,
    length: int,
    sequence_number: int,
    pieces: Sequence[Piece] = (),
    start_offset: int = 0,
    sealed: bool = False,
    deleted: bool = False,
    attributes: Mapping[AttributeKey, AttributeValue | None] | None = None,
    core_attributes: Mapping[AttributeKey, AttributeValue] | None = None,
) -> SegmentPublication:
    """A publication of one segment."""
    record = SegmentRecord(
        segment_id=SegmentId(segment_id),
        name=name,
        start_offset=start_offset,
        length=length,
        sealed=sealed,
        last_modified_ms=1_700_000_000_000 + sequence_number,
        sequence_number=SequenceNumber(sequence_number),
        core_attributes=core_attributes or {},
    )
    return SegmentPublication(
        record=record, pieces=pieces, attributes=attributes or {}, deleted=deleted
    )


def round_of(
    *segments: SegmentPublication, highest_id: int = 0, highest_sequence: int = 0
) -> Publication:
    """One flush round; the highest numbers are those of its segments unless they are given."""
    ids = [segment.record.segment_id for segment in segments]
    sequences = [segment.record.sequence_number for segment in segments]
    return Publication(
        segments=segments,
        highest_segment_id=SegmentId(max([*ids, highest_id])),
        highest_sequence_number=SequenceNumber(max([*sequences, highest_sequence])),
    )


def data(offset: int, *runs: bytes) -> DataPiece:
    return DataPiece(offset=offset, runs=runs)


def merge(offset: int, source_id: int, length: int) -> MergePiece:
    return MergePiece(offset=offset, source_id=SegmentId(source_id), length=length)


async def read_all(
    storage: ReadOnlyStorage, segment_id: int, start: int, end: int, *, step: int = 1 << 20
) -> bytes:
    """The bytes [start, end) by as many reads as it takes; every read must be right as a whole."""
    found = bytearray()
    offset = start
    while offset < end:
        read = await storage.read(SegmentId(segment_id), offset, min(step, end - offset))
        piece = read.content[offset - read.offset :]
        assert len(piece) > 0
        piece = piece[: end - offset]
        found += piece
        offset += len(piece)
    return bytes(found)


async def listed(
    storage: ReadOnlyStorage, prefix: str = "", start_after: str = ""
) -> list[SegmentRecord]:
    async with aclosing(storage.list_segments(prefix, start_after)) as records:
        return [record async for record in records]


def wrong(
    *,
    name: str = "a",
    length: int = 5,
    sequence_number: int = 2,
    start_offset: int = 2,
    pieces: Sequence[Piece] = (),
) -> SegmentPublication:
    """A change of segment 1 where everything that is not given would be right."""
    return change(
        1,
        name,
        length=length,
        sequence_number=sequence_number,
        start_offset=start_offset,
        pieces=pieces,
    )
