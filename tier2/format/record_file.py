"""Files of a topic's records: one image of the chunk format that needs nothing beside it.

How they are named: segmentstore/codec/topic_files.py. A file that was compacted keeps its name's range though records
are gone from it: header and index say the same range with an end that is exclusive.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import decode_block, encode_block
from tier2.format.chunk_decoder import verify_chunk
from tier2.format.chunk_encoder import EncodedChunk, finish_chunk
from tier2.format.chunk_format import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_TARGET,
    BLOCK_CHECKSUM_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    SMALLEST_CHUNK_BYTES,
    BlockEntry,
    ChunkFlag,
    ChunkHeader,
    ChunkIndex,
    Compression,
    EventInformation,
    encode_header,
    parse_footer,
    parse_header,
    parse_index,
)
from tier2.format.records import Record, RecordForm, decode_records, encode_records


def encode_record_file(
    batches: Iterable[Sequence[Record]],
    *,
    compression: Compression = Compression.LZ4,
    created_ms: int,
    start_offset: int | None = None,
    end_offset: int | None = None,
    log_append_time: bool = False,
    block_bytes_target: int = BLOCK_BYTES_TARGET,
) -> EncodedChunk:
    """The image of one file. `created_ms` is Unix time in milliseconds.

    `start_offset` and `end_offset` (exclusive) are what the file answers for; left out, they are those of its records.
    Compaction may leave gaps between records and at both ends. Raises ValueError if there is no record, offsets do not
    grow, a record is larger than BLOCK_BYTES_MAX or lies outside. Complexity: O(bytes).
    """
    entries: list[BlockEntry] = []
    buffers: list[BufferView] = [b""]
    position = HEADER_BYTES
    count = 0
    last_offset = -1
    for records, content in _blocks(batches, block_bytes_target):
        first_offset = records[0].offset
        if first_offset <= last_offset:
            raise ValueError(f"offsets do not grow last={last_offset} offset={first_offset}")
        last_offset = records[-1].offset
        if not entries and start_offset is not None:
            if start_offset > first_offset:
                raise ValueError(f"a record lies before the file {start_offset=} {first_offset=}")
            first_offset = start_offset
        times = [record.timestamp_ms for record in records]
        stored = encode_block([content], length=len(content), compression=compression)
        entries.append(
            BlockEntry(
                first_offset=first_offset,
                position=position,
                stored_length=stored.stored_length,
                uncompressed_length=len(content),
                compression=stored.compression,
                events=EventInformation(0, records[0].offset, min(times), max(times)),
            )
        )
        buffers += stored.pieces
        position += stored.stored_length + BLOCK_CHECKSUM_BYTES
        count += len(records)
    if not entries:
        raise ValueError("a file holds at least one record")
    end = last_offset + 1 if end_offset is None else end_offset
    if end <= last_offset:
        raise ValueError(f"a record lies behind the file end_offset={end} offset={last_offset}")
    index = ChunkIndex(entries=entries, end_offset=end)
    buffers[0] = encode_header(
        ChunkHeader(
            flags=ChunkFlag.RECORD_TOPIC
            | (ChunkFlag.LOG_APPEND_TIME if log_append_time else ChunkFlag(0)),
            compression=compression,
            created_ms=created_ms,
            record_count=count,
            start_offset=index.start_offset,
            end_offset=end,
        )
    )
    return finish_chunk(buffers, index, index_position=position)


def _blocks(
    batches: Iterable[Sequence[Record]], target: int
) -> Iterator[tuple[Sequence[Record], bytes]]:
    """Records of one block each, with their bytes. A batch joins a block if that brings it nearer to the target."""
    waiting: list[Record] = []
    content = bytearray()
    size = 0
    for batch in batches:
        if not batch:
            continue
        encoded = encode_records(batch, RecordForm.NULLABLE)
        length = len(encoded)
        if waiting and size + length - target > target - size:
            yield waiting, bytes(content)
            waiting, content, size = [], bytearray(), 0
        if length > BLOCK_BYTES_MAX:
            yield from _cut(batch, target)
            continue
        content += _behind(waiting[-1], batch, encoded) if waiting else encoded
        waiting.extend(batch)
        size += length
    if waiting:
        yield waiting, bytes(content)


def _behind(last: Record, batch: Sequence[Record], encoded: bytes) -> bytes:
    """The batch as it follows a record: only its first one is written otherwise than at the begin of a block."""
    first = batch[:1]
    rest = encoded[len(encode_records(first, RecordForm.NULLABLE)) :]
    return encode_records(first, RecordForm.NULLABLE, after=last) + rest


def _cut(batch: Sequence[Record], target: int) -> Iterator[tuple[Sequence[Record], bytes]]:
    start = size = 0
    for number, record in enumerate(batch):
        length = len(encode_records([record], RecordForm.NULLABLE))
        if length > BLOCK_BYTES_MAX:
            raise ValueError(
                f"a record is too large offset={record.offset} bytes={length} bytes_max={BLOCK_BYTES_MAX}"
            )
        if number > start and size + length > target:
            yield batch[start:number], encode_records(batch[start:number], RecordForm.NULLABLE)
            start, size = number, 0
        size += length
    yield batch[start:], encode_records(batch[start:], RecordForm.NULLABLE)


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
        records = list(decode_records(content, RecordForm.NULLABLE, source=source))
        end = self.index.block_end_offset(number)
        events = entry.events
        agrees = (
            records
            and events is not None
            and entry.first_offset <= records[0].offset == events.first_event_number
            and records[-1].offset < end
            and min(record.timestamp_ms for record in records) == events.lowest_time_ms
            and max(record.timestamp_ms for record in records) == events.highest_time_ms
        )
        if not agrees:
            raise CorruptedDataError(f"records and index disagree source={source}")
        return records

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
    damages = list(verify_chunk(image, source=source).damages)
    try:
        opened = open_record_file(image, source=source)
    except CorruptedDataError as error:
        return list(dict.fromkeys([*damages, str(error)]))
    count, is_whole = 0, True
    for number in range(len(opened.index.entries)):
        try:
            count += len(opened.block(number))
        except CorruptedDataError as error:
            damages.append(str(error))
            is_whole = False
    if is_whole and count != opened.header.record_count:
        damages.append(
            f"header counts other records source={source} header={opened.header.record_count} found={count}"
        )
    return list(dict.fromkeys(damages))
