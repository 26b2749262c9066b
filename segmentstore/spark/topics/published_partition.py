"""One partition of a topic as Tier 2 shows it: files of records up to a place, batches in chunks from there on.

    attributes of the partition's segment -> PartitionFacts -> the file, or the position in the segment, of an offset

The attributes are those of segmentstore/codec/topic_files.py, segmentstore/topics/partition_log.py and
segmentstore/topics/batch_positions.py.

Invariants:

- Nothing is listed. What is told is as of one published manifest; refresh() looks at a newer one.
- A file is read by ranges (tier2/read/record_file_index.py): its index, and of its blocks those that are wanted.
- Batches are given whole, in order, from the one that contains the offset on.
"""

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    parse_header,
)
from segmentstore.codec.topic_files import (
    COLD_END,
    FIRST_FILE,
    LAST_FILE,
    LOG_START,
    RegisteredFile,
    count_of,
    decode_file,
    file_key,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    AttributeKey,
    AttributeValue,
    SegmentId,
)
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.scan.block_reader import BlockReader
from segmentstore.spark.tier2_access import Tier2Reader
from segmentstore.spark.topics.record_rows import runs_of_batches
from segmentstore.topics.batch_positions import (
    LAST_MARK,
    NO_TIME,
    Mark,
    Place,
    decode_mark,
    mark_key,
)
from segmentstore.topics.record_files.published_files import published_files
from tier2.outside_access import (
    ContainerReader,
    ReadChecked,
    RecordFileIndex,
    batches_of_stored_block,
    read_checked,
    read_record_file_index,
)

_Result = TypeVar("_Result")
_GROUP_BYTES: Final = 4 << 20
"""Stored bytes of blocks that one request brings."""
_BATCH_BYTES: Final = 1 << 20
"""Of batches that blocks are turned to: as large as a block is."""
_PAGE_KEYS: Final = 512


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What is published of a partition."""

    segment_id: SegmentId
    log_start: int
    """The lowest offset that may be read."""
    cold_end: int
    """Below it records lie in files; the log start, or less, if there are none."""
    end: int
    """Behind the last published record."""
    first_file: int
    last_file: int
    last_mark: int
    start_position: int
    """Of the first published batch in the segment."""
    end_position: int


@dataclass(frozen=True, slots=True)
class FileBlock:
    """One block of a record file."""

    batches: bytes
    """Its records, as batches that are not compressed."""
    first_offset: int
    end_offset: int


class PublishedPartition:
    """Of one store; nothing is held open but the reader it is given."""

    def __init__(
        self,
        view: Tier2Reader,
        *,
        topic: str,
        partition: int,
        segment_name: str,
        executor: Executor | None,
    ) -> None:
        self._view = view
        self._topic = topic
        self._partition = partition
        self._segment_name = segment_name
        self._executor = executor
        self._container: ContainerReader | None = None

    async def refresh(self) -> None:
        """Look at the newest manifest from now on. Raises StorageError."""
        if self._container is not None:
            await self._container.refresh()
        else:
            await self._view.refresh()

    async def look(self) -> PartitionFacts | None:
        """None if nothing of it was published. Raises StorageError."""
        container = await self._view.container(self._view.container_id(self._segment_name))
        record = None if container is None else await container.find(self._segment_name)
        if container is None or record is None:
            return None
        self._container = container
        return facts_of_record(record)

    # --- files -----------------------------------------------------------------------------------

    async def file_at(self, facts: PartitionFacts, offset: int) -> RegisteredFile | None:
        """The file that answers for an offset below `cold_end`, or the next one behind it if that was unregistered
        meanwhile; None without either."""
        number = await self._first_file(facts, lambda file: file.end_offset > offset)
        return await self._file(facts, number) if number <= facts.last_file else None

    async def files(
        self, facts: PartitionFacts, fits: Callable[[RegisteredFile], bool]
    ) -> AsyncGenerator[RegisteredFile, None]:
        """From the first that fits on; what fits once fits for all that follow. Hold it in `aclosing`."""
        number = await self._first_file(facts, fits)
        async with aclosing(
            published_files(self._opened(), facts.segment_id, first=number, last=facts.last_file)
        ) as found:
            async for _, file in found:
                yield file

    async def _first_file(
        self, facts: PartitionFacts, fits: Callable[[RegisteredFile], bool]
    ) -> int:
        """Its number; one behind the last if none fits. O(log files) look-ups."""
        low, high = max(1, facts.first_file), facts.last_file + 1
        while low < high:
            middle = (low + high) // 2
            file = await self._file(facts, middle)
            # Files are unregistered from the front: one that is not there lies before those that are.
            if file is None or not fits(file):
                low = middle + 1
            else:
                high = middle
        return low

    async def _file(self, facts: PartitionFacts, number: int) -> RegisteredFile | None:
        value = await self._attribute(facts, file_key(number))
        return None if value is None else decode_file(value)

    async def blocks(
        self,
        file: RegisteredFile,
        start: int,
        end: int,
        *,
        lowest_time_ms: int | None = None,
        highest_time_ms: int | None = None,
    ) -> AsyncGenerator[list[FileBlock], None]:
        """The blocks that hold offsets of [start, end), those wholly outside of the times left out; as they come
        together. Hold it in `aclosing`. Raises ObjectNotFoundError, CorruptedDataError."""
        key = file.name(self._topic, self._partition).key

        async def read(start: int, length: int, check: Callable[[bytes], _Result]) -> _Result:
            return await read_checked(
                self._view.store.get_range, key, start, length, check, executor=self._executor
            )

        found = await read_record_file_index(read, file, key=key)
        index = found.chunk_index
        group: list[int] = []
        size = 0
        for number, entry in enumerate(index.entries):
            if index.block_end_offset(number) <= start or entry.first_offset >= end:
                continue
            events = entry.events
            if events is not None and (
                (lowest_time_ms is not None and events.highest_time_ms < lowest_time_ms)
                or (highest_time_ms is not None and events.lowest_time_ms > highest_time_ms)
            ):
                continue
            if group and (group[-1] + 1 != number or size + entry.stored_length > _GROUP_BYTES):
                yield await _read_blocks(read, found, group, key=key)
                group, size = [], 0
            group.append(number)
            size += entry.stored_length
        if group:
            yield await _read_blocks(read, found, group, key=key)

    # --- batches ---------------------------------------------------------------------------------

    async def batches(
        self, facts: PartitionFacts, place: Place, *, offset: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Whole batches that hold offsets of [offset, end), some together. `place` is where a batch at or before
        begins. Hold it in `aclosing`. Raises SegmentTruncatedError, SegmentNotFoundError, StorageError."""
        blocks = BlockReader(
            view=self._view,
            container=self._opened(),
            segment_id=facts.segment_id,
            executor=self._executor,
        )
        position = place.position
        rest = b""
        groups = blocks.read(position, facts.end_position, facts.end_position)
        async with aclosing(groups) as found:
            async for group in found:
                parts = [rest]
                for block in group:
                    # Chunks that were joined meanwhile begin before what came already, also inside of a group.
                    parts.append(bytes(block.content[max(0, position - block.facts.offset) :]))
                    position = block.end_offset
                content = b"".join(parts)
                whole, is_behind = _whole_batches(content, offset, end, self._segment_name)
                if whole.stop > whole.start:
                    yield content[whole.start : whole.stop]
                if is_behind:
                    return
                rest = content[whole.stop :]

    async def place_of(self, facts: PartitionFacts, fits: Callable[[Place], bool]) -> Place:
        """The last mark that fits (those before it do as well), or the first published batch. O(log marks) look-ups."""
        best = Place(facts.start_position, 0, NO_TIME)
        low, high = 1, facts.last_mark
        while low <= high:
            middle = (low + high) // 2
            value = await self._attribute(facts, mark_key(middle))
            mark = None if value is None else decode_mark(value)
            is_before = mark is None or mark.place.position < facts.start_position
            if mark is None or is_before or fits(mark.place):
                # One that was removed lies below the start of the segment.
                if mark is not None and not is_before:
                    best = mark.place
                low = middle + 1
            else:
                high = middle - 1
        return best

    async def marks(self, facts: PartitionFacts) -> list[Mark]:
        """All that are published, in order."""
        found: list[Mark] = []
        following: AttributeKey | None = mark_key(0)
        while following is not None and facts.last_mark:
            page = await self._opened().scan_attributes(
                facts.segment_id,
                start=following,
                end=mark_key(facts.last_mark + 1),
                count=_PAGE_KEYS,
            )
            found += [decode_mark(value) for _, value in page.values]
            following = page.following
        return found

    async def first_not_older(self, time_ms: int) -> int | None:
        """The offset of the first published record that is not older than that; None if there is none."""
        facts = await self.look()
        if facts is None:
            return None
        files = self.files(facts, lambda file: file.highest_ms_until_end >= time_ms)
        async with aclosing(files) as found:
            async for file in found:
                # The highest time until its end may be that of a record that was deleted.
                is_old = file.highest_ms < time_ms or file.end_offset <= facts.log_start
                if is_old or file.is_batch:
                    continue
                offset = await self._first_of_file(file, facts.log_start, time_ms)
                if offset is not None:
                    return offset
        start = max(facts.log_start, facts.cold_end)
        place = await self.place_of(facts, lambda each: each.highest_ms < time_ms)
        batches = self.batches(facts, place, offset=start, end=facts.end)
        async with aclosing(batches) as pieces:
            async for piece in pieces:
                runs, _ = runs_of_batches(
                    piece,
                    start=start,
                    end=facts.end,
                    lowest_time_ms=time_ms,
                    source=self._segment_name,
                )
                for run in runs:
                    offset = run.first_not_older(time_ms)
                    if offset is not None:
                        return offset
        return None

    async def _first_of_file(
        self, file: RegisteredFile, log_start: int, time_ms: int
    ) -> int | None:
        start = max(file.first_offset, log_start)
        groups = self.blocks(file, start, file.end_offset, lowest_time_ms=time_ms)
        async with aclosing(groups) as found:
            async for group in found:
                for block in group:
                    runs, _ = runs_of_batches(
                        block.batches,
                        start=start,
                        end=file.end_offset,
                        lowest_time_ms=time_ms,
                        source=self._segment_name,
                    )
                    for run in runs:
                        offset = run.first_not_older(time_ms)
                        if offset is not None:
                            return offset
        return None

    # --- steps -----------------------------------------------------------------------------------

    async def _attribute(self, facts: PartitionFacts, key: AttributeKey) -> AttributeValue | None:
        return (await self._opened().load_attributes(facts.segment_id, [key])).get(key)

    def _opened(self) -> ContainerReader:
        assert self._container is not None, f"not looked at segment={self._segment_name!r}"
        return self._container


def facts_of_record(record: SegmentRecord) -> PartitionFacts:
    """What a partition's segment says of itself. Raises CorruptedDataError."""
    return PartitionFacts(
        segment_id=record.segment_id,
        log_start=_number(record, LOG_START),
        cold_end=_number(record, COLD_END),
        end=_number(record, EVENT_COUNT),
        first_file=_number(record, FIRST_FILE),
        last_file=_number(record, LAST_FILE),
        last_mark=_number(record, LAST_MARK),
        start_position=record.start_offset,
        end_position=record.length,
    )


async def _read_blocks(
    read: ReadChecked, found: RecordFileIndex, numbers: list[int], *, key: str
) -> list[FileBlock]:
    """Neighbouring ones. Raises CorruptedDataError, ObjectNotFoundError, StorageError."""
    index = found.chunk_index
    start = index.entries[numbers[0]].position

    def batches_of(stored: bytes) -> list[FileBlock]:
        view = memoryview(stored)
        blocks: list[FileBlock] = []
        for number in numbers:
            entry = index.entries[number]
            batches = batches_of_stored_block(
                view[entry.position - start : entry.end_position - start],
                entry,
                found.flags,
                batch_bytes_max=_BATCH_BYTES,
                source=f"{key} block={number}",
            )
            blocks.append(FileBlock(batches, entry.first_offset, index.block_end_offset(number)))
        return blocks

    return await read(start, index.entries[numbers[-1]].end_position - start, batches_of)


def _whole_batches(content: bytes, offset: int, end: int, name: str) -> tuple[slice, bool]:
    """Where the batches lie that hold offsets of [offset, end), as far as they are whole; whether one begins behind.

    Raises CorruptedDataError.
    """
    at = start = 0
    while at + BATCH_HEADER_BYTES <= len(content):
        try:
            header = parse_header(content, at)
        except BatchError as error:
            raise CorruptedDataError(
                f"a partition has no batch here name={name!r}: {error}"
            ) from error
        if header.base_offset >= end:
            return slice(start, at), True
        if at + header.size > len(content):
            break
        at += header.size
        if header.next_offset <= offset:
            start = at
    return slice(start, at), False


def _number(record: SegmentRecord, key: AttributeKey) -> int:
    return count_of(record.core_attributes, key, name=record.name)
