"""One table, or one segment, of a node in another process, open for the controller. Made by RemoteStore.

Invariants:

- Changes go over the connection over which it was opened, in the order in which they are submitted. When it has ended
  they fail with ContainerNotFoundError, and nothing is done.
- Questions go to whichever node has the container when they are asked.
- `info()` is as of the opening, or of the latest own change that was answered: lengths only grow, so it is never more
  than there is.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from segmentstore.cluster.node_connections import NodeConnection, NodeUnreachableError, reply_of
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.store_calls import (
    AnswerAttributes,
    AnswerChanged,
    AnswerContent,
    AnswerDelta,
    AnswerEntries,
    AnswerEntryPage,
    AnswerKeyPage,
    AnswerNumbers,
    CallAppend,
    CallAttributes,
    CallBarrier,
    CallGet,
    CallRead,
    CallReadDelta,
    CallReadPage,
    CallRemoveKeys,
    CallUpdateTable,
)
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    TooManyWaitersError,
)
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    BufferView,
    ContainerId,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    PublishingProgress,
    ReadResultEntry,
    ReadResultEntryKind,
    SegmentProperties,
)
from segmentstore.contracts.tables import (
    TableDelta,
    TableEntry,
    TableEntryPage,
    TableInfo,
    TableKey,
    TableKeyPage,
)
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.cancellation import fail_unless_done

_READ_BYTES = 1 << 20
_POLL_SECONDS_FIRST = 0.02
_POLL_SECONDS_MAX = 1.0

_Result = TypeVar("_Result")


class AskOwner(Protocol):
    """Asks the node that has the container of a name. Raises ContainerNotFoundError, and what the node answers."""

    async def __call__(
        self,
        name: str,
        make: Callable[[int], Command],
        convert: Callable[[Command], _Result],
        /,
    ) -> _Result: ...


class RemoteTable:
    """Implements Table."""

    def __init__(
        self,
        *,
        ask: AskOwner,
        connection: NodeConnection,
        container_id: ContainerId,
        state: TableInfo,
    ) -> None:
        self._ask = ask
        self._connection = connection
        self._container_id = container_id
        self._state = state

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def key_length(self) -> int:
        return self._state.key_length

    async def confirm(self) -> None:
        """The node has confirmed it before it answered."""

    def info(self) -> TableInfo:
        return self._state

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        return _submitted(
            self._connection,
            self._container_id,
            lambda number: CallUpdateTable(number, self.name, offset, False, entries),
            self._versions,
        )

    def update_each(
        self, entries: Sequence[TableEntry]
    ) -> "Future[Sequence[int | SegmentStoreError]]":
        return _submitted(
            self._connection,
            self._container_id,
            lambda number: CallUpdateTable(number, self.name, None, True, entries),
            self._outcomes,
        )

    def remove(self, keys: Sequence[TableKey], *, offset: int | None = None) -> "Future[None]":
        return _submitted(
            self._connection,
            self._container_id,
            lambda number: CallRemoveKeys(number, self.name, offset, keys),
            self._removed,
        )

    def get_nowait(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None] | None:  # noqa: ARG002 (all are elsewhere)
        return None

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        return await self._ask(
            self.name,
            lambda number: CallGet(number, self.name, keys),
            lambda reply: list(reply_of(AnswerEntries, reply).entries),
        )

    async def read_keys(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableKeyPage:
        page = await self._ask(
            self.name,
            lambda number: CallReadPage(number, self.name, False, count, token, first, last),
            lambda reply: reply_of(AnswerKeyPage, reply),
        )
        return TableKeyPage(list(page.keys), page.token)

    async def read_entries(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableEntryPage:
        page = await self._ask(
            self.name,
            lambda number: CallReadPage(number, self.name, True, count, token, first, last),
            lambda reply: reply_of(AnswerEntryPage, reply),
        )
        return TableEntryPage(list(page.entries), page.token)

    async def read_delta(self, *, position: int, count: int) -> TableDelta:
        delta = await self._ask(
            self.name,
            lambda number: CallReadDelta(number, self.name, position, count),
            lambda reply: reply_of(AnswerDelta, reply),
        )
        return TableDelta(
            entries=list(delta.entries),
            should_clear=delta.should_clear,
            reached_end=delta.reached_end,
            last_position=delta.last_position,
        )

    def _versions(self, reply: Command) -> Sequence[int]:
        outcomes = self._outcomes(reply)
        versions = [each for each in outcomes if isinstance(each, int)]
        assert len(versions) == len(outcomes), f"a batch is written as a whole {outcomes=}"
        return versions

    def _outcomes(self, reply: Command) -> Sequence[int | SegmentStoreError]:
        changed = self._changed(reply)
        return [each if isinstance(each, int) else each.error() for each in changed.outcomes]

    def _removed(self, reply: Command) -> None:
        self._changed(reply)

    def _changed(self, reply: Command) -> AnswerChanged:
        changed = reply_of(AnswerChanged, reply)
        if changed.state.length >= self._state.length:
            self._state = changed.state
        return changed


class RemoteSegment:
    """Implements Segment."""

    def __init__(
        self,
        *,
        ask: AskOwner,
        connection: NodeConnection,
        container_id: ContainerId,
        properties: SegmentProperties,
    ) -> None:
        self._ask = ask
        self._connection = connection
        self._container_id = container_id
        self._properties = properties

    @property
    def name(self) -> str:
        return self._properties.name

    @property
    def segment_id(self) -> SegmentId:
        return self._properties.segment_id

    def is_sure(self) -> bool:
        return True  # the node has confirmed it before it answered

    async def confirm(self) -> None:
        """As is_sure() says."""

    def info(self) -> SegmentProperties:
        return self._properties

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        content = bytes(data)
        return _submitted(
            self._connection,
            self._container_id,
            lambda number: CallAppend(
                number, self.name, offset, events, seal, attribute_updates, content
            ),
            lambda reply: self._grown(reply, sealed=seal),
        )

    def barrier(self) -> "Future[int]":
        return _submitted(
            self._connection,
            self._container_id,
            lambda number: CallBarrier(number, self.name),
            lambda reply: self._grown(reply, sealed=False),
        )

    def publishing(self) -> PublishingProgress:
        """Not known without asking: nothing of it counts as published."""
        return PublishingProgress(SequenceNumber(1), NO_SEQUENCE_NUMBER, storage_is_full=False)

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        """Never known without asking: raises KeyError."""
        raise KeyError(key)

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self._ask(
            self.name,
            lambda number: CallAttributes(number, self.name, keys),
            lambda reply: dict(reply_of(AnswerAttributes, reply).attributes),
        )

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:  # noqa: ARG002 (all are elsewhere)
        return None

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:  # noqa: ARG002
        return ()

    def readable(self, offset: int) -> "Future[None]":  # noqa: ARG002
        """Raises TooManyWaitersError: a controller has no use for it, and no node holds such a waiter for it."""
        raise TooManyWaitersError("a segment of another process takes no waiters")

    async def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        end = offset + max_length
        while offset < end:
            try:
                found = await self._read(offset, min(end - offset, _READ_BYTES))
            except SegmentTruncatedError as error:
                yield _Entry(ReadResultEntryKind.TRUNCATED, offset, error)
                return
            if not found.content:
                if found.sealed:
                    yield _Entry(ReadResultEntryKind.END_OF_SEGMENT, offset, b"")
                else:
                    yield _FutureEntry(self, offset, end - offset)
                return
            yield _Entry(ReadResultEntryKind.CACHE, offset, found.content)
            offset += len(found.content)

    async def wait_for_bytes(self, offset: int, length_max: int) -> bytes:
        """As the content of a read result entry at the end. Asks again and again: no controller waits so for long."""
        backoff = Backoff(seconds_first=_POLL_SECONDS_FIRST, seconds_max=_POLL_SECONDS_MAX)
        while True:
            found = await self._read(offset, min(length_max, _READ_BYTES))
            if found.content or found.sealed:
                return found.content
            await asyncio.sleep(backoff.next_seconds())

    async def _read(self, offset: int, length_max: int) -> AnswerContent:
        return await self._ask(
            self.name,
            lambda number: CallRead(number, self.name, offset, length_max),
            lambda reply: reply_of(AnswerContent, reply),
        )

    def _grown(self, reply: Command, *, sealed: bool) -> int:
        (length,) = reply_of(AnswerNumbers, reply).numbers
        known = self._properties
        self._properties = replace(
            known, length=max(known.length, length), sealed=known.sealed or sealed
        )
        return length


class _Entry:
    """A step of a read whose outcome is known."""

    def __init__(
        self, kind: ReadResultEntryKind, offset: int, outcome: bytes | SegmentTruncatedError
    ) -> None:
        self.kind = kind
        self.offset = offset
        self._outcome = outcome

    async def content(self) -> bytes:
        if isinstance(self._outcome, SegmentTruncatedError):
            raise self._outcome
        return self._outcome


class _FutureEntry:
    """The end of an open segment."""

    kind = ReadResultEntryKind.FUTURE

    def __init__(self, segment: RemoteSegment, offset: int, length_max: int) -> None:
        self.offset = offset
        self._segment = segment
        self._length_max = length_max

    async def content(self) -> bytes:
        return await self._segment.wait_for_bytes(self.offset, self._length_max)


def _submitted(
    connection: NodeConnection,
    container_id: ContainerId,
    make: Callable[[int], Command],
    convert: Callable[[Command], _Result],
) -> "Future[_Result]":
    """The call's future, or one that has failed already: it was not sent."""
    error: SegmentStoreError
    try:
        return connection.submit(make, convert)
    except NodeUnreachableError as unreachable:
        error = ContainerNotFoundError(container_id, f"its node is not there ({unreachable})")
    except SegmentStoreError as refusal:
        error = refusal
    failed: Future[_Result] = asyncio.get_running_loop().create_future()
    fail_unless_done(failed, error)
    return failed
