"""One segment container: owns a log, a read index and a storage writer, and is one failure domain.

    start()  recover (log first, then root, then replay), write a checkpoint, then accept
    run()    the processor's waiting line, the storage writer, fetches, housekeeping; ends when one of them fails
    close()  refuse new work, finish what is in flight, close the log

Invariants:
- at most one owner of a container id acknowledges anything: the log's epoch decides;
- when one part fails, the container stops whole, once, and says why; it never restarts itself (H42);
- corruption disables the log, so that no retry destroys the evidence.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from random import Random

from containers.cache.cache_manager import CacheManager
from containers.container_settings import ContainerSettings
from containers.log.checkpoint_policy import CheckpointPolicy
from containers.log.data_frame_builder import DataFrameBuilder
from containers.log.memory_log import MemoryLog
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.log.operation_metadata_updater import OperationMetadataUpdater
from containers.log.operation_processor import OperationProcessor
from containers.log.recovery import Recovery, RecoverySummary
from containers.log.replayed_overlap import ReplayedOverlap
from containers.log.throttler import ThrottleGauges, Throttler
from containers.log.truncation_markers import TruncationMarkers
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.reading.container_read_index import ContainerReadIndex
from containers.segment_handle import SegmentHandle, properties_of
from containers.segment_mapper import SegmentMapper
from containers.writer.storage_writer import StorageWriter, WriterStatistics
from containers.writer_source import ContainerWriterSource
from segmentstore.contracts.containers import ContainerHealth, ContainerState
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
    SequenceNumber,
)
from segmentstore.contracts.segments import AttributeUpdate, SegmentProperties
from segmentstore.contracts.storage import SegmentRecord, Storage
from segmentstore.runtime.clock import WallClock

_LOGGER = logging.getLogger(__name__)

_PRESSURE_FROM = 0.5
"""Of the share of the cache at which throttling begins: from here on the writer flushes earlier."""

_ALLOWED_MOVES: Mapping[ContainerState, frozenset[ContainerState]] = {
    ContainerState.CREATED: frozenset({ContainerState.STARTING, ContainerState.STOPPED}),
    ContainerState.STARTING: frozenset({ContainerState.RUNNING, ContainerState.FAILED}),
    ContainerState.RUNNING: frozenset({ContainerState.STOPPING, ContainerState.FAILED}),
    ContainerState.STOPPING: frozenset({ContainerState.STOPPED, ContainerState.FAILED}),
    ContainerState.STOPPED: frozenset(),
    ContainerState.FAILED: frozenset(),
}


class StreamSegmentContainer:
    """Implements contracts.containers.SegmentContainer."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        log: DurableDataLog,
        storage: Storage,
        cache: CacheManager,
        wall_clock: WallClock,
        random: Random,
        executor: Executor | None,
        settings: ContainerSettings,
    ) -> None:
        self._container_id = container_id
        self._log = log
        self._storage = storage
        self._cache = cache
        self._wall_clock = wall_clock
        self._random = random
        self._executor = executor
        self._settings = settings
        self._state = ContainerState.CREATED
        self._cause: BaseException | None = None
        self._storage_claimed = False
        self._room_noted = False
        self._parts_ended = asyncio.Event()
        self._parts_ended.set()
        self._metadata = ContainerMetadata(container_id=container_id)
        self._memory_log = MemoryLog(metadata=self._metadata)
        self._markers = TruncationMarkers()
        self._checkpoints = CheckpointPolicy(settings.checkpoints)
        self._read_index = ContainerReadIndex(
            cache=cache, storage=storage, settings=settings.read_index
        )
        self._processor: OperationProcessor
        self._mapper: SegmentMapper
        self._source: ContainerWriterSource
        self._writer: StorageWriter
        self._writer_statistics: WriterStatistics
        self.recovered: RecoverySummary | None = None

    @property
    def container_id(self) -> ContainerId:
        return self._container_id

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover. On an error nothing is left running and the log is closed (and disabled after corruption)."""
        self._move_to(ContainerState.STARTING)
        try:
            await self._recover()
        except BaseException as error:
            self._cause = error
            self._move_to(ContainerState.FAILED)
            await self._release(error)
            raise
        self._cache.on_room.append(self._room_made)
        self._move_to(ContainerState.RUNNING)

    async def _recover(self) -> None:
        settings = self._settings
        overlap = ReplayedOverlap()
        self.recovered = await Recovery(
            log=self._log,
            storage=self._storage,
            metadata=self._metadata,
            memory_log=self._memory_log,
            read_index=self._read_index,
            markers=self._markers,
            expect_in_storage=overlap.add,
        ).run()
        self._processor = OperationProcessor(
            log=self._log,
            metadata_updater=OperationMetadataUpdater(metadata=self._metadata),
            memory_state=MemoryStateUpdater(metadata=self._metadata, memory_log=self._memory_log),
            builder=DataFrameBuilder(
                epoch=self._metadata.epoch,
                entry_bytes_max=self._log.write_settings.entry_bytes_max,
                operations_max=settings.processor.pipeline.frame_operations_max,
            ),
            markers=self._markers,
            checkpoints=self._checkpoints,
            throttler=Throttler(gauges=self._gauges, settings=settings.throttler),
            fetch_attributes=self._fetch_attributes,
            make_room=self._make_room,
            wall_clock=self._wall_clock,
            settings=replace(
                settings.processor,
                # A larger one would wait for room that can never be there.
                append_bytes_max=min(
                    settings.processor.append_bytes_max, self._cache.append_bytes_max
                ),
            ),
        )
        self._source = ContainerWriterSource(
            metadata=self._metadata,
            memory_log=self._memory_log,
            read_index=self._read_index,
            processor=self._processor,
            markers=self._markers,
            checkpoints=self._checkpoints,
            log=self._log,
        )
        self._writer = StorageWriter(
            container_id=self._container_id,
            source=self._source,
            storage=self._storage,
            settings=settings.writer,
            random=self._random,
            executor=self._executor,
        )
        self._mapper = SegmentMapper(
            metadata=self._metadata,
            storage=self._storage,
            read_index=self._read_index,
            processor=self._processor,
            acknowledged=lambda: self._source.acknowledged,
            flush=self._flush_all,
            now_ms=self._wall_clock.now_ms,
            settings=settings.mapper,
        )
        self._writer_statistics = self._writer.statistics()
        self._begin_writing(overlap)
        await self._processor.checkpoint()

    def _begin_writing(self, overlap: ReplayedOverlap) -> None:
        assert self.recovered is not None, "nothing is written before recovery"
        claimed = self.recovered.claimed
        if claimed is None:
            return
        self._storage_claimed = True
        self._writer.start(claimed)
        for segment_id, stretch in overlap.by_segment.items():
            segment = self._metadata.by_id.get(segment_id)
            if segment is None or segment.is_gone() or stretch.offset < segment.start_offset:
                continue
            self._writer.reconciler.expect(
                segment_id, stretch.offset, stretch.length, stretch.checksum
            )

    async def run(self) -> None:
        """Until close(), or cancelled; raises what ended the container otherwise."""
        if self._state is ContainerState.STOPPED:
            return  # closed before it was run
        assert self._state is ContainerState.RUNNING, f"run() of a container that is {self._state}"
        try:
            await self._run_parts()
        except BaseExceptionGroup as group:
            cause = _first_cause(group)
            if self._is_closing():
                # close() ended the parts; one that failed by itself at the same time is not to be hidden.
                if not isinstance(cause, ContainerStoppedError):
                    raise cause from None
                return
            await self._end(cause)
            raise cause from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _run_parts(self) -> None:
        self._parts_ended.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._processor.run())
                tasks.create_task(self._run_writer())
                tasks.create_task(self._keep_house())
        finally:
            self._parts_ended.set()

    def _is_closing(self) -> bool:
        return self._state in (ContainerState.STOPPING, ContainerState.STOPPED)

    async def _run_writer(self) -> None:
        while not self._storage_claimed:
            await asyncio.sleep(self._settings.claim_retry_seconds)
            await self._claim_late()
        await self._writer.run()

    async def _claim_late(self) -> None:
        """Tier 2 was down at start (H41): once it answers, a restart with it is the simplest truth.

        The replayed state took every byte of the log for un-flushed; instead of mending it in place, the container
        ends and is assigned again, and recovers with the root at hand.
        """
        try:
            await self._storage.claim(epoch=self._metadata.epoch, log_id=self._log.log_id)
        except SegmentStoreError as error:
            if error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.FULL):
                return
            raise
        raise ContainerStoppedError("tier 2 answers again: restarting to recover with it")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self._settings.housekeeping_seconds)
            self._look_at_writer()
            self._processor.refresh_throttle()
            limit = self._settings.mapper.active_segments_max
            excess = len(self._metadata.by_id) - limit
            if excess > 0:
                self._mapper.evict(excess)

    async def _end(self, cause: BaseException) -> None:
        """One part failed: stop whole."""
        if self._state not in (ContainerState.RUNNING, ContainerState.STOPPING):
            return
        self._cause = cause
        self._move_to(ContainerState.FAILED)
        _LOGGER.error("container=%d stopped: %s", self._container_id, cause)
        self._processor.fail(cause)
        await self._release(cause)

    async def close(self) -> None:
        """Stop in order. Everything acknowledged is in the log; nothing is flushed for it."""
        if self._state is ContainerState.CREATED:
            self._move_to(ContainerState.STOPPED)
            return
        if self._state is not ContainerState.RUNNING:
            return
        self._move_to(ContainerState.STOPPING)
        if self._processor.failure is None:
            await self._processor.drain()
        closed = ContainerStoppedError(f"container is closing container={self._container_id}")
        self._processor.fail(closed)
        # The memory that the storage writer looks at goes back to the cache only when it has ended.
        await self._parts_ended.wait()
        await self._release(closed)
        self._move_to(ContainerState.STOPPED)

    async def _release(self, cause: BaseException) -> None:
        if self._room_made in self._cache.on_room:
            self._cache.on_room.remove(self._room_made)
        error = ContainerStoppedError(f"the container stopped: {cause}")
        for segment in list(self._metadata.by_id.values()):
            segment.read_index.gone(error)
        try:
            if isinstance(cause, SegmentStoreError) and cause.kind is ErrorKind.CORRUPT:
                await self._log.disable()
        finally:
            await self._read_index.close()
            await self._storage.close()
            await self._log.close()

    def _move_to(self, state: ContainerState) -> None:
        assert state in _ALLOWED_MOVES[self._state], (
            f"container moves from {self._state} to {state}"
        )
        self._state = state

    # --- verbs -----------------------------------------------------------------------------------

    def _require_running(self) -> None:
        if self._state is not ContainerState.RUNNING:
            raise ContainerNotFoundError(self._container_id, f"it is {self._state.value}")

    @asynccontextmanager
    async def open_segment(self, name: str) -> AsyncIterator[SegmentHandle]:
        """Resolve, activate and pin."""
        self._require_running()
        segment = await self._mapper.resolve(name)
        try:
            yield SegmentHandle(
                metadata=segment,
                processor=self._processor,
                mapper=self._mapper,
                container_id=self._container_id,
            )
        finally:
            segment.pins -= 1

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        self._require_running()
        segment = await self._mapper.create(name, attributes)
        try:
            return properties_of(segment, self._container_id)
        finally:
            segment.pins -= 1

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        async with self.open_segment(name) as handle:
            await asyncio.shield(handle.update_attributes(updates))

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        async with self.open_segment(name) as handle:
            if keys is not None:
                return await handle.load_attributes(keys)
            table = handle.metadata.attributes
            values: dict[AttributeKey, AttributeValue] = {}
            if not table.complete:
                values.update(await self._storage.load_attributes(handle.segment_id, None))
            for key, value in table.committed.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            return values

    async def seal(self, name: str) -> int:
        async with self.open_segment(name) as handle:
            return await asyncio.shield(self._processor.seal(handle.metadata))

    async def truncate(self, name: str, offset: int) -> None:
        async with self.open_segment(name) as handle:
            await asyncio.shield(self._processor.truncate(handle.metadata, offset))

    async def merge(self, target: str, source: str) -> int:
        async with (
            self.open_segment(target) as target_handle,
            self.open_segment(source) as source_handle,
        ):
            return await asyncio.shield(
                self._processor.merge(target_handle.metadata, source_handle.metadata)
            )

    async def delete(self, name: str) -> None:
        async with self.open_segment(name) as handle:
            await asyncio.shield(self._processor.delete(handle.metadata))

    async def info(self, name: str) -> SegmentProperties:
        """Answered from Tier 2 for a segment that is not active: looking does not activate."""
        self._require_running()
        if self._metadata.last_of_name(name) is None:
            record = await self._mapper.find_inactive(name)
            if record is not None and self._metadata.last_of_name(name) is None:
                return self._inactive_properties(record)
        segment = await self._mapper.resolve(name)
        try:
            if segment.is_gone():
                raise SegmentNotFoundError(name)
            return properties_of(segment, self._container_id)
        finally:
            segment.pins -= 1

    async def flush(self, name: str | None = None) -> None:
        """Returns when everything acknowledged before is in Tier 2."""
        self._require_running()
        if name is not None:
            async with self.open_segment(name):
                await self._flush_all()
            return
        await self._flush_all()

    async def _flush_all(self) -> None:
        if not self._storage_claimed:
            raise ContainerNotFoundError(
                self._container_id, "tier 2 has not answered since the start"
            )
        await asyncio.shield(self._processor.barrier(None))
        up_to = self._metadata.committed_sequence_number
        self._memory_log.hurry(up_to)
        await self._writer.flush(up_to)

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        """Memory decides over Tier 2 where both know a name."""
        self._require_running()
        metadata = self._metadata
        names = sorted(
            name for name in metadata.names() if name.startswith(prefix) and name > start_after
        )
        found: dict[str, SegmentProperties] = {}
        for name in names:
            segment = metadata.last_of_name(name)
            assert segment is not None, f"a name without a segment {name!r}"
            if not segment.is_gone() and not self._mapper.is_unborn(name):
                found[name] = properties_of(segment, self._container_id)
                if len(found) == limit:
                    break
        gone = {key for key, segment in metadata.by_id.items() if segment.is_gone()}
        taken = 0
        async with aclosing(self._storage.list_segments(prefix, start_after)) as records:
            async for record in records:
                if metadata.last_of_name(record.name) is None and record.segment_id not in gone:
                    found[record.name] = self._inactive_properties(record)
                taken += 1
                if taken >= limit + len(metadata.by_id):
                    break
        return [found[name] for name in sorted(found)[:limit]]

    def _inactive_properties(self, record: SegmentRecord) -> SegmentProperties:
        return SegmentProperties(
            name=record.name,
            segment_id=record.segment_id,
            container_id=self._container_id,
            start_offset=record.start_offset,
            length=record.length,
            storage_length=record.length,
            sealed=record.sealed,
            sealed_in_storage=record.sealed,
            last_modified_ms=record.last_modified_ms,
            core_attributes=record.core_attributes,
            active=False,
        )

    # --- what the parts ask of each other --------------------------------------------------------

    async def _fetch_attributes(self, segment: SegmentMetadata, keys: list[AttributeKey]) -> None:
        await self._mapper.fetch_attributes(segment, keys)

    def _make_room(self) -> None:
        """A writer waits for room: flush earlier."""
        self._writer.set_pressure(1.0)

    def _room_made(self) -> None:
        """Comes once per segment of a flush round: looked at once per turn of the loop."""
        if not self._room_noted:
            self._room_noted = True
            asyncio.get_running_loop().call_soon(self._look_at_room)

    def _look_at_room(self) -> None:
        self._room_noted = False
        if self._state is ContainerState.RUNNING:
            self._processor.refresh_throttle()

    def _gauges(self) -> ThrottleGauges:
        return ThrottleGauges(
            cache_fraction=self._cache.utilisation,
            log_bytes=self._log.statistics().stored_bytes,
            item_count=len(self._memory_log) + self._writer_statistics.pending_items,
            storage_state=self._storage_state(),
        )

    def _storage_state(self) -> str:
        if not self._storage_claimed:
            return "unclaimed"
        return self._writer_statistics.state

    def _look_at_writer(self) -> None:
        """Its numbers are looked at now and then, not per commit."""
        self._writer_statistics = self._writer.statistics()
        used = self._cache.utilisation / self._settings.throttler.cache_begin_fraction
        self._writer.set_pressure(used if used > _PRESSURE_FROM else 0.0)

    # --- for people ------------------------------------------------------------------------------

    def health(self) -> ContainerHealth:
        running = self._state is ContainerState.RUNNING
        throttle = self._processor.throttle if running else None
        reason = throttle.reason if throttle is not None else ""
        if running and self._processor.log_full:
            reason = "tier1_full"
        return ContainerHealth(
            container_id=self._container_id,
            state=self._state,
            ready=running and self._processor.failure is None,
            epoch=self._metadata.epoch,
            throttle=reason,
            throttle_delay_seconds=throttle.delay_seconds if throttle is not None else 0.0,
            storage_state=self._storage_state() if running else "",
            active_segments=len(self._metadata.by_id),
            unflushed_bytes=self._read_index.unflushed_bytes,
            cause=str(self._cause) if self._cause is not None else "",
        )

    def metrics(self) -> dict[str, float]:
        if self._state is not ContainerState.RUNNING:
            return {}
        processor = self._processor.statistics()
        log = self._log.statistics()
        storage = self._storage.statistics()
        return {
            **self._mapper.metrics(),
            "append_operations_total": processor.appended_operations,
            "append_bytes_total": processor.appended_bytes,
            "frames_total": processor.frames,
            "frame_bytes_total": processor.frame_bytes,
            "queued_operations": processor.queued_operations,
            "waiting_requests": processor.waiting_requests,
            "tier1_outstanding_bytes": log.outstanding_bytes,
            "tier1_stored_bytes": log.stored_bytes,
            "tier1_sync_seconds": log.sync_seconds_recent,
            "tier1_cut_frames_total": log.cut_frames,
            "tier2_puts_total": storage.puts,
            "tier2_gets_total": storage.gets,
            "tier2_put_bytes_total": storage.put_bytes,
            "tier2_get_bytes_total": storage.get_bytes,
            "tier2_bytes_before_compression_total": storage.stored_bytes_before_compression,
            "tier2_bytes_after_compression_total": storage.stored_bytes_after_compression,
            "tier2_checksum_failures_total": storage.checksum_failures,
            "tier2_garbage_objects": storage.garbage_objects,
            "unflushed_bytes": self._read_index.unflushed_bytes,
            "throttle_delay_seconds": min(self._processor.throttle.delay_seconds, 3600.0),
            "last_acknowledged_sequence_number": self._source.acknowledged,
        }

    def check(self) -> None:
        """Prove the invariants of every part; O(everything)."""
        self._metadata.check()
        self._memory_log.check()
        for segment in self._metadata.by_id.values():
            segment.read_index.check()

    @property
    def acknowledged_sequence_number(self) -> SequenceNumber:
        return self._source.acknowledged

    @property
    def container_metadata(self) -> ContainerMetadata:
        """For checkers and benchmarks."""
        return self._metadata


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real cause inside nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first_cause(error)
        return error
    raise AssertionError("an empty exception group")
