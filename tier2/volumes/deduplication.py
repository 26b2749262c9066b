"""A put whose bytes are stored already: these are read and checked before the put is answered with them.

`DuplicateCheckQueue` holds the puts that wait for it, `DuplicateCheck` looks.

Invariants:

- An answered put can be read back: it refers to bytes that it wrote, or to bytes that were found sound.
- Sound is what reads and a rebuild would find: the volume is there with its header, the record's header is good, its
  checksum is that of key, index record and bytes, and the bytes are those of the put, by its own checksums.
- Bytes that take the place of bytes that others name are certainly what their hash says: of buffers that may change
  meanwhile a copy is hashed again, and written.
- Only the put itself waits for its check: it leaves the commit queue and joins it again, behind those that came
  meanwhile. It was not answered, so its caller cannot tell in which order changes side by side were made.
- A put whose caller went away before its check began or ended is not made: the caller may have deleted its key since.
- A few calls are under way at a time; the other puts wait here, each as one of the bounded queue. A call takes what
  came in one turn of the loop, as long as that is little: handing over costs more than reading small objects.
"""

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from functools import partial

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File
from segmentstore.runtime.guarded_callback import guarded
from tier2.volumes.index import BlobRow
from tier2.volumes.mutations import CheckedDuplicate, DuplicateFound, Put
from tier2.volumes.objects import IndexRecord, cannot_change, digest, digest_by_name
from tier2.volumes.volume_files import VolumeFiles
from tier2.volumes.volume_format import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_index_record,
    decode_record_header,
    seed_of,
)
from tier2.volumes.write_batch import QueuedMutation

_LOGGER = logging.getLogger(__name__)

_CHECK_CALLS_MAX = 4
"""Each has a thread for as long as its objects are read."""
_CHECK_CALL_BYTES_MAX = 1 << 20
"""Unless it is one object: all puts that share a call wait for all of it."""


class DuplicateCheckQueue:
    """Where the puts of one write queue wait while their bytes are checked."""

    def __init__(
        self,
        *,
        check: Callable[[Put, DuplicateFound], Put],
        executor: Executor | None,
        checked: Callable[[QueuedMutation, Put | BaseException | None], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """`check` is called in the executor; `fail` when a callback of this queue fails.

        checked: the put as it may join the queue again, or why it cannot; None: its caller does not wait any more.
        """
        self._check = check
        self._executor = executor
        self._checked = checked
        self._fail = fail
        self._queue: deque[tuple[QueuedMutation, DuplicateFound]] = deque()
        self._under_way = 0
        """Calls."""
        self._is_due = False

    def join(self, waiting: QueuedMutation, found: DuplicateFound) -> None:
        """`checked` is called once for it."""
        self._queue.append((waiting, found))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(guarded(self._begin, self._fail))

    def _begin(self) -> None:
        self._is_due = False
        loop = asyncio.get_running_loop()
        while self._under_way < _CHECK_CALLS_MAX:
            share = self._take()
            if not share:
                return
            puts = [(_queued_put(waiting), found) for waiting, found in share]
            try:
                call = loop.run_in_executor(self._executor, self._check_all, puts)
            except RuntimeError as error:  # the executor is shut down
                self._tell(share, [error] * len(share))
                continue
            self._under_way += 1
            call.add_done_callback(guarded(partial(self._see_end, share), self._fail))

    def _take(self) -> list[tuple[QueuedMutation, DuplicateFound]]:
        """What one call checks."""
        share: list[tuple[QueuedMutation, DuplicateFound]] = []
        size = 0
        while self._queue:
            waiting, _ = first = self._queue[0]
            if waiting.future.done():
                self._queue.popleft()
                self._checked(waiting, None)
                continue
            size += _queued_put(waiting).draft.size
            if share and size > _CHECK_CALL_BYTES_MAX:
                break
            share.append(first)
            self._queue.popleft()
        return share

    def _check_all(self, puts: Sequence[tuple[Put, DuplicateFound]]) -> list[Put | BaseException]:
        """In the executor."""
        outcomes: list[Put | BaseException] = []
        for put, found in puts:
            try:
                outcomes.append(self._check(put, found))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                outcomes.append(error)
        return outcomes

    def _see_end(
        self,
        share: list[tuple[QueuedMutation, DuplicateFound]],
        call: "Future[list[Put | BaseException]]",
    ) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        self._tell(share, call.result() if error is None else [error] * len(share))
        self._begin()

    def _tell(
        self,
        share: list[tuple[QueuedMutation, DuplicateFound]],
        outcomes: Sequence[Put | BaseException],
    ) -> None:
        for (waiting, _), outcome in zip(share, outcomes, strict=True):
            self._checked(waiting, None if waiting.future.done() else outcome)


def _queued_put(waiting: QueuedMutation) -> Put:
    put = waiting.mutation
    assert isinstance(put, Put), f"only puts find bytes {put=}"
    return put


class DuplicateCheck:
    """Reads and checks the bytes. Blocking; made for any number of an executor's threads at once. Memory: one piece."""

    def __init__(self, *, volumes: VolumeFiles) -> None:
        self._volumes = volumes

    def check(self, put: Put, found: DuplicateFound) -> Put:
        """The same put, with what is there. Raises CorruptedDataError if its own bytes have changed meanwhile."""
        place = found.place
        try:
            self._require_sound(put.draft, place)
        except (CorruptedDataError, OSError) as error:
            _LOGGER.error(
                "bytes that are put again are damaged, and written anew: %s volume=%d offset=%d",
                error,
                place.volume,
                place.record_offset,
            )
            key, version_id = self._named_at(place)
            checked = CheckedDuplicate(place, False, key, version_id)
            return replace(put, content=_unchanging_content(put), checked=checked)
        return replace(put, checked=CheckedDuplicate(place, True))

    def _require_sound(self, draft: IndexRecord, place: BlobRow) -> None:
        """Raises CorruptedDataError, OSError (FileNotFoundError if the volume is gone)."""
        with closing(self._volumes.open(place.volume)) as file:
            self._require_whole(file, draft, place)

    def _require_whole(self, file: File, draft: IndexRecord, place: BlobRow) -> None:
        front, header, secret = self._front(file, place)
        if (header.blob_offset, header.blob_length, draft.size) != (
            len(front),
            place.size,
            place.size,
        ):
            raise CorruptedDataError(f"another record is there {header=} {place=}")
        crc = crc32_of(memoryview(front)[RECORD_HEADER_BYTES:], seed_of(secret))
        position, end = place.blob_offset, place.blob_offset + place.size
        for number, expected in enumerate(draft.pieces):
            piece = file.read_at(position, min(draft.piece_bytes, end - position))
            if crc32_of(piece) != expected:
                raise CorruptedDataError(f"bytes fail their checksum piece={number}")
            crc = crc32_of(piece, crc)
            position += len(piece)
        if position != end or crc != header.crc:
            raise CorruptedDataError("a record fails its checksum")

    def _named_at(self, place: BlobRow) -> tuple[bytes, str]:
        """Key and version id of the record that brought the bytes, as far as they can be read; they may be wrong."""
        try:
            with closing(self._volumes.open(place.volume)) as file:
                front, header, _ = self._front(file, place)
            encoded = RECORD_HEADER_BYTES + header.key_length
            record = decode_index_record(front[encoded : header.blob_offset])
        except (CorruptedDataError, OSError):
            return b"", ""
        return front[RECORD_HEADER_BYTES:encoded], record.version_id

    def _front(self, file: File, place: BlobRow) -> tuple[bytes, RecordHeader, int]:
        """Everything of the record before the bytes, its header, and the volume's secret number."""
        volume = self._volumes.header_in(file, place.volume)
        if volume is None:
            raise CorruptedDataError("the volume has no header")
        length = place.blob_offset - place.record_offset
        front = file.read_at(place.record_offset, max(0, length))
        return front, decode_record_header(front, volume.secret), volume.secret


def _unchanging_content(put: Put) -> Sequence[BufferView]:
    """The bytes of a put, which are what its hash says and stay so. Raises CorruptedDataError."""
    if cannot_change(put.content):
        return put.content
    content = (b"".join(put.content),)
    draft = put.draft
    now = (
        digest_by_name(put.key, content, draft.piece_bytes)
        if put.unique
        else digest(content, draft.piece_bytes)
    )
    if (now.content_hash, now.pieces) != (draft.content_hash, draft.pieces):
        raise CorruptedDataError(f"the bytes of a put changed while it waited key={put.key!r}")
    return content
