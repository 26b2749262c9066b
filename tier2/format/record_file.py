"""Files of a topic's records: one image of the chunk format that needs nothing beside it.

How they are named: segmentstore/codec/topic_files.py. A file that was compacted keeps its name's range though records
are gone from it: header and index say the same range with an end that is exclusive. The image, byte by byte:
chunk_format.py.

    batches of records -> blocks of about 1 MiB, each ending where a batch ends -> compressed, with checksums -> image

Invariants:

- Offsets grow over the whole file. Each block begins with absolute numbers and is read alone.
- A block ends where a batch ends, unless one batch alone exceeds BLOCK_BYTES_MAX: it is cut between records.
- The index names for each block its first offset and the lowest and highest time in it: a time is looked up by decoding
  one block.
- The same batches give the same image.
- What a reader gives was checked against the block's checksum. A damaged block is refused by itself; its neighbours are
  read.

Pure and without state; callers run it in an executor.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from segmentstore.codec.crc32 import crc32_of
from segmentstore.codec.crc_algebra import CRC32, joined_crc
from segmentstore.codec.record_fields import Record
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import ZSTD_LEVEL, decode_block, encode_block
from tier2.format.chunk_decoder import verify_chunk
from tier2.format.chunk_format import (
    BLOCK_BYTES_TARGET,
    FOOTER_BYTES,
    HEADER_BYTES,
    SMALLEST_CHUNK_BYTES,
    BlockEntry,
    ChunkFlag,
    ChunkHeader,
    ChunkIndex,
    Compression,
    EventInformation,
    encode_footer,
    encode_header,
    encode_index,
    parse_footer,
    parse_header,
    parse_index,
)
from tier2.format.image_memory import ImageMemory
from tier2.format.record_transcoding import (
    BlockFacts,
    BlocksOfBatches,
    RecordBlock,
    RecordLoops,
    UnreadableBatch,
    facts_of_block,
    require_agreement,
)
from tier2.format.records import RecordForm, decode_records


@dataclass(frozen=True, slots=True)
class RecordFileImage:
    """One new file, not yet written anywhere."""

    buffers: Sequence[BufferView]
    """The image in pieces; none if no record could be read."""
    size: int
    """Of the image in bytes."""
    first_offset: int
    """The file answers for offsets from this one on,"""
    end_offset: int
    """up to before this one."""
    record_count: int
    lowest_time_ms: int
    highest_time_ms: int
    unreadable: Sequence[UnreadableBatch]
    """What producers wrote so that no reader can read it; the file answers for its offsets and has no record there."""


class RecordFileBuilder:
    """One file of whole batches (version 2, placed, of any client's codec) with growing offsets, which come in pieces.

    The image is written block by block into memory of the caller, and summed while the caches of the processor have it.
    """

    def __init__(
        self,
        memory: ImageMemory,
        *,
        compression: Compression = Compression.LZ4,
        level: int = ZSTD_LEVEL,
        block_bytes_target: int = BLOCK_BYTES_TARGET,
        loops: RecordLoops | None = None,
    ) -> None:
        """`level` is that of Zstandard."""
        self.unreadable: list[UnreadableBatch] = []
        """What producers wrote so that no reader can read it, so far."""
        self._memory = memory
        self._compression = compression
        self._level = level
        self._blocks = BlocksOfBatches(
            target=block_bytes_target, unreadable=self.unreadable, loops=loops
        )
        self._entries: list[BlockEntry] = []
        self._position = HEADER_BYTES
        self._crc32 = 0
        """Of what is behind the header."""
        self._count = 0
        self._end = 0

    def add(self, batches: BufferView) -> None:
        """More of them. Raises BatchError if the bytes are not batches as they were written, ValueError if offsets do
        not grow or the last batch is cut off. Complexity: O(bytes)."""
        for block in self._blocks.add(batches):
            self._add_block(block)

    def _add_block(self, block: RecordBlock) -> None:
        sums = block.sums
        stored = encode_block(
            [block.content],
            length=sums.used,
            compression=self._compression,
            zstd_level=self._level,
        )
        entry = BlockEntry(
            first_offset=sums.first_offset,
            position=self._position,
            stored_length=stored.stored_length,
            uncompressed_length=sums.used,
            compression=stored.compression,
            events=EventInformation(0, sums.first_offset, sums.lowest_time, sums.highest_time),
        )
        for piece in stored.pieces:
            self._append(piece)
        assert self._position == entry.end_position, f"{self._position=} {entry=}"
        self._entries.append(entry)
        self._count += sums.records
        self._end = sums.last_offset + 1

    def _append(self, piece: BufferView) -> None:
        self._memory.write(self._position, piece)
        self._crc32 = crc32_of(piece, self._crc32)
        self._position += len(piece)

    def finish(
        self,
        *,
        created_ms: int,
        log_append_time: bool = False,
        start_offset: int | None = None,
        end_offset: int | None = None,
    ) -> RecordFileImage:
        """The image, which lies in the memory. Call it once; nothing may be added then.

        `created_ms` is Unix time. With `log_append_time` the header says that times are those of the append; a
        record's time is what its batch says in any case. `start_offset` and `end_offset` (exclusive) are what the file
        answers for; left out, they are those of its records and of unreadable batches. Compaction may leave gaps
        between records and at both ends.

        Raises ValueError if there are no batches, or a record lies outside.
        """
        for block in self._blocks.finish():
            self._add_block(block)
        entries, unreadable = self._entries, self.unreadable
        offsets = [each.base_offset for each in unreadable] + [
            each.first_offset for each in entries[:1]
        ]
        if not offsets:
            raise ValueError("a file is made of one record at least")
        last = max([self._end, *(each.next_offset for each in unreadable)])
        start = min(offsets) if start_offset is None else start_offset
        end = last if end_offset is None else end_offset
        if start > min(offsets) or end < last:
            raise ValueError(
                f"a record lies outside of its file start_offset={start} end_offset={end}"
                f" records=[{min(offsets)},{last})"
            )
        if not entries:
            return RecordFileImage((), 0, start, end, 0, 0, 0, unreadable)
        entries[0] = replace(entries[0], first_offset=start)
        header = encode_header(
            ChunkHeader(
                flags=ChunkFlag.RECORD_TOPIC
                | (ChunkFlag.LOG_APPEND_TIME if log_append_time else ChunkFlag(0)),
                compression=self._compression,
                created_ms=created_ms,
                record_count=self._count,
                start_offset=start,
                end_offset=end,
            )
        )
        self._memory.write(0, header)
        index_position = self._position
        self._append(encode_index(ChunkIndex(entries=entries, end_offset=end)))
        crc32 = joined_crc(
            CRC32,
            [(crc32_of(header), len(header)), (self._crc32, self._position - len(header))],
        )
        footer, _ = encode_footer(index_position=index_position, crc32_before_footer=crc32)
        self._append(footer)
        times = [each.events for each in entries if each.events is not None]
        return RecordFileImage(
            buffers=(self._memory.view(self._position),),
            size=self._position,
            first_offset=start,
            end_offset=end,
            record_count=self._count,
            lowest_time_ms=min(each.lowest_time_ms for each in times),
            highest_time_ms=max(each.highest_time_ms for each in times),
            unreadable=unreadable,
        )


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A whole file in memory, opened by open_record_file()."""

    image: memoryview
    header: ChunkHeader
    index: ChunkIndex
    source: str

    def block(self, number: int) -> Sequence[Record]:
        """The records of one block. Raises CorruptedDataError, which says which block it is."""
        entry = self.index.entries[number]
        source = f"{self.source} block={number}"
        stored = self.image[entry.position : entry.end_position]
        content = decode_block(entry, stored, source=source)
        facts = facts_of_block(content, source=source)
        _require_place(facts, entry, self.index.block_end_offset(number), source)
        return list(decode_records(content, RecordForm.NULLABLE, source=source))

    def records_from(self, offset: int) -> Iterator[Record]:
        """Those at or behind an offset, in order. Complexity: O(log blocks) to the first. Raises CorruptedDataError."""
        if offset >= self.index.end_offset:
            return
        first = self.index.block_at(max(offset, self.index.start_offset))
        for number in range(first, len(self.index.entries)):
            records = self.block(number)
            start = bisect_right(records, offset - 1, key=_offset_of) if number == first else 0
            yield from records[start:]

    def first_at_time(self, timestamp_ms: int) -> Record | None:
        """The record with the lowest offset whose time is not before the given one; None if there is none."""
        for number, entry in enumerate(self.index.entries):
            assert entry.events is not None, "opened without the times of a block"
            if entry.events.highest_time_ms >= timestamp_ms:
                return next(
                    record for record in self.block(number) if record.timestamp_ms >= timestamp_ms
                )
        return None


def _offset_of(record: Record) -> int:
    return record.offset


def open_record_file(image: BufferView, *, source: str = "file") -> RecordFile:
    """Read header and index. Raises CorruptedDataError if the bytes are not a whole file of records."""
    view = memoryview(image)
    if len(view) < SMALLEST_CHUNK_BYTES:
        raise CorruptedDataError(f"file is cut off source={source} bytes={len(view)}")
    header = parse_header(view, source=source)
    if not header.is_record_topic:
        raise CorruptedDataError(f"not a file of records source={source}")
    footer = parse_footer(view, source=source)
    end = len(view) - FOOTER_BYTES
    if not HEADER_BYTES < footer.index_position < end:
        raise CorruptedDataError(
            f"index is out of place source={source} position={footer.index_position} bytes={len(view)}"
        )
    index = parse_index(
        view[footer.index_position : end],
        index_position=footer.index_position,
        record_topic=True,
        source=source,
    )
    if (index.start_offset, index.end_offset) != (header.start_offset, header.end_offset):
        raise CorruptedDataError(f"header and index name other offsets source={source}")
    if any(entry.events is None for entry in index.entries):
        raise CorruptedDataError(f"a block of records has no times source={source}")
    return RecordFile(view, header, index, source)


def damages_of_record_file(image: BufferView, *, source: str = "file") -> Sequence[str]:
    """What is wrong with a file, in sentences; none if every byte is as it was written. Never raises for bad bytes."""
    try:
        opened = open_record_file(image, source=source)
    except CorruptedDataError as error:
        return list(dict.fromkeys([*verify_chunk(image, source=source).damages, str(error)]))
    index = opened.index
    ends = {
        entry.position: index.block_end_offset(number) for number, entry in enumerate(index.entries)
    }
    counts: list[int] = []

    def examine(entry: BlockEntry, content: BufferView) -> str:
        try:
            facts = facts_of_block(content, source=source)
            _require_place(facts, entry, ends[entry.position], source)
        except CorruptedDataError as error:
            return str(error)
        counts.append(facts.records)
        return ""

    damages = list(verify_chunk(image, source=source, examine=examine).damages)
    if len(counts) == len(index.entries) and sum(counts) != opened.header.record_count:
        damages.append(
            f"header counts other records source={source} header={opened.header.record_count}"
            f" found={sum(counts)}"
        )
    return damages


def _require_place(facts: BlockFacts, entry: BlockEntry, end_offset: int, source: str) -> None:
    """Raises CorruptedDataError if records, index entry and neighbours contradict one another."""
    require_agreement(facts, entry, source=source)
    if not entry.first_offset <= facts.first_offset <= facts.last_offset < end_offset:
        raise CorruptedDataError(f"records lie outside of their block source={source}")
