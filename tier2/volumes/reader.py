"""Look-ups, reads and listings: what index and volumes say of objects; and the queue that batches gets and heads.

`ReadQueue` makes one call of the executor for many gets and heads, since a call costs several times as much as a
look-up. `ObjectReader` does the work of these calls, from any thread: synchronous, and nothing is changed.

Small objects come out of the rows of a batch by one call where it was built (`native/row_reading.c`): what it does not
answer, and everything where there is none, is judged here, row by row.

Invariants:

- Many look-ups at once fail one by one: what one of them meets is its own answer, and fails no other caller.
- A record that compaction moves between look-up and read is looked up again. Several looks into the index that have to
  agree are taken again if it changed between them.
- Every byte that is handed out was checked (`check_pieces` of tier2/volumes/objects.py), unless the caller has sums
  of its own and says so.
- Of a key no more versions are read than are asked for. A key may have a million of them.
- That an object is not there is answered only if no damage of the index can hide it.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done
from segmentstore.runtime.files import File
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.native import native_module
from tier2.volumes.engine_failure import EngineFailure
from tier2.volumes.index import (
    CURRENT,
    BlobRow,
    IndexChanges,
    ObjectRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_object_row,
    decode_sequence,
    version_id_key,
    version_key,
    versions_end,
    versions_first,
)
from tier2.volumes.index_database import BufferedIndex
from tier2.volumes.objects import IndexRecord, KeyVersions, ListedObject, StoredObject, check_pieces
from tier2.volumes.volume_files import VolumeFiles, storage_error_of
from tier2.volumes.volume_format import KEY_BYTES_MAX

_LOOKUPS_MAX = 8
_LISTED_ROWS_MAX = 1000
"""Read at once behind delete markers, though fewer are asked for."""
_NATIVE_ROW_READING = native_module("tier2.volumes.native.row_reading")

_READ_CALLS_MAX = 4
"""Batches under way at a time: one that waits for the disk holds up only its own."""
_READ_BATCH_MAX = 64
"""Look-ups of one call, some 0.4 ms of a thread that computes."""

_Result = TypeVar("_Result")


@dataclass(slots=True)
class ReadRequest:
    """What a caller asks for: of a version, the bytes from `start` on, at most `length`; none of them is its record."""

    key: bytes
    version_id: str | None
    start: int = 0
    length: int | None = None
    checked: bool = True


_QueuedRead = tuple[ReadRequest, "Future[StoredObject]"]


class ObjectReader:
    """Each verb in one call; see VolumeEngine for what they promise."""

    def __init__(self, *, index: BufferedIndex, volumes: VolumeFiles) -> None:
        self._index = index
        self._volumes = volumes

    @property
    def has_recent(self) -> bool:
        """Whether `recent` may know anything."""
        return self._index.has_recent

    def recent(self, wanted: ReadRequest) -> StoredObject | ObjectRow | None:
        """As `look_up`, from memory alone, and never blocking: of what was changed a moment ago. None: ask the index.

        Raises ObjectNotFoundError, CorruptedDataError.
        """
        if wanted.version_id is not None:
            return None
        recent = self._index.recent(current_key(wanted.key))
        if recent is None:
            return None
        if recent[0] is None:
            raise _not_found(wanted.key)
        row = self._row(wanted, recent[0])
        answer = _answer_at_hand(row, wanted)
        return row if answer is None else answer

    def look_up(self, many: Sequence[ReadRequest]) -> list[StoredObject | ObjectRow | Exception]:
        """The answer to each, or why there is none; the row of one whose bytes are still to be read (`read`).

        One alone is read here.
        """
        if len(many) == 1:
            try:
                return [self.read(many[0])]
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                return [error]
        found: list[StoredObject | ObjectRow | Exception] = []
        contents = self._contents(many)
        small = _small_objects(contents)
        for wanted, content, stored in zip(many, contents, small, strict=True):
            if stored is not None and wanted.version_id is None:
                found.append(_wanted_part(stored, wanted))
                continue
            try:
                row = self._row(wanted, content)
                answer = _answer_at_hand(row, wanted)
            except Exception as error:  # noqa: BLE001 - as above
                found.append(error)
            else:
                found.append(row if answer is None else answer)
        return found

    def read(self, wanted: ReadRequest, row: ObjectRow | None = None) -> StoredObject:
        """`row`: what a look-up a moment ago found."""
        why: CorruptedDataError | None = None
        for _ in range(_LOOKUPS_MAX):
            if row is None:
                content = None
                if wanted.version_id is None:
                    content = self._index.get(current_key(wanted.key))
                row = self._row(wanted, content)
            answer = _answer_at_hand(row, wanted)
            if answer is not None:
                return answer
            record, row = row.record, None
            start, end = wanted.start, record.size
            if wanted.length is not None:
                end = min(end, start + wanted.length)
            try:
                if wanted.checked or end - start == record.size:
                    return StoredObject(record, self._read_checked(record, start, end))
                return StoredObject(record, self._read_blob(record, start, end))
            except CorruptedDataError as error:
                # It may have been overwritten or moved between the two looks: then another look finds another place.
                why = error
        assert why is not None, "a look ends with bytes or with a reason"
        raise why

    def open(self, wanted: ReadRequest) -> "OpenObject":
        """The whole version, to be read piece by piece whatever takes its place. Raises as `read`.

        The caller closes it.
        """
        for _ in range(_LOOKUPS_MAX):
            content = None
            if wanted.version_id is None:
                content = self._index.get(current_key(wanted.key))
            row = self._row(wanted, content)
            if not row.has_blob_row:
                return OpenObject(row.record, row.inline or b"", None, self._open_blob)
            blob = self._open_blob(row.record)
            if blob is not None:
                return OpenObject(row.record, b"", blob, self._open_blob)
        raise CorruptedDataError(f"an object has no bytes, or changes too fast key={wanted.key!r}")

    def _open_blob(self, record: IndexRecord) -> "OpenBlob | None":
        """Where the bytes are now; None if no object has them any more. Raises CorruptedDataError."""
        for _ in range(_LOOKUPS_MAX):
            found = self._index.get_certain(blob_key(record.content_hash))
            if found is None:
                return None
            blob = decode_blob_row(found)
            with suppress(FileNotFoundError):  # they moved between the two looks
                return OpenBlob(blob, self._volumes.open(blob.volume))
        raise CorruptedDataError(f"a volume is missing hash={record.content_hash.hex()}")

    def _contents(self, many: Sequence[ReadRequest]) -> Sequence[bytes | Exception | None]:
        """The row of each current version that is wanted, from one look into the index."""
        keys = [current_key(wanted.key) for wanted in many]
        try:
            return self._index.get_many(keys)
        except (CorruptedDataError, OSError):
            return [self._content(key) for key in keys]

    def _content(self, key: bytes) -> bytes | Exception | None:
        try:
            return self._index.get(key)
        except (CorruptedDataError, OSError) as error:
            return error

    def _row(self, wanted: ReadRequest, content: bytes | Exception | None) -> ObjectRow:
        """`content`: what the index has of the current version."""
        if wanted.version_id is None:
            if isinstance(content, Exception):
                raise content
            if content is None:
                content = self._index.get_certain(current_key(wanted.key))
            row = None if content is None else decode_object_row(content)
        else:
            key, version_id = wanted.key, wanted.version_id
            row = self._settled(key, lambda: IndexChanges(self._index).version(key, version_id))
            if row is None:
                IndexChanges(self._index).require_absent(key, version_id)
        if row is None or (row.record.delete_marker and wanted.version_id is None):
            raise _not_found(wanted.key)
        return row

    def _settled(
        self, key: bytes, look: Callable[[], tuple[bytes, ObjectRow] | None]
    ) -> ObjectRow | None:
        """What a look finds that takes several rows: taken again if the current version changed meanwhile."""
        for _ in range(_LOOKUPS_MAX):
            before = self._index.get(current_key(key))
            found = look()
            if found is not None:
                return found[1]
            if self._index.get(current_key(key)) == before:
                return None
        raise StorageError(f"an object changes faster than it can be read key={key!r}")

    def _read_checked(self, record: IndexRecord, start: int, end: int) -> bytes:
        """As `_read_blob`; raises CorruptedDataError also if a piece fails its checksum."""
        first, last = start // record.piece_bytes, -(-end // record.piece_bytes)
        checked_from = first * record.piece_bytes
        content = self._read_blob(record, checked_from, min(record.size, last * record.piece_bytes))
        check_pieces(content, first, record.pieces, record.piece_bytes)
        return content[start - checked_from : end - checked_from]

    def _read_blob(self, record: IndexRecord, start: int, end: int) -> bytes:
        """Raises CorruptedDataError if the blob has moved between look-up and read."""
        found = self._index.get_certain(blob_key(record.content_hash))
        if found is None:
            raise CorruptedDataError(f"an object has no bytes hash={record.content_hash.hex()}")
        blob = decode_blob_row(found)
        try:
            content = self._volumes.read(blob.volume, blob.blob_offset + start, end - start)
        except FileNotFoundError as error:
            raise CorruptedDataError(f"a volume is missing volume={blob.volume}") from error
        if len(content) < end - start:
            raise CorruptedDataError(
                f"a volume ends inside an object volume={blob.volume} offset={blob.blob_offset}"
            )
        return content

    def list(
        self, prefix: bytes, start_after: bytes, limit: int, *, markers: bool
    ) -> Sequence[ListedObject]:
        first = current_key(max(prefix, start_after + b"\0" if start_after else b""))
        end = _end_of(prefix)
        listed: list[ListedObject] = []
        asked = limit
        while len(listed) < limit:
            rows = self._index.scan(first, end, asked)
            for row_key, content in rows:
                row = decode_object_row(content)
                if markers or not row.record.delete_marker:
                    listed.append(ListedObject(row_key[1:], row.record))
            if len(rows) < asked:
                break
            first = rows[-1][0] + b"\0"
            # More than are missing, and more each time: there may be a million markers in front of the last object.
            asked = max(limit - len(listed), min(2 * asked, _LISTED_ROWS_MAX))
        return listed[:limit]

    def list_versions(
        self, prefix: bytes, start_at: bytes, limit: int, *, versions_max: int, behind: str | None
    ) -> Sequence[KeyVersions]:
        first = current_key(max(prefix, start_at))
        return [
            self._key_versions(
                row_key[1:], content, versions_max, behind if row_key[1:] == start_at else None
            )
            for row_key, content in self._index.scan(first, _end_of(prefix), limit)
        ]

    def _key_versions(
        self, key: bytes, content: bytes | None, versions_max: int, behind: str | None
    ) -> KeyVersions:
        """Looked at again while the current version changes meanwhile; none if all of them went."""
        for _ in range(_LOOKUPS_MAX):
            first = None if behind is None else self._place_behind(key, content, behind)
            earlier = self._index.scan(
                first or versions_first(key), versions_end(key), versions_max
            )
            before, content = content, self._index.get_certain(current_key(key))
            if content == before:
                with_current = first is None and content is not None
                rows = [content] if first is None and content is not None else []
                rows += [row for _, row in earlier]
                records = [decode_object_row(row).record for row in rows[:versions_max]]
                return KeyVersions(key, records, with_current)
        raise StorageError(f"an object changes faster than it can be listed key={key!r}")

    def _place_behind(self, key: bytes, content: bytes | None, version_id: str) -> bytes | None:
        """Where the versions behind that one begin; None if it is gone: the current one is the first then."""
        if content is not None and decode_object_row(content).record.version_id == version_id:
            return versions_first(key)
        number = self._index.get_certain(version_id_key(key, version_id))
        return None if number is None else version_key(key, decode_sequence(number)) + b"\0"


def _not_found(key: bytes) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"object does not exist key={key!r}")


@dataclass(frozen=True, slots=True)
class OpenBlob:
    """A place of bytes, and the open volume that it is in."""

    place: BlobRow
    file: File


class OpenObject:
    """A version whose bytes stay readable until close(), though it is overwritten, deleted or moved meanwhile.

    Its volume is open: bytes of a volume never change, and a file that is removed lasts as long as it is open. On a
    full disk a volume is cut shorter all the same: what was moved out of it is found where it is then, and what no
    object has any more is gone. Blocking; one call at a time.
    """

    def __init__(
        self,
        record: IndexRecord,
        inline: bytes,
        blob: OpenBlob | None,
        find: Callable[[IndexRecord], OpenBlob | None],
    ) -> None:
        """`find` opens the place where the bytes are now."""
        self.record = record
        self._inline = inline
        self._blob = blob
        self._find = find

    def read(self, start: int, length: int) -> bytes:
        """The bytes [start, start + length), or fewer at the end, checked.

        Raises CorruptedDataError, ObjectNotFoundError if they went, OSError.
        """
        for _ in range(_LOOKUPS_MAX):
            try:
                return self._read(start, length)
            except CorruptedDataError:
                if not self._has_moved():
                    raise
        raise StorageError(f"an object moves faster than it can be read blob={self._blob}")

    def _read(self, start: int, length: int) -> bytes:
        record = self.record
        end = min(record.size, start + length)
        if start >= end:
            return b""
        first, last = start // record.piece_bytes, -(-end // record.piece_bytes)
        checked_from, checked_to = first * record.piece_bytes, last * record.piece_bytes
        checked_to = min(record.size, checked_to)
        if self._blob is None:
            content = self._inline[checked_from:checked_to]
        else:
            offset = self._blob.place.blob_offset
            content = self._blob.file.read_at(offset + checked_from, checked_to - checked_from)
        if len(content) < checked_to - checked_from:
            raise CorruptedDataError(f"a volume ends inside an object blob={self._blob}")
        check_pieces(content, first, record.pieces, record.piece_bytes)
        return content[start - checked_from : end - checked_from]

    def _has_moved(self) -> bool:
        """Whether the bytes are elsewhere now: that is open then. Raises ObjectNotFoundError if they are nowhere."""
        former = self._blob
        if former is None:
            return False
        found = self._find(self.record)
        if found is None:
            raise ObjectNotFoundError(
                f"bytes that were overwritten or deleted had to make room place={former.place}"
            )
        self._blob = found
        former.file.close()
        return _place_of(found.place) != _place_of(former.place)

    def close(self) -> None:
        if self._blob is not None:
            self._blob.file.close()


def _place_of(blob: BlobRow) -> tuple[int, int]:
    return blob.volume, blob.blob_offset


def _small_objects(
    contents: Sequence[bytes | Exception | None],
) -> Sequence[StoredObject | None]:
    """Those whose rows have all their bytes, checked; None for all others, which are no worse for it."""
    if _NATIVE_ROW_READING is None:
        return [None] * len(contents)
    found: list[StoredObject | None] = _NATIVE_ROW_READING.small_objects(
        contents, IndexRecord, StoredObject
    )
    return found


def _end_of(prefix: bytes) -> bytes:
    """Behind the rows of the current versions of all keys that begin so."""
    return CURRENT + prefix + b"\xff" * (KEY_BYTES_MAX + 1 - len(prefix))


def _wanted_part(stored: StoredObject, wanted: ReadRequest) -> StoredObject:
    """Of the whole object, what is wanted."""
    if wanted.length is None and not wanted.start:
        return stored
    end = None if wanted.length is None else wanted.start + wanted.length
    return StoredObject(stored.record, stored.content[wanted.start : end])


def _answer_at_hand(row: ObjectRow, wanted: ReadRequest) -> StoredObject | None:
    """The answer, unless bytes have to be read from a volume. Raises CorruptedDataError."""
    record, inline = row.record, row.inline
    start, end = wanted.start, record.size
    if wanted.length is not None:
        end = min(end, start + wanted.length)
    if start >= end:
        return StoredObject(record, b"")
    if inline is None:
        return None
    check_pieces(inline, 0, record.pieces, record.piece_bytes)
    return StoredObject(record, inline[start:end])


class ReadQueue:
    """What waits to be looked up, by the batch. Close it before what it reads from.

        get, head -> (end of this turn of the loop) what the index still has in memory is answered at once
           all others -> queue -> a batch, in one call: one look into the database for all of it
              small objects stand in the index: answered by this call
              blobs: each is read in a call of its own, side by side, unless it is alone in its batch

    Invariants:

    - A look-up begins after it was asked for: it sees every change whose verb had returned by then.
    - A caller that goes away takes nothing from others.
    - Nothing waits for company: what one turn of the loop brings begins with its end, unless all calls are under way.
    - `_READ_CALLS_MAX` batches at most are under way, and there is one entry for each caller that waits.
    - A caller lets the loop go on before it has its answer, and one turn answers `_READ_BATCH_MAX` from memory at most.
    - The loop touches no page of the database: one that is not in memory would stop everything until the disk has it.
    - Nothing is under way after close(): what was read from may be closed then.
    - When a callback of this queue fails, the engine ends (engine_failure.py).
    """

    def __init__(
        self, *, lookups: ObjectReader, executor: Executor | None, failure: EngineFailure
    ) -> None:
        self._lookups = lookups
        self._executor = executor
        self._failure = failure
        failure.tell(self._end_all)
        self._asked: list[_QueuedRead] = []
        """In this turn of the loop."""
        self._queue: deque[_QueuedRead] = deque()
        self._under_way = 0
        """Batches."""
        self._calls: dict[Future[Any], Callable[[BaseException], None]] = {}
        """Under way, of all kinds; with what tells the callers of each of an error."""
        self._idle: Future[None] | None = None
        """close() waits until there are none."""

    def read(self, wanted: ReadRequest) -> "Future[StoredObject]":
        """Raises ObjectNotFoundError, CorruptedDataError, StorageError."""
        loop = asyncio.get_running_loop()
        future: Future[StoredObject] = loop.create_future()
        refusal = self._failure.refusal()
        if refusal is not None:
            _fail_future(future, refusal)
            return future
        if not wanted.checked:
            # Parts of chunks and SSTs, which are no small objects.
            self._read_alone((wanted, future), None)
            return future
        if not self._asked:
            loop.call_soon(guarded(self._begin, self._failure.fail))
        self._asked.append((wanted, future))
        return future

    def call(self, call: Callable[[], _Result]) -> "Future[_Result]":
        """A call of its own, for whatever else is read. Raises what it raises."""
        future: Future[_Result] = asyncio.get_running_loop().create_future()
        refusal = self._failure.refusal()
        if refusal is not None:
            _fail_future(future, refusal)
            return future
        failed = partial(_fail_future, future)
        self._start(call, partial(complete_unless_done, future), failed, failed)
        return future

    async def close(self) -> None:
        """Waits for what is under way, also for callers that went away. No caller may ask any more."""
        while self._calls or self._asked:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _begin(self) -> None:
        answered = 0
        has_recent = self._lookups.has_recent
        for waiting in self._asked:
            if has_recent and answered < _READ_BATCH_MAX and self._is_answered(waiting):
                answered += 1
            else:
                self._queue.append(waiting)
        self._asked = []
        self._start_batches()
        self._rest()

    def _is_answered(self, waiting: _QueuedRead) -> bool:
        """Whether memory has all that is said of it. A blob is on its way then."""
        wanted, future = waiting
        if future.done():
            return True
        try:
            found = self._lookups.recent(wanted)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            _fail_future(future, error)
            return True
        if found is None:
            return False
        if isinstance(found, ObjectRow):
            self._read_alone(waiting, found)
        else:
            future.set_result(found)
        return True

    def _start_batches(self) -> None:
        while self._queue and self._under_way < _READ_CALLS_MAX:
            batch = self._next_batch()
            if not batch:
                return
            self._under_way += 1
            self._start(
                partial(self._lookups.look_up, [wanted for wanted, _ in batch]),
                partial(self._end, batch),
                partial(self._end_failed, batch),
                partial(_fail_batch, batch),
            )

    def _next_batch(self) -> list[_QueuedRead]:
        batch: list[_QueuedRead] = []
        while self._queue and len(batch) < _READ_BATCH_MAX:
            waiting = self._queue.popleft()
            if not waiting[1].done():
                batch.append(waiting)
        return batch

    def _end(
        self,
        batch: list[_QueuedRead],
        answers: list[StoredObject | ObjectRow | Exception],
    ) -> None:
        self._under_way -= 1
        for waiting, one in zip(batch, answers, strict=True):
            future = waiting[1]
            if future.done():
                continue
            if isinstance(one, StoredObject):
                future.set_result(one)
            elif isinstance(one, ObjectRow):
                self._read_alone(waiting, one)
            else:
                _fail_future(future, one)
        self._start_batches()

    def _end_failed(self, batch: list[_QueuedRead], error: BaseException) -> None:
        self._under_way -= 1
        _fail_batch(batch, error)
        self._start_batches()

    def _read_alone(self, waiting: _QueuedRead, row: ObjectRow | None) -> None:
        wanted, future = waiting
        failed = partial(_fail_future, future)
        self._start(
            partial(self._lookups.read, wanted, row),
            partial(complete_unless_done, future),
            failed,
            failed,
        )

    def _start(
        self,
        call: Callable[[], _Result],
        end: Callable[[_Result], None],
        failed: Callable[[BaseException], None],
        tell: Callable[[BaseException], None],
    ) -> None:
        """`failed` is told that the call has failed; `tell` gives an error to its callers, and does nothing else."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError as error:  # the executor is shut down
            failed(error)
            return
        self._calls[running] = tell
        running.add_done_callback(
            guarded(partial(self._ended, end, failed), partial(self._break, running))
        )

    def _ended(
        self,
        end: Callable[[_Result], None],
        failed: Callable[[BaseException], None],
        running: "Future[_Result]",
    ) -> None:
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if error is None:
            end(running.result())
        else:
            failed(error)
        del self._calls[running]
        self._rest()

    def _break(self, running: "Future[Any]", bug: Exception) -> None:
        """What follows a call has failed."""
        self._failure.fail(bug)
        self._calls.pop(running, None)
        self._rest()

    def _end_all(self, error: StorageError) -> None:
        """The engine ends: all that wait are told."""
        _fail_batch([*self._asked, *self._queue], error)
        self._asked = []
        self._queue.clear()
        for tell in list(self._calls.values()):
            tell(error)
        self._rest()

    def _rest(self) -> None:
        if self._idle is not None and not self._calls and not self._asked:
            complete_unless_done(self._idle, None)
            self._idle = None


def _fail_batch(batch: list[_QueuedRead], error: BaseException) -> None:
    for _, future in batch:
        _fail_future(future, error)


def _fail_future(future: "Future[_Result]", error: BaseException) -> None:
    if isinstance(error, OSError):
        error = storage_error_of(error, "the volumes cannot be read")
    fail_unless_done(future, error)
