"""What writers say about times: the verbs, the records that they change, and the times that commits brought along.

    in the table of the stream's scope
    record `mark/<stream>/<writer>`   the newest time of a writer
    index `marks/<stream>`            its writers
    index `marked`                    streams with writers

The commit of a transaction carries the time that its writer noted. It takes effect with the commit, whose worker
does not wait for it but leaves it in PendingTimes: a time that is lost there, in a crash or because too many wait, only
delays a watermark.

Invariants:

- A writer's time and position never go back.
- A writer that is listed has a name, so that a listing finds it, and a short one, so that a page has room for others.
- A writer that was closed keeps its last mark until it counts no more.
- A stream with writers is among the marked ones: a writer that is its first one lists it with its mark, and it is taken
  out only in a batch that finds it without writers.
- A stream has at most `writers_per_stream_max` writers. They are counted when a run meets the first new one, and again
  at the bound; in between the count is kept here, never below what the table says, since no other controller adds.
- At most `waiting_max` times of commits wait; of one writer only the newest does.
"""

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.transaction_records import (
    NO_TIMESTAMP,
    TransactionRecord,
)
from segmentstore.codec.controller_records.watermark_records import WriterMarkRecord
from segmentstore.codec.stream_names import WRITER_NAME_BYTES_MAX
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import (
    IndexNotEmptyError,
    MetadataConflictError,
    RetryLaterError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.settings import WatermarkSettings
from segmentstore.controller.streams.stream_cuts import normalised, reaches
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_operations import StreamOperations

MARKED_INDEX: Final = "marked"
"""In a scope's table: streams whose writers note times."""

_NAMES_PER_READ: Final = 100
_NOTE_ATTEMPTS_MAX: Final = 8
_COUNTED_STREAMS_MAX: Final = 10_000
"""The writers of further ones are counted again."""

NoteResponse = api.TimestampResponse
RemoveResponse = api.RemoveWriterResponse


class WriterMarks:
    """Reads and changes the marks of writers."""

    def __init__(self, *, operations: StreamOperations, settings: WatermarkSettings) -> None:
        self._operations = operations
        self._settings = settings
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Stream -> its writers, those forgotten since the counting included."""

    async def note(self, request: api.TimestampFromWriter) -> api.TimestampResponse:
        """A writer says that what it writes behind `position` is not older than `timestamp`."""
        stream = request.position.streamInfo
        return NoteResponse(
            result=await self.note_time(
                stream.scope,
                stream.stream,
                request.writer,
                request.timestamp,
                dict(request.position.cut),
            )
        )

    async def note_time(
        self, scope: str, stream: str, writer: str, time: int, position: Mapping[int, int]
    ) -> api.TimestampResponse.Status:
        """The same, by its parts. Raises RetryLaterError (too many writers), InvalidRequestError (its name)."""
        length = len(writer.encode())
        if not 0 < length <= WRITER_NAME_BYTES_MAX:
            raise InvalidRequestError(
                f"the name of a writer has 1 to {WRITER_NAME_BYTES_MAX} bytes length={length}"
            )
        status = NoteResponse.Status
        try:
            for _ in range(_NOTE_ATTEMPTS_MAX):
                history = await self._operations.history(scope, stream)
                await history.state()
                try:
                    return await self._note(history, writer, time, normalised(position))
                except MetadataConflictError:
                    continue
        except (ScopeNotFoundError, StreamNotFoundError):
            return status.INTERNAL_ERROR
        except (StreamSegmentNotFoundError, InvalidRequestError):
            return status.INVALID_POSITION
        raise RetryLaterError(f"a writer's mark keeps changing stream={scope!r}/{stream!r}")

    async def remove(self, request: api.RemoveWriterRequest) -> api.RemoveWriterResponse:
        """A writer was closed: no watermark waits for its next time."""
        status = RemoveResponse.Status
        try:
            history = await self._operations.history(request.stream.scope, request.stream.stream)
            await history.state()
        except (ScopeNotFoundError, StreamNotFoundError):
            return RemoveResponse(result=status.STREAM_DOES_NOT_EXIST)
        key = mark_key(history.stream, request.writer)
        known = await history.table.read(key)
        if known.record is None:
            return RemoveResponse(result=status.UNKNOWN_WRITER)
        if known.record.alive:
            batch = Batch()
            batch.put(key, dataclasses.replace(known.record, alive=False), known)
            await history.table.commit(batch)
        return RemoveResponse(result=status.SUCCESS)

    async def of_stream(self, history: StreamHistory) -> dict[str, WriterMarkRecord]:
        """Every writer's mark, in the order of their names."""
        marks: dict[str, WriterMarkRecord] = {}
        after, more = "", True
        while more:
            page = await history.table.names(
                _writers_index(history.stream), after=after, count=_NAMES_PER_READ
            )
            found = await history.table.read_many(
                [mark_key(history.stream, writer) for writer in page.names]
            )
            for writer, mark in zip(page.names, found, strict=True):
                if mark.record is not None:
                    marks[writer] = mark.record
                after = writer
            # What is in memory comes without a turn of the loop.
            await asyncio.sleep(0)
            more = page.more
        return marks

    async def forget(
        self, history: StreamHistory, writer: str, mark: WriterMarkRecord | None = None
    ) -> None:
        """Remove a writer; not if it has noted another mark than `mark` meanwhile."""
        key = mark_key(history.stream, writer)
        known = await history.table.read(key)
        if mark is not None and known.record != mark:
            return
        batch = Batch()
        batch.remove(key, known)
        batch.unlist_name(_writers_index(history.stream), writer)
        await history.table.commit(batch)

    async def forget_stream(self, history: StreamHistory) -> None:
        """The stream is being deleted, and no writer notes times any more. Raises RetryLaterError (one still did)."""
        index = _writers_index(history.stream)
        for _ in range(_NOTE_ATTEMPTS_MAX):
            names = history.table.all_names(index, per_read=_NAMES_PER_READ)
            async with aclosing(names) as writers:
                async for writer in writers:
                    await self.forget(history, writer)
            # Earlier versions took a writer without a name, which no listing finds.
            await self.forget(history, "")
            if await self.forget_if_unmarked(history):
                return
        raise RetryLaterError(f"writers keep noting times stream={history.name!r}")

    async def forget_if_unmarked(self, history: StreamHistory) -> bool:
        """List the stream no more, unless it has a writer, be it since a moment ago; whether it is not listed."""
        batch = Batch()
        batch.require_empty(_writers_index(history.stream))
        batch.unlist_name(MARKED_INDEX, history.stream)
        try:
            await history.table.commit(batch)
        except IndexNotEmptyError:
            return False
        self._counts.pop((history.scope, history.stream), None)
        return True

    async def _count_one_more(self, history: StreamHistory) -> None:
        """Raises RetryLaterError if the stream has as many writers as it may have."""
        key = (history.scope, history.stream)
        writers_max = self._settings.writers_per_stream_max
        count = self._counts.get(key)
        if count is None or count >= writers_max:
            names = await history.table.names(_writers_index(history.stream), count=writers_max)
            # Others may have been counted while the names were read: rather too many than too few.
            count = max(len(names.names), self._counts.get(key, 0) if count is None else 0)
        if count >= writers_max:
            self._counts[key] = count
            raise RetryLaterError(f"too many writers note times stream={history.name!r}")
        self._counts[key] = count + 1
        self._counts.move_to_end(key)
        if len(self._counts) > _COUNTED_STREAMS_MAX:
            self._counts.popitem(last=False)

    async def _note(
        self, history: StreamHistory, writer: str, time: int, position: dict[int, int]
    ) -> api.TimestampResponse.Status:
        status = NoteResponse.Status
        segments = await history.segments_of(position)
        key = mark_key(history.stream, writer)
        known = await history.table.read(key)
        batch = Batch()
        before = known.record
        if before is None:
            await self._count_one_more(history)
            batch.list_name(_writers_index(history.stream), writer)
            batch.list_name(MARKED_INDEX, history.stream)
        else:
            if time < before.time:
                return status.INVALID_TIME
            earlier = await history.segments_of(before.position)
            if not reaches(position, segments, before.position, earlier):
                return status.INVALID_POSITION
        mark = WriterMarkRecord(time=time, alive=True, position=position)
        if mark != before:
            batch.put(key, mark, known)
            await history.table.commit(batch)
        return status.SUCCESS


def mark_key(stream: str, writer: str) -> RecordKey[WriterMarkRecord]:
    """Where a writer's mark stands, in the table of the scope."""
    return RecordKey(record_keys.writer_mark(stream, writer), WriterMarkRecord.decode)


def _writers_index(stream: str) -> str:
    return f"marks/{stream}"


@dataclass(frozen=True, slots=True)
class PendingTime:
    """What a writer noted, in the unit that the stream's writers use."""

    scope: str
    stream: str
    writer: str
    time: int
    position: Mapping[int, int]


class PendingTimes:
    """A queue between commits and watermarks."""

    def __init__(self, *, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: OrderedDict[tuple[str, str, str], PendingTime] = OrderedDict()

    def enqueue(self, scope: str, stream: str, committed: TransactionRecord) -> None:
        """Remember the time that came with a commit, if one did, until `take` hands it out."""
        writer, time = committed.writer, committed.timestamp
        if not writer or time == NO_TIMESTAMP:
            return
        key = (scope, stream, writer)
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.time > time:
            return
        if waiting is not None or len(self._waiting) < self._waiting_max:
            self._waiting[key] = PendingTime(scope, stream, writer, time, dict(committed.merged))

    def take(self) -> list[PendingTime]:
        """All that wait, first one first; they wait no longer."""
        taken = list(self._waiting.values())
        self._waiting.clear()
        return taken
