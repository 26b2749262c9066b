"""A SegmentApi in memory: pending and committed state are apart, and a test may hold commits back or let them fail.

It keeps the promises of the door that the HTTP room leans on: submissions are ordered, a refusal is delivered only
behind what it was judged by, a reader at the end waits, deleted segments end their readers.
"""

import asyncio
import zlib
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from segmentstore.contracts.errors import (
    AppendTooLargeError,
    BadAttributeUpdateError,
    BadOffsetError,
    MergeRefusedError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentNotSealedError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    is_core_attribute,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    ReadResultEntry,
    ReadResultEntryKind,
    Segment,
    SegmentProperties,
)

APPEND_BYTES_MAX = 8 << 20


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


@dataclass(slots=True)
class Submission:
    """Something on its way to the log; `refusal` if it was judged and found wanting."""

    state: State
    future: "Future[int]"
    refusal: SegmentStoreError | None = None
    commit: Callable[[], None] | None = None


class MemorySegments:
    """The store. `hold()` keeps submissions from committing until `let_go()` or `fail(error)`."""

    def __init__(self, *, container_count: int = 1, active_attributes_known: bool = True) -> None:
        self._container_count = container_count
        self._active_attributes_known = active_attributes_known
        self._segments: dict[str, State] = {}
        self._queue: deque[Submission] = deque()
        self._next_id = 1
        self._held = False
        self._scheduled = False
        self.append_count = 0
        self.cancelled_count = 0
        """Submissions whose future somebody cancelled: the log owns its futures, so there should be none."""

    # --- what tests turn ---------------------------------------------------------------------

    def hold(self) -> None:
        self._held = True

    def let_go(self) -> None:
        self._held = False
        self._schedule()

    def fail(self, error: SegmentStoreError, *, others: SegmentStoreError | None = None) -> None:
        """Everything under way is refused and un-believed; later submissions are judged afresh.

        The oldest submission fails with `error`, those behind it with `others` (or the same).
        """
        queue, self._queue = self._queue, deque()
        for submission in queue:
            state = submission.state
            state.pending = replace(state.committed, attributes=dict(state.committed.attributes))
            if not submission.future.done():
                submission.future.set_exception(error)
            error = others or error
        self.let_go()

    def restarted(self) -> "MemorySegments":
        """The same segments in a new process: committed state only."""
        other = MemorySegments(container_count=self._container_count)
        other._next_id = self._next_id
        for name, state in self._segments.items():
            copy = replace(
                state,
                waiters=[],
                pins=0,
                pending=replace(state.committed, attributes=dict(state.committed.attributes)),
            )
            other._segments[name] = copy
        return other

    def names(self) -> list[str]:
        return sorted(self._segments)

    def content(self, name: str) -> bytes:
        return bytes(self._segments[name].content)

    def pin_count(self, name: str) -> int:
        return self._segments[name].pins

    # --- SegmentApi --------------------------------------------------------------------------

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        return self._open(name)

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Segment]:
        await asyncio.sleep(0)
        state = self._find(name)
        state.pins += 1
        try:
            yield MemorySegment(self, state)
        finally:
            state.pins -= 1

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        await asyncio.sleep(0)
        if name in self._segments:
            raise SegmentExistsError(name)
        state = State(
            name, SegmentId(self._next_id), zlib.crc32(name.encode()) % self._container_count
        )
        self._next_id += 1
        for view in (state.committed, state.pending):
            view.attributes = apply_updates(name, {}, attributes)
        self._segments[name] = state
        return state.properties()

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        await self.submit(self._find(name), b"", None, updates, seal=False)

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        await asyncio.sleep(0)
        attributes = self._find(name).committed.attributes
        return {key: attributes[key] for key in keys or attributes if key in attributes}

    async def seal(self, name: str) -> int:
        state = self._find(name)
        if not state.committed.sealed:
            await self.submit(state, b"", None, (), seal=True)
        return state.committed.length

    async def truncate(self, name: str, offset: int) -> None:
        await asyncio.sleep(0)
        state = self._find(name)
        if offset > state.committed.length:
            raise BadOffsetError(name, expected=state.committed.length, given=offset)
        state.start_offset = max(state.start_offset, offset)

    async def merge(self, target: str, source: str) -> int:
        into, from_ = self._find(target), self._find(source)
        if into.container_id != from_.container_id or into is from_:
            raise MergeRefusedError(
                f"segments live in different containers; name the source '{target}#transaction...'"
            )
        if not from_.committed.sealed:
            raise SegmentNotSealedError(source)
        length = await self.submit(into, bytes(from_.content), None, (), seal=False)
        await self.delete(source)
        return length

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        state = self._find(name)
        del self._segments[name]
        state.deleted = True
        state.wake()

    async def info(self, name: str) -> SegmentProperties:
        await asyncio.sleep(0)
        return self._find(name).properties()

    async def flush(self, name: str | None = None) -> None:
        await asyncio.sleep(0)
        for state in self._segments.values():
            if name is None or state.container_id == self._find(name).container_id:
                state.storage_length = state.committed.length

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        await asyncio.sleep(0)
        names = [
            name
            for name in sorted(self._segments)
            if name.startswith(prefix) and name > start_after
        ]
        return [self._segments[name].properties() for name in names[:limit]]

    # --- submissions -------------------------------------------------------------------------

    def submit(
        self,
        state: State,
        data: BufferView,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        *,
        seal: bool,
    ) -> "Future[int]":
        future: Future[int] = asyncio.get_running_loop().create_future()
        submission = Submission(state, future)
        self._queue.append(submission)
        self._schedule()
        self.append_count += 1
        view = state.pending
        try:
            if state.deleted:
                raise SegmentNotFoundError(state.name)
            if len(data) > APPEND_BYTES_MAX:
                raise AppendTooLargeError(length=len(data), length_max=APPEND_BYTES_MAX)
            if view.sealed and (data or seal):
                raise SegmentSealedError(state.name, length=view.length)
            if offset is not None and offset != view.length:
                raise BadOffsetError(state.name, expected=view.length, given=offset)
            attributes = (
                apply_updates(state.name, view.attributes, updates) if updates else view.attributes
            )
        except SegmentStoreError as error:
            submission.refusal = error
            return future
        after = View(view.length + len(data), view.sealed or seal, attributes)
        state.pending = after
        kept = bytes(data)

        def commit() -> None:
            state.content += kept
            state.committed = after
            state.wake()

        submission.commit = commit
        return future

    def barrier(self, state: State) -> "Future[int]":
        future: Future[int] = asyncio.get_running_loop().create_future()
        self._queue.append(Submission(state, future))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._scheduled and not self._held:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._commit_all)

    def _commit_all(self) -> None:
        self._scheduled = False
        while self._queue and not self._held:
            submission = self._queue.popleft()
            if submission.refusal is not None:
                outcome: SegmentStoreError | None = submission.refusal
            elif submission.state.deleted and submission.commit is not None:
                outcome = SegmentNotFoundError(submission.state.name)
            else:
                outcome = None
                if submission.commit is not None:
                    submission.commit()
            if submission.future.done():
                self.cancelled_count += submission.future.cancelled()
                continue
            if outcome is None:
                submission.future.set_result(submission.state.committed.length)
            else:
                submission.future.set_exception(outcome)

    def knows(self, key: AttributeKey) -> bool:
        return self._active_attributes_known or is_core_attribute(key)

    def _find(self, name: str) -> State:
        if name not in self._segments:
            raise SegmentNotFoundError(name)
        return self._segments[name]


class MemorySegment:
    """One open segment."""

    def __init__(self, store: MemorySegments, state: State) -> None:
        self._store = store
        self._state = state
        self._loaded: set[AttributeKey] = set()

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def segment_id(self) -> SegmentId:
        return self._state.segment_id

    def info(self) -> SegmentProperties:
        return self._state.properties()

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
    ) -> "Future[int]":
        return self._store.submit(self._state, data, offset, attribute_updates, seal=seal)

    def barrier(self) -> "Future[int]":
        return self._store.barrier(self._state)

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


def apply_updates(
    name: str,
    attributes: Mapping[AttributeKey, AttributeValue],
    updates: Sequence[AttributeUpdate],
) -> dict[AttributeKey, AttributeValue]:
    """The attributes behind the updates. Raises BadAttributeUpdateError."""
    after = dict(attributes)
    for update in updates:
        current = after.get(update.key)
        value = update.value
        refused = False
        match update.type:
            case AttributeUpdateType.NONE:
                refused = current is not None
            case AttributeUpdateType.REPLACE:
                pass
            case AttributeUpdateType.REPLACE_IF_GREATER:
                assert isinstance(value, int), f"not a number value={value!r}"
                refused = isinstance(current, int) and value <= current
            case AttributeUpdateType.ACCUMULATE:
                assert isinstance(value, int), f"not a number value={value!r}"
                refused = isinstance(current, bytes)
                value += current if isinstance(current, int) else 0
            case AttributeUpdateType.REPLACE_IF_EQUALS:
                refused = current != update.comparison
        if refused:
            raise BadAttributeUpdateError(name, key=update.key, current=current)
        if value is None:
            after.pop(update.key, None)
        else:
            after[update.key] = value
    return after
