"""What clients hold of a reference store: open segments and the entries of their reads."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

from segmentstore.contracts.errors import SegmentTruncatedError
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    PublishingProgress,
    ReadResultEntryKind,
    SegmentProperties,
)
from tests.sim.reference_state import SegmentState

if TYPE_CHECKING:
    from tests.sim.reference_store import ReferenceContainer


class ReferenceSegment:
    """An open segment of a ReferenceContainer."""

    def __init__(self, container: "ReferenceContainer", segment_id: int, name: str) -> None:
        self._container = container
        self._id = segment_id
        self.name = name

    @property
    def segment_id(self) -> SegmentId:
        return SegmentId(self._id)

    def is_sure(self) -> bool:
        return True

    async def confirm(self) -> None:
        return

    def info(self) -> SegmentProperties:
        return self._container.properties(self._id)

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "asyncio.Future[int]":
        updates = list(attribute_updates)
        if events is not None:
            updates.append(AttributeUpdate(EVENT_COUNT, events, AttributeUpdateType.ACCUMULATE))
        return self._container.append(self._id, bytes(data), offset, updates, seal)

    def barrier(self) -> "asyncio.Future[int]":
        return self._container.barrier(self._id)

    def publishing(self) -> PublishingProgress:
        """Its Tier 2 is never behind."""
        return PublishingProgress(NO_SEQUENCE_NUMBER, NO_SEQUENCE_NUMBER, storage_is_full=False)

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        return self._container.pending(self._id).attributes.get(key)

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        values = self._container.committed(self._id).attributes
        return {key: values[key] for key in keys if key in values}

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        return self._container.read_nowait(self._id, offset, length_max)

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        content = self.read_nowait(offset, length_max)
        return [memoryview(content)] if content else []

    def readable(self, offset: int) -> "asyncio.Future[None]":
        return self._container.readable(self._id, offset)

    def read(self, offset: int, max_length: int) -> AsyncGenerator["ReferenceEntry", None]:
        return self._container.read(self._id, offset, max_length)


class ReferenceEntry:
    """One step of a read."""

    def __init__(
        self,
        container: "ReferenceContainer",
        state: SegmentState,
        kind: ReadResultEntryKind,
        offset: int,
        data: bytes,
    ) -> None:
        self._container = container
        self._state = state
        self._data = data
        self.kind = kind
        self.offset = offset

    async def content(self) -> bytes:
        if self.kind is ReadResultEntryKind.TRUNCATED:
            raise SegmentTruncatedError(self._state.name, start_offset=self._state.start)
        if self.kind is ReadResultEntryKind.FUTURE:
            return await self._container.tail(self._state, self.offset)
        return self._data
