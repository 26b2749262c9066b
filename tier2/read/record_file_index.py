"""A file of topics' records by ranges of its object: header and index, and the batches of a block.

    header, end of the object (footer and index; a longer end where the index is longer) -> RecordFileIndex
    stored bytes of a block -> batches

The bytes are those of tier2/format/record_file.py; which file it is, and of which size, is registered
(segmentstore/codec/topic_files.py).

Invariants:

- A range counts when it is whole and its check does not raise. One that fails is fetched a second time, then it is
  CorruptedDataError.
- The index answers for the offsets that are registered.
"""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import run_blocking
from tier2.format.block import decode_block
from tier2.format.chunk_decoder import ByteRange, parse_file_tail, tail_range
from tier2.format.chunk_format import (
    HEADER_BYTES,
    SMALLEST_CHUNK_BYTES,
    BlockEntry,
    ChunkFlag,
    ChunkIndex,
    parse_header,
)
from tier2.format.record_transcoding import batches_of_block

_Result = TypeVar("_Result")
GetRange = Callable[[str, int, int], Awaitable[bytes]]
"""Of an object: its key, where the range starts, its length."""


class ReadChecked(Protocol):
    """A range of one object as `check` gives it back, which raises CorruptedDataError for damaged bytes."""

    async def __call__(self, start: int, length: int, check: Callable[[bytes], _Result]) -> _Result:
        """Raises CorruptedDataError if the range fails its check again and again, ObjectNotFoundError, StorageError."""


@dataclass(frozen=True, slots=True)
class RecordFileIndex:
    """What the blocks of a file are read with."""

    flags: ChunkFlag
    chunk_index: ChunkIndex


async def read_checked(
    get_range: GetRange,
    key: str,
    start: int,
    length: int,
    check: Callable[[bytes], _Result],
    *,
    executor: Executor | None,
) -> _Result:
    """As ReadChecked says; `check` runs in the executor."""
    for is_last in (False, True):
        try:
            stored = await get_range(key, start, length)
            if len(stored) != length:
                raise CorruptedDataError(
                    f"an object is cut off key={key} start={start} expected={length} length={len(stored)}"
                )
            return await run_blocking(executor, check, stored)
        except CorruptedDataError:
            if is_last:
                raise
    raise AssertionError("the last attempt returns or raises")


async def read_record_file_index(
    read: ReadChecked, file: RegisteredFile, *, key: str
) -> RecordFileIndex:
    """Of a file that is no kept batch; two ranges, rarely three. Raises as `read`."""
    size = file.size
    if size < SMALLEST_CHUNK_BYTES:
        raise CorruptedDataError(f"a file is too short key={key} bytes={size}")
    header = await read(0, HEADER_BYTES, lambda stored: parse_header(stored, source=key))

    def parse_end(stored: bytes) -> ChunkIndex | ByteRange:
        return parse_file_tail(stored, size=size, source=key)

    wanted = tail_range(size)
    index = await read(wanted.start, wanted.length, parse_end)
    if isinstance(index, ByteRange):
        index = await read(index.start, index.length, parse_end)
        if isinstance(index, ByteRange):
            raise CorruptedDataError(f"the index of a file grows when it is read key={key}")
    if (index.start_offset, index.end_offset) != (file.first_offset, file.end_offset):
        raise CorruptedDataError(f"a file answers for other offsets key={key} file={file}")
    return RecordFileIndex(header.flags, index)


def batches_of_stored_block(
    stored: BufferView, entry: BlockEntry, flags: ChunkFlag, *, batch_bytes_max: int, source: str
) -> bytes:
    """The records of a block, as batches that are not compressed. Raises CorruptedDataError."""
    content = decode_block(entry, stored, source=source)
    return batches_of_block(content, entry, flags, batch_bytes_max=batch_bytes_max, source=source)
