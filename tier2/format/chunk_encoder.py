"""Makes the image of a byte-segment chunk from runs of appended bytes.

Blocks end only where a run ends. They are about BLOCK_BYTES_TARGET long: a run joins the current block if that
brings the block nearer to the target than it is. A longer run is one longer block, up to BLOCK_BYTES_MAX; only a run
beyond that is cut into blocks of the target size.

An event's time is the lowest one of its block. Where runs are the blocks of chunks that were published already, only
those of one lowest time share a block, so that no published event changes its time.

Pure and without state; callers run it in an executor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import encode_block
from tier2.format.chunk_format import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_TARGET,
    BLOCK_CHECKSUM_BYTES,
    HEADER_BYTES,
    BlockEntry,
    ChunkFlag,
    ChunkHeader,
    ChunkIndex,
    Compression,
    EventInformation,
    encode_footer,
    encode_header,
    encode_index,
    joined_times,
    lowest_time_of,
)


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A chunk image, not yet written anywhere."""

    buffers: Sequence[BufferView]
    """The image in pieces. Incompressible runs are in it as they were given, so they must not change until the
    image is written."""
    size: int
    """Sum of the buffers, in bytes."""
    file_crc32: int
    """What the layout records and readers compare."""
    index: ChunkIndex

    @property
    def start_offset(self) -> int:
        return self.index.start_offset

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.index.end_offset

    @property
    def uncompressed_length(self) -> int:
        return self.index.end_offset - self.index.start_offset


def encode_chunk(
    *,
    start_offset: int,
    runs: Sequence[BufferView],
    compression: Compression = Compression.LZ4,
    created_ms: int,
    events: Sequence[EventInformation | None] | None = None,
    block_bytes_target: int = BLOCK_BYTES_TARGET,
    joins_times: bool = True,
) -> EncodedChunk:
    """Encode the bytes of `runs`, which lie one behind the other from `start_offset`.

    Each run begins and ends on an append boundary; empty runs are allowed, but not only those (ValueError). `events`
    describes each run in turn, None where nothing is known; leave it out for byte streams. A block whose runs are not
    all described carries no event information. `created_ms` is Unix time in milliseconds.
    Without `joins_times` a block holds only runs whose lowest times are equal.
    Complexity: O(bytes), two passes of CRC32 and one of compression.
    """
    descriptions: Sequence[EventInformation | None]
    descriptions = events if events is not None else [None] * len(runs)
    blocks = _cut_into_blocks(runs, descriptions, block_bytes_target, joins_times=joins_times)
    entries: list[BlockEntry] = []
    buffers: list[BufferView] = [b""]
    offset, position = start_offset, HEADER_BYTES
    for block in blocks:
        stored = encode_block(block.runs, length=block.length, compression=compression)
        entry = BlockEntry(
            first_offset=offset,
            position=position,
            stored_length=stored.stored_length,
            uncompressed_length=block.length,
            compression=stored.compression,
            events=block.event_information(),
        )
        entries.append(entry)
        buffers += stored.pieces
        offset += block.length
        position += stored.stored_length + BLOCK_CHECKSUM_BYTES
    if not entries:
        raise ValueError(f"a chunk holds at least one byte start_offset={start_offset}")
    index = ChunkIndex(entries=entries, end_offset=offset)
    header = ChunkHeader(
        flags=ChunkFlag(0) if any(entry.events for entry in entries) else ChunkFlag.NO_EVENTS,
        compression=compression,
        created_ms=created_ms,
        record_count=offset - start_offset,
        start_offset=start_offset,
        end_offset=offset,
    )
    buffers[0] = encode_header(header)
    return finish_chunk(buffers, index, index_position=position)


def finish_chunk(
    buffers: list[BufferView], index: ChunkIndex, *, index_position: int
) -> EncodedChunk:
    """Header and blocks with the index, the footer and the file CRC32 behind them. Complexity: O(bytes)."""
    packed_index = encode_index(index)
    buffers.append(packed_index)
    crc32 = 0
    size = 0
    for buffer in buffers:
        crc32 = crc32_of(buffer, crc32)
        size += len(buffer)
    assert size == index_position + len(packed_index), (
        f"blocks do not fill the image size={size} index_position={index_position}"
    )
    footer, file_crc32 = encode_footer(index_position=index_position, crc32_before_footer=crc32)
    buffers.append(footer)
    return EncodedChunk(
        buffers=buffers, size=size + len(footer), file_crc32=file_crc32, index=index
    )


class _Block:
    """Runs that go into one block."""

    __slots__ = ("descriptions", "length", "runs", "starts")

    def __init__(self) -> None:
        self.runs: list[BufferView] = []
        self.descriptions: list[EventInformation | None] = []
        self.starts: list[int] = []
        self.length = 0

    def add(self, run: BufferView, description: EventInformation | None) -> None:
        self.runs.append(run)
        self.descriptions.append(description)
        self.starts.append(self.length)
        self.length += len(run)

    def event_information(self) -> EventInformation | None:
        known = [description for description in self.descriptions if description is not None]
        if len(known) < len(self.descriptions):
            return None
        position, number = None, 0
        for start, description in zip(self.starts, known, strict=True):
            if description.first_event_position is not None:
                position = start + description.first_event_position
                number = description.first_event_number
                break
        return EventInformation(position, number, *joined_times(known))


def _cut_into_blocks(
    runs: Sequence[BufferView],
    descriptions: Sequence[EventInformation | None],
    target: int,
    *,
    joins_times: bool,
) -> Iterator[_Block]:
    block = _Block()
    time_ms: int | None = None
    for run, description in zip(runs, descriptions, strict=True):
        length = len(run)
        if not length:
            continue
        is_apart = not joins_times and lowest_time_of(description) != time_ms
        time_ms = lowest_time_of(description)
        if block.length and (is_apart or block.length + length - target > target - block.length):
            yield block
            block = _Block()
        if length > BLOCK_BYTES_MAX:
            yield from _cut_run(run, description, target)
            continue
        block.add(run, description)
        if block.length >= target:
            yield block
            block = _Block()
    if block.length:
        yield block


def _cut_run(
    run: BufferView, description: EventInformation | None, target: int
) -> Iterator[_Block]:
    """Cut one run that is too long for a block. Where others start behind the run's first event is not known."""
    view = memoryview(run)
    before_first_event = description is not None
    for start in range(0, len(view), target):
        piece = view[start : start + target]
        block = _Block()
        block.add(
            piece, _piece_events(description, start, len(piece)) if before_first_event else None
        )
        if block.descriptions[0] is None or block.descriptions[0].first_event_position is not None:
            before_first_event = False
        yield block


def _piece_events(
    description: EventInformation | None, start: int, length: int
) -> EventInformation | None:
    if description is None:
        return None
    position = description.first_event_position
    starts_here = position is not None and start <= position < start + length
    return EventInformation(
        first_event_position=position - start if position is not None and starts_here else None,
        first_event_number=description.first_event_number if starts_here else 0,
        lowest_time_ms=description.lowest_time_ms,
        highest_time_ms=description.highest_time_ms,
    )
