"""One open segment of the reference store, and the steps of a read of it."""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    is_core_attribute,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    PublishingProgress,
    ReadResultEntry,
    ReadResultEntryKind,
    SegmentProperties,
)


@dataclass(slots=True)
class View:
    """What is believed of a segment, once with and once without what is still under way."""

    length: int = 0
    sealed: bool = False
    attributes: dict[AttributeKey, AttributeValue] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """One segment."""

    name: str
    segment_id: SegmentId
    container_id: int
    content: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    storage_length: int = 0
    last_modified_ms: int = 0
    deleted: bool = False
    pins: int = 0
    committed: View = field(default_factory=View)
    pending: View = field(default_factory=View)
    merged: dict[str, int] = field(default_factory=dict)
    """Sources merged into it -> its length behind the merge."""
    waiters: list[Future[None]] = field(default_factory=list)

    def properties(self) -> SegmentProperties:
        return SegmentProperties(
            name=self.name,
            segment_id=self.segment_id,
            container_id=self.container_id,
            start_offset=self.start_offset,
            length=self.committed.length,
            storage_length=self.storage_length,
            sealed=self.committed.sealed,
            sealed_in_storage=False,
            last_modified_ms=self.last_modified_ms,
            core_attributes={
                key: value
                for key, value in self.committed.attributes.items()
                if is_core_attribute(key)
            },
        )

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class SubmissionLine(Protocol):
    """What an open segment asks of its store."""

    def submit(
        self,
        state: State,
        data: BufferView,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        *,
        seal: bool,
    ) -> "Future[int]": ...

    def barrier(self, state: State) -> "Future[int]": ...

    def knows(self, key: AttributeKey) -> bool: ...


class MemorySegment:
    """One open segment."""

    def __init__(self, store: SubmissionLine, state: State) -> None:
        self._store = store
        self._state = state
        self._loaded: set[AttributeKey] = set()

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def segment_id(self) -> SegmentId:
        return self._state.segment_id

    def is_sure(self) -> bool:
        return True

    async def confirm(self) -> None:
        return

    def info(self) -> SegmentProperties:
        return self._state.properties()

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        if events is not None:
            count = AttributeUpdate(EVENT_COUNT, events, AttributeUpdateType.ACCUMULATE)
            attribute_updates = [*attribute_updates, count]
        return self._store.submit(self._state, data, offset, attribute_updates, seal=seal)

    def barrier(self) -> "Future[int]":
        return self._store.barrier(self._state)

    def publishing(self) -> PublishingProgress:
        """Its Tier 2 is never behind."""
        return PublishingProgress(NO_SEQUENCE_NUMBER, NO_SEQUENCE_NUMBER, storage_is_full=False)

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        value = self._state.pending.attributes.get(key)
        if value is None and key not in self._loaded and not self._store.knows(key):
            raise KeyError(key)
        return value

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        await asyncio.sleep(0)
        self._loaded.update(keys)
        attributes = self._state.committed.attributes
        return {key: attributes[key] for key in keys if key in attributes}

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        state = self._state
        if state.deleted:
            raise SegmentNotFoundError(state.name)
        if not 0 <= offset <= state.committed.length:
            raise BadOffsetError(state.name, expected=state.committed.length, given=offset)
        if offset < state.start_offset:
            raise SegmentTruncatedError(state.name, start_offset=state.start_offset)
        return bytes(state.content[offset : offset + length_max]) or None

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        content = self.read_nowait(offset, length_max)
        return [memoryview(content)] if content else []

    def readable(self, offset: int) -> "Future[None]":
        state = self._state
        waiter: Future[None] = asyncio.get_running_loop().create_future()
        if offset < state.committed.length or state.committed.sealed or state.deleted:
            waiter.set_result(None)
        else:
            state.waiters.append(waiter)
        return waiter

    async def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        state = self._state
        if not 0 <= offset <= state.committed.length:
            raise BadOffsetError(state.name, expected=state.committed.length, given=offset)
        end = offset + max_length
        while offset < end:
            length = min(end, state.committed.length) - offset
            if state.deleted:
                raise SegmentNotFoundError(state.name)
            if offset < state.start_offset:
                yield MemoryReadEntry(state, ReadResultEntryKind.TRUNCATED, offset, 0)
                return
            if length == 0:
                sealed = state.committed.sealed
                kind = ReadResultEntryKind.END_OF_SEGMENT if sealed else ReadResultEntryKind.FUTURE
                yield MemoryReadEntry(state, kind, offset, end - offset)
                return
            # Small entries, so that callers meet several.
            length = min(length, 100_000)
            yield MemoryReadEntry(state, ReadResultEntryKind.CACHE, offset, length)
            offset += length


@dataclass(frozen=True, slots=True)
class MemoryReadEntry:
    """One step of a read."""

    state: State
    kind: ReadResultEntryKind
    offset: int
    length: int

    async def content(self) -> bytes:
        state = self.state
        if self.kind is ReadResultEntryKind.TRUNCATED:
            raise SegmentTruncatedError(state.name, start_offset=state.start_offset)
        while self.kind is ReadResultEntryKind.FUTURE:
            if state.deleted:
                raise SegmentNotFoundError(state.name)
            if state.committed.length > self.offset or state.committed.sealed:
                break
            waiter: Future[None] = asyncio.get_running_loop().create_future()
            state.waiters.append(waiter)
            await waiter
        return bytes(state.content[self.offset : self.offset + self.length])
