"""Segments whose appends, too, and objects whose puts may be the last thing that the process did."""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType

from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, BufferView, SegmentId
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.contracts.segments import (
    AttributeUpdate,
    PublishingProgress,
    ReadResultEntry,
    Segment,
    SegmentProperties,
)
from segmentstore.runtime.cancellation import retrieve_exception
from tests.controller.crashing_doors import CrashingSegments, CrashPlan
from tests.http.memory_segments import MemorySegments
from tier2.object_stores.memory import MemoryObjectStore


class ObjectsOfADyingProcess:
    """An ObjectStore whose puts and deletions may be the last thing that the process did."""

    def __init__(self, objects: MemoryObjectStore, plan: CrashPlan) -> None:
        self._objects = objects
        self._plan = plan

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        await self._plan.through(lambda: self._objects.put(key, content))

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        return await self._plan.through(lambda: self._objects.put_if_absent(key, content))

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        return await self._plan.through(lambda: self._objects.put_if_match(key, content, tag))

    async def get(self, key: str) -> VersionedObject:
        return await self._objects.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._objects.get_range(key, start, length)

    async def size(self, key: str) -> int:
        return await self._objects.size(key)

    async def delete(self, key: str) -> None:
        await self._plan.through(lambda: self._objects.delete(key))

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        async with aclosing(self._objects.list(prefix)) as listing:
            async for info in listing:
                yield info

    async def close(self) -> None:
        await self._objects.close()


class SegmentsOfADyingProcess(CrashingSegments):
    """As CrashingSegments, with the appends to open segments counted as well."""

    def __init__(self, segments: MemorySegments, plan: CrashPlan) -> None:
        super().__init__(segments, plan)
        self._inner = segments
        self._crash_plan = plan

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        return _Opened(self._inner.open_segment(name), self._crash_plan)


class _Opened:
    """No generator: a process that died closes nothing, and leaves none behind that is not at its end."""

    def __init__(self, opened: AbstractAsyncContextManager[Segment], plan: CrashPlan) -> None:
        self._opened = opened
        self._plan = plan

    async def __aenter__(self) -> Segment:
        return SegmentOfADyingProcess(await self._opened.__aenter__(), self._plan)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, traceback)


class SegmentOfADyingProcess:
    """One open segment; reads are not counted, they change nothing."""

    def __init__(self, segment: Segment, plan: CrashPlan) -> None:
        self._segment = segment
        self._plan = plan

    @property
    def name(self) -> str:
        return self._segment.name

    @property
    def segment_id(self) -> SegmentId:
        return self._segment.segment_id

    def is_sure(self) -> bool:
        return self._segment.is_sure()

    async def confirm(self) -> None:
        await self._segment.confirm()

    def info(self) -> SegmentProperties:
        return self._segment.info()

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        async def submit() -> int:
            return await self._segment.append(
                data, offset=offset, attribute_updates=attribute_updates, seal=seal, events=events
            )

        future = asyncio.ensure_future(self._plan.through(submit))
        future.add_done_callback(retrieve_exception)
        return future

    def barrier(self) -> "Future[int]":
        return self._segment.barrier()

    def publishing(self) -> PublishingProgress:
        return self._segment.publishing()

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        return self._segment.pending_attribute(key)

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self._segment.load_attributes(keys)

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        return self._segment.read_nowait(offset, length_max)

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        return self._segment.views_nowait(offset, length_max)

    def readable(self, offset: int) -> "Future[None]":
        return self._segment.readable(offset)

    def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        return self._segment.read(offset, max_length)
