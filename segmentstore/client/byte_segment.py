"""One segment as a file that only grows: bytes at offsets, without events.

Invariants:

- An append is stored exactly once or fails with OutcomeUnknownError or DeadlineExceededError: the segment remembers the
  number of this object's last append, and a repeated attempt asks for it first, and again when it is refused: the one
  before it may have been stored in between. Any other error means that it is not stored.
- The length that an append returns is the end of its own bytes. Behind a lost answer it is known if the append was
  conditional, or if the segment has grown by these bytes alone since this object's last append; else PlaceUnknownError.
- Appends of one object are stored in the order in which they were called; each waits for the one before it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from segmentstore.client.connection import WireConnection
from segmentstore.client.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    PlaceUnknownError,
    ServiceUnavailableError,
    error_from_reply,
    outcome_unknown,
)
from segmentstore.client.segment_appender import set_up_append
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, SegmentIsSealed
from segmentstore.codec.wire_protocol.segments import (
    SealSegment,
    SegmentSealed,
    SegmentTruncated,
    TruncateSegment,
)
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    BadOffsetError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)

_FINAL_REFUSALS: Final = (ConditionalCheckFailed, SegmentIsSealed, NoSuchSegment)
"""Behind one of these an earlier attempt is stored already, or meets the same."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as its server describes it; offsets in bytes."""

    name: str
    start_offset: int
    length: int
    """The end offset: bytes that were truncated away count."""
    is_sealed: bool
    last_modified_ms: int


class ByteSegment:
    """Cheap to make; nothing to close."""

    def __init__(self, name: str, calls: SegmentCalls) -> None:
        self.name = name
        self._calls = calls
        self._writer_id = calls.random.randbytes(16)
        self._last_number = 0
        self._sent_number = 0
        self._known_length: int | None = None
        """Behind this object's last append."""
        self._append_lock = asyncio.Lock()

    async def info(self) -> SegmentInfo:
        """Raises SegmentNotFoundError."""
        answer = await self._calls.ask(
            self.name,
            lambda request_id: GetStreamSegmentInfo(request_id, self.name, ""),
            StreamSegmentInfo,
        )
        if not answer.exists or answer.is_deleted:
            raise SegmentNotFoundError(self.name)
        return SegmentInfo(
            self.name,
            answer.start_offset,
            answer.write_offset,
            answer.is_sealed,
            answer.last_modified_ms,
        )

    async def append(self, content: bytes, *, offset: int | None = None) -> int:
        """Store bytes at the end, all or nothing; the offset behind them.

        With `offset` only if the segment has exactly this length before. Raises BadOffsetError, SegmentSealedError,
        SegmentNotFoundError, AppendTooLargeError, and PlaceUnknownError for bytes that are stored.
        """
        length_max = self._calls.settings.event_bytes_max
        if len(content) > length_max:
            raise AppendTooLargeError(length=len(content), length_max=length_max)
        async with self._append_lock:
            self._last_number += 1
            length = await self._append(content, self._last_number, offset)
            if length is not None:
                self._known_length = length
        if length is not None:
            return length
        info = await self.info()
        raise BadOffsetError(self.name, expected=info.length, given=offset or 0)

    async def read(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length), or fewer where the segment ends before. Raises SegmentTruncatedError."""
        end = min(offset + length, (await self.info()).length)
        pieces: list[bytes] = []
        while offset < end:
            answer = await self._read(offset, end - offset, self._calls)
            if not answer.data:
                break
            pieces.append(answer.data[: end - offset])
            offset += len(pieces[-1])
        return b"".join(pieces)

    async def tail(self, offset: int | None = None) -> AsyncGenerator[bytes, None]:
        """Pieces from an offset (or the present end) on, waiting for more, until the segment is sealed and read.

        Hold it in `contextlib.aclosing`. Raises SegmentTruncatedError, SegmentNotFoundError.
        """
        if offset is None:
            offset = (await self.info()).length
        calls = self._calls.with_own_connections()
        try:
            while True:
                try:
                    answer = await self._read(offset, calls.settings.read_bytes, calls)
                except DeadlineExceededError:
                    continue
                except SegmentSealedError:
                    return
                if answer.data:
                    offset += len(answer.data)
                    yield answer.data
                if answer.end_of_segment:
                    return
        finally:
            await calls.close()

    async def truncate(self, offset: int) -> None:
        """Drop the bytes below; offsets of the rest stay. Raises SegmentTruncatedError for one outside the segment."""
        await self._calls.ask(
            self.name,
            lambda request_id: TruncateSegment(request_id, self.name, offset, ""),
            SegmentTruncated,
        )

    async def seal(self) -> None:
        """Allow no more appends. Sealing twice is fine."""
        try:
            await self._calls.ask(
                self.name,
                lambda request_id: SealSegment(request_id, self.name, ""),
                SegmentSealed,
            )
        except SegmentSealedError:
            return

    async def _read(self, offset: int, length: int, calls: SegmentCalls) -> SegmentRead:
        return await calls.ask(
            self.name,
            lambda request_id: ReadSegment(
                self.name, offset, min(length, calls.settings.read_bytes), "", request_id
            ),
            SegmentRead,
            seconds=calls.settings.long_poll_seconds,
        )

    async def _append(self, content: bytes, number: int, offset: int | None) -> int | None:
        """The new length; None if the offset did not match."""
        try:
            return await self._calls.retried(
                self.name,
                partial(self._attempt, content, number, offset),
                seconds=self._calls.settings.request_seconds,
            )
        except ClosedError as error:
            if self._sent_number >= number:
                raise outcome_unknown(error) from error
            raise

    async def _attempt(self, content: bytes, number: int, offset: int | None) -> int | None:
        was_sent = self._sent_number >= number
        connection, is_stored = await self._set_up(number, was_sent=was_sent)
        if is_stored:
            return await self._end_of_stored(content, offset)
        command: Callable[[int], Command]
        if offset is None:
            command = lambda request_id: AppendBlockEnd(  # noqa: E731  # typed above, unlike a nested function
                self._writer_id, len(content), content, 1, number, request_id
            )
        else:
            expected = offset
            command = lambda request_id: ConditionalBlockEnd(  # noqa: E731
                self._writer_id, number, expected, content, request_id
            )
        self._sent_number = number
        reply = await connection.request(command)
        if was_sent and isinstance(reply, _FINAL_REFUSALS):
            _, is_stored = await self._set_up(number, was_sent=True)
            if is_stored:
                return await self._end_of_stored(content, offset)
        if isinstance(reply, ConditionalCheckFailed):
            return None
        if isinstance(reply, InvalidEventNumber):
            # Our own older connection was still stored from; the next set-up tells.
            raise ConnectionLostError(f"an older attempt was stored segment={self.name!r}")
        if not isinstance(reply, DataAppended):
            raise error_from_reply(reply)
        return reply.segment_length

    async def _set_up(self, number: int, *, was_sent: bool) -> tuple[WireConnection, bool]:
        """A connection that takes appends, and whether the one of the number is stored."""
        try:
            connection = await self._calls.connection(self.name)
            last_number = await set_up_append(
                connection, self.name, self._writer_id, sent_number=self._sent_number
            )
        except (ConnectionLostError, ServiceUnavailableError):
            raise
        except SegmentStoreError as error:
            if was_sent:
                # No server can tell any more what became of the attempt before.
                raise outcome_unknown(error) from error
            raise
        return connection, last_number >= number

    async def _end_of_stored(self, content: bytes, offset: int | None) -> int:
        """Where bytes end whose acknowledgement was lost."""
        if offset is not None:
            return offset + len(content)
        length = (await self.info()).length
        before, self._known_length = self._known_length, length
        if before is None or length != before + len(content):
            raise PlaceUnknownError(self.name)
        return length
