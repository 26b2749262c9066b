"""Reads behind the flush point: records by offset and by time, from the files of a partition.

    offset -> file (registered_files.py) -> block (the file's index) -> batches of the block -> those asked for

Invariants:

- A batch is never cut, and what is given was checked against the block's checksum.
- Index and block of one step are of the same object. One that another file has replaced meanwhile is looked up anew;
  one that is missing although it is registered is damage.
- What cannot be read refuses the offsets that lie in it, no others.
- A reader that goes on where a fetch ended is read ahead of, further each time; one that jumps is not.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from segmentstore.codec.record_batch import (
    BatchError,
    BatchHeader,
    parse_header,
)
from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
)
from segmentstore.contracts.segments import Segment
from segmentstore.topics.record_files.record_files import FileBlock, RecordFiles
from segmentstore.topics.record_files.record_ranks import (
    RecordRank,
    first_not_older,
    latest_in_batches,
    lower_rank,
)
from segmentstore.topics.record_files.registered_files import RegisteredFiles

_Result = TypeVar("_Result")

_ROUNDS_MAX: Final = 3
_FIRST_WINDOW_BYTES: Final = 1 << 20
_READERS_MAX: Final = 16
"""In order, that are remembered; another one is taken for one that jumps."""
_FILES_AHEAD_MAX: Final = 8
"""Files may be small."""


class ColdRecords:
    """Of one partition."""

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        files: RecordFiles,
        registered: RegisteredFiles,
        read_ahead_bytes_max: int,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._files = files
        self._registered = registered
        self._read_ahead_bytes_max = read_ahead_bytes_max
        self._windows: OrderedDict[int, int] = OrderedDict()
        """Where a reader would go on -> how far it is read ahead of then."""

    async def fetch(self, segment: Segment, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that contains the offset, or the next one, on: as many as have at most
        `max_bytes`, but one. b"" if no file has a record there or behind.

        Raises FileGoneError, StorageError.
        """
        pieces: list[bytes] = []
        room = max_bytes
        window = self._windows.get(offset, 0)
        goes_on_at = offset
        while True:
            try:
                found = await self._block_at(segment, offset, window)
            except StorageError:
                if pieces:
                    break
                raise
            if found is None:
                break
            content, block = found
            begin, end, next_offset = _stretch(content, offset, room, at_least_one=not pieces)
            if begin < end:
                pieces.append(content[begin:end])
                room -= end - begin
                goes_on_at = next_offset
            if end < len(content) or room <= 0:
                break
            offset = block.end_offset
        if pieces:
            self._expect_at(goes_on_at, window)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _block_at(
        self, segment: Segment, offset: int, window: int
    ) -> tuple[bytes, FileBlock] | None:
        """The batches of the block that answers for the offset; of the first file, if none does and there is one."""
        number = await self._registered.at_offset(segment, offset)
        if number > self._registered.last:
            return None

        async def read(key: str, file: RegisteredFile) -> tuple[bytes, FileBlock]:
            blocks = await self._files.blocks(key, file)
            index = max(0, bisect_right(blocks, offset, key=_first_offset_of) - 1)
            if window > 0:
                self._files.read_ahead(key, file, index + 1, window)
                left = window - sum(block.byte_count for block in blocks[index + 1 :])
                await self._read_files_ahead(segment, number + 1, left)
            return await self._files.batches(key, file, index), blocks[index]

        return await self._of_file(segment, number, read)

    async def _read_files_ahead(self, segment: Segment, number: int, room: int) -> None:
        """Of files from that number on."""
        for each in range(number, min(number + _FILES_AHEAD_MAX, self._registered.last + 1)):
            if room <= 0:
                return
            try:
                file = await self._registered.get(segment, each)
            except SegmentStoreError:
                # Told to the reader when it has come so far.
                return
            self._files.read_ahead(file.name(self._topic, self._partition).key, file, 0, room)
            room -= file.size

    def _expect_at(self, offset: int, window: int) -> None:
        """The reader of a fetch with that window goes on there, if it reads in order."""
        wider = min(max(2 * window, _FIRST_WINDOW_BYTES), self._read_ahead_bytes_max)
        self._windows[offset] = max(wider, self._windows.get(offset, 0))
        self._windows.move_to_end(offset)
        if len(self._windows) > _READERS_MAX:
            self._windows.popitem(last=False)

    async def first_at_time(
        self, segment: Segment, time_ms: int, from_offset: int
    ) -> tuple[int, int] | None:
        """Offset and time of the first record at or behind an offset that is not older; None if there is none.

        Raises FileGoneError, StorageError, BatchError.
        """
        number = await self._registered.at_time(segment, time_ms)

        async def read(key: str, file: RegisteredFile) -> tuple[int, int] | None:
            if file.is_batch or file.highest_ms < time_ms or file.end_offset <= from_offset:
                return None
            for index, block in enumerate(await self._files.blocks(key, file)):
                if block.highest_ms < time_ms or block.end_offset <= from_offset:
                    continue
                content = await self._files.batches(key, file, index)
                found = await first_not_older(content, time_ms, from_offset)
                if found is not None:
                    return found
            return None

        while number <= self._registered.last:
            found = await self._of_file(segment, number, read)
            if found is not None:
                return found
            number += 1
        return None

    async def latest(self, segment: Segment, from_offset: int) -> RecordRank | None:
        """Of the latest record at or behind an offset; None if no file has a record there.

        One block is read, two if deleted records of the first file are later than all others.
        Raises FileGoneError, StorageError, BatchError.
        """

        async def read(key: str, file: RegisteredFile) -> RecordRank | None:
            blocks = await self._files.blocks(key, file)
            best: RecordRank | None = None
            for rank, index in sorted(
                (RecordRank.of(block.highest_ms, block.first_offset), index)
                for index, block in enumerate(blocks)
                if block.end_offset > from_offset
            ):
                if best is not None and best < rank:
                    break
                content = await self._files.batches(key, file, index)
                best = lower_rank(best, await latest_in_batches(content, from_offset))
            return best

        best: RecordRank | None = None
        looked_at: set[int] = set()
        while True:
            number = await self._registered.latest(segment, without=looked_at)
            if number is None:
                return best
            file = await self._registered.get(segment, number)
            if best is not None and best < RecordRank.of(file.highest_ms, file.first_offset):
                return best
            looked_at.add(number)
            best = lower_rank(best, await self._of_file(segment, number, read))
            if best is not None and best.time_ms == file.highest_ms:
                return best

    async def _of_file(
        self,
        segment: Segment,
        number: int,
        read: Callable[[str, RegisteredFile], Awaitable[_Result]],
    ) -> _Result:
        for _ in range(_ROUNDS_MAX):
            file = await self._registered.get(segment, number)
            key = file.name(self._topic, self._partition).key
            try:
                return await read(key, file)
            except ObjectNotFoundError:
                self._registered.look_again(number)
        raise CorruptedDataError(
            f"a registered file is missing segment={segment.name!r} file={number}"
        )


def _first_offset_of(block: FileBlock) -> int:
    return block.first_offset


def _batches_in(content: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Raises CorruptedDataError."""
    at = 0
    while at < len(content):
        try:
            header = parse_header(content, at)
        except BatchError as error:
            raise CorruptedDataError(f"a file gave no batch at={at}: {error}") from error
        yield at, header
        at += header.size


def _stretch(content: bytes, offset: int, room: int, *, at_least_one: bool) -> tuple[int, int, int]:
    """Begin and end of the batches to give, and the offset behind them; the end is that of the content if none is left
    out behind them."""
    begin = end = len(content)
    is_first = True
    for at, header in _batches_in(content):
        if header.next_offset <= offset:
            continue
        if is_first:
            begin = end = at
        fits = at + header.size - begin <= room
        if not fits and not (is_first and at_least_one):
            break
        end = at + header.size
        offset = header.next_offset
        is_first = False
    return begin, end, offset
