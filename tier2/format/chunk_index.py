"""The sparse index of a chunk image: one entry for each block. Layout: tier2/format/chunk_format.py."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.chunk_format import (
    BLOCK_BYTES_MAX,
    BLOCK_CHECKSUM_BYTES,
    BLOCK_COUNT_MAX,
    BLOCK_ENTRY_BYTES,
    BLOCK_ENTRY_LAYOUT,
    BLOCK_FLAGS_KNOWN,
    HEADER_BYTES,
    INDEX_END_BYTES,
    INDEX_END_LAYOUT,
    BlockFlag,
    Compression,
)


@dataclass(frozen=True, slots=True)
class EventInformation:
    """Where the events of some bytes lie: of one run when it is written, of one block when it is read."""

    first_event_position: int | None
    """Of the first event that starts in these bytes, from their first byte; 0: they begin on an event; None: they
    lie inside one event."""
    first_event_number: int
    """Number of that event in its segment; 0 if none starts here."""
    lowest_time_ms: int
    highest_time_ms: int
    """Unix time; both are 0 where no times are known."""


def joined_times(parts: Sequence[EventInformation]) -> tuple[int, int]:
    """Lowest and highest time of bytes that lie behind one another; none at all if some of them have none.

    What is said of some must not be taken for a bound of all: by the highest time bytes expire.
    """
    if not all(part.highest_time_ms for part in parts):
        return 0, 0
    return (
        min(part.lowest_time_ms for part in parts),
        max(part.highest_time_ms for part in parts),
    )


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """What the index says about one block."""

    first_offset: int
    position: int
    """Of the stored bytes, from the first byte of the image."""
    stored_length: int
    """Without the CRC32 behind them."""
    uncompressed_length: int
    compression: Compression
    events: EventInformation | None = None

    @property
    def end_position(self) -> int:
        """Where the next block, or the index, begins."""
        return self.position + self.stored_length + BLOCK_CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The blocks of one chunk, in offset order, without a gap."""

    entries: Sequence[BlockEntry]
    end_offset: int

    @property
    def start_offset(self) -> int:
        return self.entries[0].first_offset

    @property
    def uncompressed_length(self) -> int:
        """Sum over the blocks. Complexity: O(blocks)."""
        return sum(entry.uncompressed_length for entry in self.entries)

    def block_at(self, offset: int) -> int:
        """Number of the block that holds the offset. Complexity: O(log blocks). Raises ValueError if none does."""
        if not self.start_offset <= offset < self.end_offset:
            raise ValueError(
                f"offset is outside the chunk offset={offset} start_offset={self.start_offset}"
                f" end_offset={self.end_offset}"
            )
        return bisect_right(self.entries, offset, key=_first_offset) - 1

    def block_end_offset(self, block: int) -> int:
        """First offset behind the block."""
        following = block + 1
        if following < len(self.entries):
            return self.entries[following].first_offset
        return self.end_offset


def _first_offset(entry: BlockEntry) -> int:
    return entry.first_offset


def encode_index(index: ChunkIndex) -> bytes:
    """The bytes of the index with its end and checksum."""
    packed = b"".join(_encode_entry(entry) for entry in index.entries)
    crc32 = crc32_of(index.end_offset.to_bytes(8, "big"), crc32_of(packed))
    return packed + INDEX_END_LAYOUT.pack(index.end_offset, crc32)


def _encode_entry(entry: BlockEntry) -> bytes:
    events = entry.events
    if events is None:
        flags, position, number, lowest, highest = BlockFlag.NO_EVENT_INFORMATION, 0, 0, 0, 0
    else:
        lowest, highest = events.lowest_time_ms, events.highest_time_ms
        position, number = events.first_event_position or 0, events.first_event_number
        if events.first_event_position is None:
            flags = BlockFlag.NO_EVENT_STARTS
        elif position == 0:
            flags = BlockFlag.BEGINS_ON_EVENT
        else:
            flags = BlockFlag(0)
    return BLOCK_ENTRY_LAYOUT.pack(
        entry.first_offset,
        entry.position,
        entry.stored_length,
        entry.uncompressed_length,
        entry.compression,
        flags,
        0,
        position,
        number,
        lowest,
        highest,
    )


def parse_index(
    content: BufferView, *, index_position: int, record_topic: bool, source: str = "chunk"
) -> ChunkIndex:
    """Read an index: exactly the bytes between `index_position` and the footer.

    Raises CorruptedDataError if the checksum fails or the entries contradict each other or their place.
    """
    entry_bytes = len(content) - INDEX_END_BYTES
    count, rest = divmod(entry_bytes, BLOCK_ENTRY_BYTES)
    if not 1 <= count <= BLOCK_COUNT_MAX or rest:
        raise CorruptedDataError(f"chunk index has a bad size source={source} bytes={len(content)}")
    end_offset, stored_crc32 = INDEX_END_LAYOUT.unpack_from(content, entry_bytes)
    crc32 = crc32_of(memoryview(content)[: entry_bytes + 8])
    if crc32 != stored_crc32:
        raise CorruptedDataError(
            f"chunk index fails its checksum source={source} position={index_position}"
            f" stored={stored_crc32:#010x} computed={crc32:#010x}"
        )
    entries = [
        _parse_entry(fields, f"{source} block={block}")
        for block, fields in enumerate(
            BLOCK_ENTRY_LAYOUT.iter_unpack(memoryview(content)[:entry_bytes])
        )
    ]
    index = ChunkIndex(entries=entries, end_offset=end_offset)
    _check_places(index, index_position, source)
    _check_offsets(index, record_topic=record_topic, source=source)
    return index


def _parse_entry(fields: tuple[int, ...], source: str) -> BlockEntry:
    first_offset, position, stored, uncompressed, compression, flags, reserved = fields[:7]
    if compression not in _COMPRESSIONS or flags & ~BLOCK_FLAGS_KNOWN or reserved:
        raise CorruptedDataError(
            f"unknown block kind source={source} compression={compression} flags={flags}"
            f" reserved={reserved}"
        )
    kind = Compression(compression)
    shrinks = stored == uncompressed if kind is Compression.NONE else stored < uncompressed
    if not shrinks or stored == 0 or uncompressed > BLOCK_BYTES_MAX:
        raise CorruptedDataError(
            f"bad block lengths source={source} compression={kind.name} stored={stored}"
            f" uncompressed={uncompressed} uncompressed_max={BLOCK_BYTES_MAX}"
        )
    return BlockEntry(
        first_offset=first_offset,
        position=position,
        stored_length=stored,
        uncompressed_length=uncompressed,
        compression=kind,
        events=_parse_events(BlockFlag(flags), fields[7:], uncompressed, source),
    )


_COMPRESSIONS = frozenset(int(compression) for compression in Compression)


def _parse_events(
    flags: BlockFlag, fields: tuple[int, ...], uncompressed: int, source: str
) -> EventInformation | None:
    position, number, lowest, highest = fields
    agrees = {
        int(BlockFlag.NO_EVENT_INFORMATION): not any(fields),
        int(BlockFlag.NO_EVENT_STARTS): position == 0 and number == 0,
        int(BlockFlag.BEGINS_ON_EVENT): position == 0,
        0: 0 < position < uncompressed,
    }.get(int(flags), False)
    if not agrees or lowest > highest:
        raise CorruptedDataError(
            f"event fields contradict each other source={source} flags={int(flags)}"
            f" position={position} number={number} lowest={lowest} highest={highest}"
        )
    if BlockFlag.NO_EVENT_INFORMATION in flags:
        return None
    return EventInformation(
        first_event_position=None if BlockFlag.NO_EVENT_STARTS in flags else position,
        first_event_number=number,
        lowest_time_ms=lowest,
        highest_time_ms=highest,
    )


def _check_places(index: ChunkIndex, index_position: int, source: str) -> None:
    expected = HEADER_BYTES
    for block, entry in enumerate(index.entries):
        if entry.position != expected:
            raise CorruptedDataError(
                f"block is out of place source={source} block={block} position={entry.position}"
                f" expected={expected}"
            )
        expected = entry.end_position
    if index_position != expected:
        raise CorruptedDataError(
            f"index is out of place source={source} position={index_position} expected={expected}"
        )


def _check_offsets(index: ChunkIndex, *, record_topic: bool, source: str) -> None:
    ends = chain((entry.first_offset for entry in index.entries[1:]), (index.end_offset,))
    for block, (entry, end) in enumerate(zip(index.entries, ends, strict=True)):
        length = end - entry.first_offset
        if length <= 0 or (not record_topic and length != entry.uncompressed_length):
            raise CorruptedDataError(
                f"offsets do not follow each other source={source} block={block}"
                f" first_offset={entry.first_offset} next={end}"
                f" uncompressed_length={entry.uncompressed_length}"
            )
