"""One active segment in the hands of a face: see contracts.segments.Segment."""

from asyncio import Future
from collections.abc import AsyncGenerator, Mapping, Sequence

from containers.attributes.judgement import validate_updates
from containers.log.operation_processor import OperationProcessor
from containers.metadata.segment_metadata import SegmentMetadata
from containers.segment_mapper import SegmentMapper
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    BufferView,
    ContainerId,
    SegmentId,
)
from segmentstore.contracts.segments import AttributeUpdate, ReadResultEntry, SegmentProperties


class SegmentHandle:
    """Pinned while somebody holds it; the context manager that made it unpins."""

    __slots__ = ("_container_id", "_mapper", "_metadata", "_processor")

    def __init__(
        self,
        *,
        metadata: SegmentMetadata,
        processor: OperationProcessor,
        mapper: SegmentMapper,
        container_id: ContainerId,
    ) -> None:
        self._metadata = metadata
        self._processor = processor
        self._mapper = mapper
        self._container_id = container_id

    @property
    def name(self) -> str:
        return self._metadata.name

    @property
    def segment_id(self) -> SegmentId:
        return self._metadata.segment_id

    @property
    def metadata(self) -> SegmentMetadata:
        """For benchmarks and checks inside this package's tests."""
        return self._metadata

    def info(self) -> SegmentProperties:
        """Raises SegmentNotFoundError if it was deleted or merged away meanwhile."""
        if self._metadata.is_gone():
            raise SegmentNotFoundError(self._metadata.name)
        return properties_of(self._metadata, self._container_id)

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
    ) -> "Future[int]":
        if attribute_updates:
            validate_updates(attribute_updates)
        return self._processor.append(
            self._metadata, data, offset=offset, attribute_updates=attribute_updates, seal=seal
        )

    def update_attributes(self, updates: Sequence[AttributeUpdate]) -> "Future[int]":
        validate_updates(updates)
        return self._processor.update_attributes(self._metadata, updates)

    def barrier(self) -> "Future[int]":
        return self._processor.barrier(self._metadata)

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        table = self._metadata.attributes
        if not table.is_known(key):
            raise KeyError(key)
        return table.pending_value(key)

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        table = self._metadata.attributes
        unknown = [key for key in keys if not table.is_known(key)]
        if unknown:
            await self._mapper.fetch_attributes(self._metadata, unknown)
        values = ((key, table.committed_value(key)) for key in keys)
        return {key: value for key, value in values if value is not None}

    def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        return self._metadata.read_index.read(offset, max_length)


def properties_of(metadata: SegmentMetadata, container_id: ContainerId) -> SegmentProperties:
    """Committed state as users see it."""
    return SegmentProperties(
        name=metadata.name,
        segment_id=metadata.segment_id,
        container_id=container_id,
        start_offset=metadata.start_offset,
        length=metadata.length,
        storage_length=min(metadata.storage_length, metadata.length),
        sealed=metadata.sealed,
        sealed_in_storage=metadata.sealed_in_storage,
        last_modified_ms=metadata.last_modified_ms,
        core_attributes=metadata.attributes.core(),
    )
