"""A SegmentApi in memory: pending and committed state are apart, and a test may hold commits back or let them fail.

It keeps the promises of the door that the HTTP room leans on: submissions are ordered, a refusal is delivered only
behind what it was judged by, a reader at the end waits, deleted segments end their readers.
"""

import asyncio
import zlib
from asyncio import Future
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from segmentstore.contracts.errors import (
    AppendTooLargeError,
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
    EVENT_COUNT,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    is_core_attribute,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    Segment,
    SegmentProperties,
)
from tests.http.memory_attributes import apply_updates
from tests.http.memory_segment import MemorySegment, State, View

APPEND_BYTES_MAX = 8 << 20


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
                merged=dict(state.merged),
                pins=0,
                pending=replace(state.committed, attributes=dict(state.committed.attributes)),
            )
            other._segments[name] = copy
        return other

    def names(self) -> list[str]:
        return sorted(self._segments)

    def content(self, name: str) -> bytes:
        return bytes(self._segments[name].content)

    def waiter_count(self, name: str) -> int:
        """Readers that wait at its end."""
        return sum(not waiter.done() for waiter in self._segments[name].waiters)

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

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        into = self._find(target)
        if source not in self._segments and source in into.merged:
            await self.barrier(into)
            return into.merged[source]
        from_ = self._find(source)
        if into.container_id != from_.container_id or into is from_:
            raise MergeRefusedError(
                f"segments live in different containers; name the source '{target}#transaction...'"
            )
        if not (from_.committed.sealed or seal_source):
            raise SegmentNotSealedError(source)
        if from_.start_offset:
            raise SegmentTruncatedError(source, start_offset=from_.start_offset)
        if into.pending.sealed:
            raise SegmentSealedError(target, length=into.pending.length)
        if seal_source:
            await self.seal(source)
        events = from_.committed.attributes.get(EVENT_COUNT)
        if events is not None and all(update.key != EVENT_COUNT for update in attribute_updates):
            count = AttributeUpdate(EVENT_COUNT, events, AttributeUpdateType.ACCUMULATE)
            attribute_updates = [*attribute_updates, count]
        merged = self.submit(into, bytes(from_.content), None, attribute_updates, seal=False)
        if self._queue[-1].refusal is None:
            # One operation, as in a container: a caller that leaves finds it done whole or not at all.
            into.merged[source] = into.pending.length
            self._remove(source)
        return await merged

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        return [await self.merge(target, source, seal_source=seal_sources) for source in sources]

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        await asyncio.sleep(0)
        for source in sources:
            self._find(target).merged.pop(source, None)

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        self._remove(name)

    def _remove(self, name: str) -> None:
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
