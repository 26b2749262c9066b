"""What one container looks after beside its verbs: throttling, room in the cache, idle segments, a late Tier 2.

- The writer's numbers are looked at now and then, not per commit.
- Items of the log are charged to the container's share of the cache as often as the throttle is looked at.
- Room made in the cache is noticed at once, but looked at only once per turn of the loop.
- A container that started without Tier 2 asks for it until it answers, and then ends.
"""

import asyncio

from containers.attributes.extended_attributes import AttributeMemory
from containers.cache.cache_manager import CacheManager, CacheShare
from containers.container_settings import ContainerSettings
from containers.log.in_memory_log import ITEM_BYTES, InMemoryLog
from containers.log.operation_processor import OperationProcessor
from containers.log.throttler import ThrottleGauges
from containers.metadata.container_metadata import ContainerMetadata
from containers.recovery.recovery import RecoverySummary, claim_manifest
from containers.recovery.replay import ReplayedOverlap
from containers.segments.segment_mapper import SegmentMapper
from containers.writer.backlog import ALL_IS_DUE, CachePressure
from containers.writer.storage_writer import StorageWriter
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    SegmentStoreError,
)
from segmentstore.contracts.storage import Storage
from segmentstore.runtime.guarded_callback import guarded

_SHORT_LIVED_PRESSURE_UP_TO = 1.4
"""In the same measure, where all of a short-lived segment is flushed as well: producers are slowed down a little by
then. Below 1 their bytes wait to be truncated."""
_PRESSURE_FROM = 0.5
"""Of the share of the cache at which throttling begins: from here on the writer flushes earlier."""


class Housekeeping:
    """Runs beside the operation processor; both of its loops end only with the container."""

    def __init__(
        self,
        *,
        log: DurableDataLog,
        storage: Storage,
        cache: CacheManager,
        cache_share: CacheShare,
        metadata: ContainerMetadata,
        memory_log: InMemoryLog,
        processor: OperationProcessor,
        writer: StorageWriter,
        mapper: SegmentMapper,
        attribute_memory: AttributeMemory,
        settings: ContainerSettings,
    ) -> None:
        self._log = log
        self._storage = storage
        self._cache = cache
        self._cache_share = cache_share
        self._metadata = metadata
        self._memory_log = memory_log
        self._processor = processor
        self._writer = writer
        self._mapper = mapper
        self._attribute_memory = attribute_memory
        self._settings = settings
        self._writer_statistics = writer.statistics()
        self._space_check_due = False
        self.storage_claimed = False
        self._claim_failure = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._settings.housekeeping_seconds)
            self.refresh_writer_pressure()
            self._processor.refresh_throttle()
            excess = len(self._metadata.by_id) - self._settings.mapper.active_segments_max
            if excess > 0:
                self._mapper.evict(excess)
            elif self._attribute_memory.core_is_full:
                self._mapper.evict_some()

    def refresh_writer_pressure(self) -> None:
        """Take its numbers, and press it as hard as the cache is full; wholly if attributes need room."""
        self._writer_statistics = self._writer.statistics()
        used = (
            self._cache.utilisation(self._cache_share)
            / self._settings.throttler.cache_begin_fraction
        )
        if self._attribute_memory.wants_flush:
            self._writer.set_pressure(ALL_IS_DUE)
            return
        level = min(1.0, used) if used > _PRESSURE_FROM else 0.0
        beyond = (used - 1.0) / (_SHORT_LIVED_PRESSURE_UP_TO - 1.0)
        self._writer.set_pressure(CachePressure(level, min(1.0, max(0.0, beyond))))

    # --- the storage writer ----------------------------------------------------------------------

    def start_writer(self, recovered: RecoverySummary, overlap: ReplayedOverlap) -> None:
        """Recovery is done. Before run_writer()."""
        claimed, self._claim_failure = recovered.claimed, recovered.claim_failure
        if claimed is None:
            self._metadata.flushes_nothing = True
            return
        self.storage_claimed = True
        self._writer.start(claimed)
        overlap.hand_to(self._writer.reconciler, self._metadata.by_id)

    async def run_writer(self) -> None:
        """Until cancelled. Raises what ended the writer, and ContainerStoppedError when a late Tier 2 answers."""
        while not self.storage_claimed:
            await asyncio.sleep(self._settings.claim_retry_seconds)
            await self._claim_after_start()
        await self._writer.run()

    async def _claim_after_start(self) -> None:
        """Tier 2 was down at start: once it answers, a restart with it is the simplest truth.

        The replayed state took every byte of the log for un-flushed; instead of mending it in place, the container
        ends and is assigned again, and recovers with the manifest at hand.
        """
        try:
            await claim_manifest(self._storage, self._log, self._metadata.epoch, comes_again=True)
        except SegmentStoreError as error:
            if error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.FULL):
                self._claim_failure = str(error)
                return
            raise
        raise ContainerStoppedError("tier 2 answers again: restarting to recover with it")

    async def flush(self) -> None:
        """Returns when everything acknowledged before is in Tier 2. Raises ContainerNotFoundError without a Tier 2."""
        if not self.storage_claimed:
            raise ContainerNotFoundError(
                self._metadata.container_id, "tier 2 has not answered since the start"
            )
        await asyncio.shield(self._processor.barrier(None))
        up_to = self._metadata.committed_sequence_number
        self._memory_log.wake_reader_at(up_to)
        await self._writer.flush(up_to)

    # --- what throttling looks at ----------------------------------------------------------------

    def space_freed(self) -> None:
        """The cache says so once per segment of a flush round."""
        if not self._space_check_due:
            self._space_check_due = True
            asyncio.get_running_loop().call_soon(guarded(self._check_space, self._processor.fail))

    def _check_space(self) -> None:
        self._space_check_due = False
        if self._processor.failure is None:
            self._processor.refresh_throttle()

    def gauges(self) -> ThrottleGauges:
        """Look at everything anew, and charge the memory of the log's items to the cache."""
        item_count = len(self._memory_log) + self._writer.pending_items
        if self._cache_share.charge(item_count * ITEM_BYTES):
            self._cache.space_freed()
        return ThrottleGauges(
            cache_fraction=max(
                self._cache.utilisation(self._cache_share), self._attribute_memory.throttle_fraction
            ),
            log_bytes=self._log.statistics().stored_bytes,
            item_count=item_count,
            storage_state=self.storage_state,
        )

    @property
    def storage_state(self) -> str:
        """ "ok", or what is wrong with Tier 2 in a word."""
        return self._writer_statistics.state if self.storage_claimed else "unclaimed"

    @property
    def storage_cause(self) -> str:
        """What it answered last, in a sentence; "" if it is well."""
        return self._writer_statistics.last_error if self.storage_claimed else self._claim_failure
