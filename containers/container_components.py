"""What a container consists of once it has recovered, put together in one place.

The parts know each other only through what they are given here: the processor fetches attributes through the mapper,
a writer waiting for room hurries the storage writer, and the storage writer sees the container through its source.
"""

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from random import Random

from containers.attributes.extended_attributes import AttributeFetches, AttributeMemory
from containers.container_settings import ContainerSettings
from containers.held_changes import HeldChanges
from containers.housekeeping import Housekeeping
from containers.log.data_frame import DataFrameBuilder
from containers.log.log_truncation import LogTruncation
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.log.operation_metadata_updater import OperationMetadataUpdater
from containers.log.operation_processor import OperationProcessor
from containers.log.throttler import ThrottleGauges, Throttler
from containers.metadata.segment_metadata import SegmentMetadata
from containers.ownership import Ownership
from containers.recovery.recovery import RecoveredState
from containers.segments.segment_expiry import SegmentExpiry
from containers.segments.segment_mapper import SegmentMapper
from containers.segments.segment_queries import SegmentQueries
from containers.tables.container_tables import ContainerTables
from containers.writer.backlog import ALL_IS_DUE
from containers.writer.storage_writer import StorageWriter
from containers.writer_source import ContainerWriterSource
from segmentstore.contracts.cluster import Lease
from segmentstore.contracts.identifiers import AttributeKey, SegmentId
from segmentstore.runtime.clock import WallClock


@dataclass(frozen=True, slots=True)
class ContainerComponents:
    """The parts that do the work."""

    processor: OperationProcessor
    source: ContainerWriterSource
    writer: StorageWriter
    ownership: Ownership
    mapper: SegmentMapper
    queries: SegmentQueries
    attribute_fetches: AttributeFetches
    attribute_memory: AttributeMemory
    tables: ContainerTables
    housekeeping: Housekeeping
    expiry: SegmentExpiry

    @property
    def background_tasks(self) -> tuple[Callable[[], Coroutine[None, None, None]], ...]:
        """What runs as long as the container does, beside processor, storage writer and housekeeping."""
        return (
            self.ownership.run,
            self.attribute_fetches.run,
            self.attribute_memory.run,
            self.tables.run,
            self.expiry.run,
        )


def build_components(
    state: RecoveredState,
    *,
    truncate: Callable[[str, int, SegmentId], Awaitable[None]],
    settings: ContainerSettings,
    wall_clock: WallClock,
    random: Random,
    executor: Executor | None,
    lease: Lease | None,
    held: HeldChanges,
) -> ContainerComponents:
    """Parts over a recovered state; nothing runs yet."""

    async def fetch_attributes(segment: SegmentMetadata, keys: list[AttributeKey]) -> None:
        await attribute_fetches.fetch(segment, keys)

    def request_flush() -> None:
        """An append waits for room: flush earlier."""
        writer.set_pressure(ALL_IS_DUE)

    def fail(error: Exception) -> None:
        processor.fail(error)

    def gauges() -> ThrottleGauges:
        return housekeeping.gauges()

    async def flush() -> None:
        await housekeeping.flush()

    attribute_fetches = AttributeFetches(storage=state.storage, settings=settings.attribute_fetches)
    attribute_memory = AttributeMemory(metadata=state.metadata, settings=settings.attribute_memory)
    ownership = Ownership(
        container_id=state.metadata.container_id,
        lease=lease,
        check_owner=state.log.check_owner,
        fail=fail,
    )
    processor = _processor(
        state,
        settings,
        wall_clock,
        ownership=ownership,
        throttler=Throttler(gauges=gauges, settings=settings.throttler),
        fetch_attributes=fetch_attributes,
        request_flush=request_flush,
    )
    source = ContainerWriterSource(
        metadata=state.metadata,
        memory_log=state.memory_log,
        read_index=state.read_index,
        processor=processor,
        log_truncation=LogTruncation(
            markers=state.markers,
            checkpoints=state.checkpoints,
            log=state.log,
            storage_checkpoint=processor.storage_checkpoint,
        ),
        checkpoints=state.checkpoints,
        root_changes=lambda: state.storage.root_changes,
    )
    writer = StorageWriter(
        container_id=state.metadata.container_id,
        source=source,
        storage=state.storage,
        settings=settings.writer,
        random=random,
        executor=executor,
    )
    mapper = SegmentMapper(
        metadata=state.metadata,
        storage=state.storage,
        read_index=state.read_index,
        processor=processor,
        attribute_fetches=attribute_fetches,
        ownership=ownership,
        acknowledged=lambda: source.acknowledged,
        flush=flush,
        now_ms=wall_clock.now_ms,
        core_is_full=lambda: attribute_memory.core_is_full,
        storage_is_full=lambda: writer.storage_is_full,
        settings=settings.mapper,
    )
    tables = ContainerTables(
        metadata=state.metadata,
        mapper=mapper,
        processor=processor,
        ownership=ownership,
        held=held,
        fetches=attribute_fetches,
        storage=state.storage,
        executor=executor,
        settings=settings.tables,
    )
    housekeeping = Housekeeping(
        log=state.log,
        storage=state.storage,
        cache=state.cache,
        cache_share=state.read_index.cache.share,
        metadata=state.metadata,
        memory_log=state.memory_log,
        processor=processor,
        writer=writer,
        mapper=mapper,
        attribute_memory=attribute_memory,
        settings=settings,
    )
    return ContainerComponents(
        processor=processor,
        source=source,
        writer=writer,
        ownership=ownership,
        mapper=mapper,
        queries=SegmentQueries(metadata=state.metadata, storage=state.storage, mapper=mapper),
        attribute_fetches=attribute_fetches,
        attribute_memory=attribute_memory,
        tables=tables,
        housekeeping=housekeeping,
        expiry=SegmentExpiry(
            storage=state.storage,
            truncate=truncate,
            wall_clock=wall_clock,
            settings=settings.expiry,
        ),
    )


def _processor(
    state: RecoveredState,
    settings: ContainerSettings,
    wall_clock: WallClock,
    *,
    ownership: Ownership,
    throttler: Throttler,
    fetch_attributes: Callable[[SegmentMetadata, list[AttributeKey]], Awaitable[None]],
    request_flush: Callable[[], None],
) -> OperationProcessor:
    return OperationProcessor(
        log=state.log,
        metadata_updater=OperationMetadataUpdater(metadata=state.metadata),
        memory_state=MemoryStateUpdater(
            metadata=state.metadata, memory_log=state.memory_log, ownership=ownership
        ),
        builder=DataFrameBuilder(
            epoch=state.metadata.epoch,
            entry_bytes_max=state.log.write_settings.entry_bytes_max,
            operations_max=settings.processor.pipeline.frame_operations_max,
        ),
        markers=state.markers,
        checkpoints=state.checkpoints,
        throttler=throttler,
        ownership=ownership,
        fetch_attributes=fetch_attributes,
        request_flush=request_flush,
        wall_clock=wall_clock,
        settings=replace(
            settings.processor,
            # A larger one would wait for room that can never be there.
            append_bytes_max=min(settings.processor.append_bytes_max, state.cache.append_bytes_max),
            table_batch_bytes_max=min(
                settings.processor.table_batch_bytes_max, state.cache.append_bytes_max
            ),
        ),
    )
