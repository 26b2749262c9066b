"""A container that keeps its segments in a dictionary: a small, complete SegmentContainer for the host's tests.

It can be told to fail: at start (`fail_at_start`) or while it runs (`fail()`).
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from segmentstore.contracts.containers import BackupOwner, ContainerHealth, ContainerState
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentNotSealedError,
    SegmentSealedError,
)
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    BufferView,
    ContainerId,
    SegmentId,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    PublishingProgress,
    ReadResultEntry,
    SegmentProperties,
)
from segmentstore.contracts.tables import Table
from tests.reference.memory_tables import MemoryTables


@dataclass(slots=True)
class SimpleSegment:
    """Bytes under a name."""

    name: str
    segment_id: SegmentId
    container_id: ContainerId
    content: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    sealed: bool = False
    values: dict[AttributeKey, AttributeValue] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)
    """Sources merged into it -> its length behind the merge."""

    def is_sure(self) -> bool:
        return True

    async def confirm(self) -> None:
        return

    def info(self) -> SegmentProperties:
        return SegmentProperties(
            name=self.name,
            segment_id=self.segment_id,
            container_id=self.container_id,
            start_offset=self.start_offset,
            length=len(self.content),
            storage_length=0,
            sealed=self.sealed,
            sealed_in_storage=False,
            last_modified_ms=0,
            core_attributes=dict(self.values),
        )

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        done: Future[int] = asyncio.get_running_loop().create_future()
        if self.sealed:
            done.set_exception(SegmentSealedError(self.name, length=len(self.content)))
        elif offset is not None and offset != len(self.content):
            done.set_exception(BadOffsetError(self.name, expected=len(self.content), given=offset))
        else:
            self.content += data
            self.sealed = seal
            done.set_result(len(self.content))
        return done

    def barrier(self) -> "Future[int]":
        done: Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(len(self.content))
        return done

    def publishing(self) -> PublishingProgress:
        """Its Tier 2 is never behind."""
        return PublishingProgress(NO_SEQUENCE_NUMBER, NO_SEQUENCE_NUMBER, storage_is_full=False)

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        return self.values.get(key)

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        return {key: self.values[key] for key in keys if key in self.values}

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        raise NotImplementedError("the host does not read")

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        raise NotImplementedError("the host does not read")

    def readable(self, offset: int) -> "Future[None]":
        raise NotImplementedError("the host does not read")

    def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        raise NotImplementedError("the host does not read")


class SimpleContainer:
    """SegmentContainer over a dictionary."""

    def __init__(
        self, container_id: ContainerId, *, fail_at_start: BaseException | None = None
    ) -> None:
        self._container_id = container_id
        self._fail_at_start = fail_at_start
        self._failure: Future[None] | None = None
        self._state = ContainerState.CREATED
        self.segments: dict[str, SimpleSegment] = {}
        self.tables = MemoryTables()
        self.flushes = 0
        self.start_seconds = 0.0
        self.close_seconds = 0.0
        self.shorten_seconds = 0.0
        self.shortened: Exception | None = None
        """What shorten_log() raises."""

    @property
    def container_id(self) -> ContainerId:
        return self._container_id

    @property
    def state(self) -> ContainerState:
        return self._state

    async def start(self) -> None:
        self._state = ContainerState.STARTING
        await asyncio.sleep(self.start_seconds)
        if self._fail_at_start is not None:
            self._state = ContainerState.FAILED
            raise self._fail_at_start
        self._failure = asyncio.get_running_loop().create_future()
        self._state = ContainerState.RUNNING

    async def shorten_log(self) -> None:
        await asyncio.sleep(self.shorten_seconds)
        if self.shortened is not None:
            raise self.shortened

    async def run(self) -> None:
        assert self._failure is not None, "runs before it started"
        try:
            await self._failure
        except Exception:
            self._state = ContainerState.FAILED
            raise

    def fail(self, cause: BaseException) -> None:
        """End run() with this error."""
        assert self._failure is not None, "fails before it started"
        self._failure.set_exception(cause)

    def end(self) -> None:
        """End run() without one."""
        assert self._failure is not None, "ends before it started"
        self._failure.set_result(None)

    async def close(self) -> None:
        if self._state is not ContainerState.STOPPED:
            self._state = ContainerState.STOPPING
            await asyncio.sleep(self.close_seconds)
            self._state = ContainerState.STOPPED

    def health(self) -> ContainerHealth:
        return ContainerHealth(
            container_id=self._container_id,
            state=self._state,
            ready=self._state is ContainerState.RUNNING,
            epoch=1,
            throttle="",
            throttle_delay_seconds=0.0,
            storage_state="ok",
            active_segments=len(self.segments),
            unflushed_bytes=0,
            cause="",
        )

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self.tables.open_table(name)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await self.tables.create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        await self.tables.delete_table(name, must_be_empty=must_be_empty)

    @property
    def backups(self) -> BackupOwner:
        raise NotImplementedError("it has no Tier 2")

    def settle_clocks(self) -> None:
        """It has no clock."""

    def metrics(self) -> dict[str, float]:
        return {"segments_count": float(len(self.segments))}

    @asynccontextmanager
    async def open_segment(self, name: str) -> AsyncIterator[SimpleSegment]:
        yield self._find(name)

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        if name in self.segments:
            raise SegmentExistsError(name)
        segment = SimpleSegment(name, SegmentId(len(self.segments) + 1), self._container_id)
        self.segments[name] = segment
        return segment.info()

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        for update in updates:
            if update.value is not None:
                self._find(name).values[update.key] = update.value

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        return dict(self._find(name).values)

    async def seal(self, name: str) -> int:
        self._find(name).sealed = True
        return len(self._find(name).content)

    async def truncate(self, name: str, offset: int) -> None:
        self._find(name).start_offset = offset

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        into = self._find(target)
        if source not in self.segments and source in into.merged:
            return into.merged[source]
        if not (self._find(source).sealed or seal_source):
            raise SegmentNotSealedError(source)
        await self.update_attributes(target, attribute_updates)
        into.content += self.segments.pop(source).content
        into.merged[source] = len(into.content)
        return len(into.content)

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        return [await self.merge(target, source, seal_source=seal_sources) for source in sources]

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        for source in sources:
            self._find(target).merged.pop(source, None)

    async def delete(self, name: str) -> None:
        self._find(name)
        del self.segments[name]

    async def info(self, name: str) -> SegmentProperties:
        return self._find(name).info()

    async def flush(self, name: str | None = None) -> None:
        self.flushes += 1

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        names = sorted(n for n in self.segments if n.startswith(prefix) and n > start_after)
        return [self.segments[name].info() for name in names[:limit]]

    def _find(self, name: str) -> SimpleSegment:
        if name not in self.segments:
            raise SegmentNotFoundError(name)
        return self.segments[name]
