"""Flushes in the middle of a recovery, when the log holds more than memory does.

The container serves no request and accepts nothing yet, so a flush is a few rounds of the storage writer's parts over
what has been replayed so far, and the state at that place of the log is what is published. Tier 2 may know of more than
replay has reached: then only segments are flushed of which Tier 2 cannot have seen the end (`Replay.may_be_flushed`),
or a segment would come back that the container had deleted or merged in an earlier epoch.

Invariants:
- what is published is the state after exactly the operations replayed, with the manifest's numbers above them;
- nothing is acknowledged: the log is as it was, and a crash at any moment leaves a manifest that is ahead of it;
- bytes of which Tier 2 says that it has them are compared before anything is built on them;
- a failure of Tier 2 ends the recovery: what became of the attempt is settled by the next claim.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from containers.container_settings import WriterSettings
from containers.log.in_memory_log import InMemoryLog
from containers.metadata.container_metadata import ContainerMetadata
from containers.recovery.replay import Replay
from containers.recovery.timely_storage import TimelyStorage
from containers.writer.backlog import ALL_IS_DUE, Backlog, FlushKind
from containers.writer.data_source import ActiveSegments, LogItem
from containers.writer.publication import PublicationBuilder, PublicationCompletion
from containers.writer.reconciler import Reconciler
from containers.writer.segment_flush import SegmentFlush
from segmentstore.contracts.identifiers import NO_SEQUENCE_NUMBER, SegmentId, SequenceNumber
from segmentstore.contracts.storage import ClaimedManifest, SegmentRecord


class ReplayFlush:
    """Made once for a recovery; flushes as often as memory is full."""

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        memory_log: InMemoryLog,
        storage: TimelyStorage,
        settings: WriterSettings,
        executor: Executor | None,
    ) -> None:
        self.metadata = metadata
        self.storage = storage
        self.settings = settings
        self.executor = executor
        self._memory_log = memory_log

    async def flush(self, replay: Replay, claimed: ClaimedManifest) -> ClaimedManifest:
        """Publish what has been replayed, as far as it may be; gives what the manifest knows then.

        Raises StorageError, StoreFullError, StorageNotPrimaryError, DataCorruptionError.
        """
        replay.begin_flush()
        stage = _RecoveryFlush(self, replay, claimed)
        await stage.publish(self._memory_log.items())
        replay.end_flush(await self._records())
        return replace(
            claimed,
            highest_segment_id=stage.highest_segment_id,
            highest_sequence_number=stage.highest_sequence_number,
        )

    async def _records(self) -> dict[SegmentId, SegmentRecord]:
        records: dict[SegmentId, SegmentRecord] = {}
        segment_ids = sorted(self.metadata.by_id)
        step = self.settings.load_records_max
        for first in range(0, len(segment_ids), step):
            records.update(await self.storage.load(segment_ids[first : first + step]))
        return records


class _RecoveryFlush(ActiveSegments):
    """One flush: the container as the storage writer's parts see it, and the rounds that they make."""

    def __init__(self, recovery: ReplayFlush, replay: Replay, claimed: ClaimedManifest) -> None:
        super().__init__(recovery.metadata.by_id)
        self._storage = recovery.storage
        self._settings = settings = recovery.settings
        self._replay = replay
        self._claimed = claimed
        self._up_to = SequenceNumber(replay.highest_sequence_number)
        self._backlog = Backlog(source=self, settings=settings)
        self._reconciler = Reconciler(source=self, storage=recovery.storage, settings=settings)
        self._reconciler.set_new_above(claimed.highest_sequence_number)
        self._builder = PublicationBuilder(
            source=self, settings=settings, executor=recovery.executor
        )
        self._completion = PublicationCompletion(
            source=self, backlog=self._backlog, reconciler=self._reconciler, settings=settings
        )

    @property
    def highest_segment_id(self) -> SegmentId:
        return max(self._claimed.highest_segment_id, self._backlog.highest_segment_id)

    @property
    def highest_sequence_number(self) -> SequenceNumber:
        return max(self._claimed.highest_sequence_number, self._up_to)

    async def publish(self, items: Sequence[LogItem]) -> None:
        """Round after round, until there is nothing left that may be published."""
        now = asyncio.get_running_loop().time()
        for number, item in enumerate(items, 1):
            self._backlog.consume(item, now)
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
        self._replay.overlap.hand_to(self._reconciler, self._by_id)
        while flushes := await self._plan_round():
            publication = await self._builder.build(
                flushes,
                highest_segment_id=self.highest_segment_id,
                highest_sequence_number=self.highest_sequence_number,
            )
            await self._storage.publish(publication)
            await self._completion.complete(flushes, asyncio.get_running_loop().time())

    async def _plan_round(self) -> list[SegmentFlush]:
        chosen = await self._backlog.select(
            asyncio.get_running_loop().time(),
            pressure=ALL_IS_DUE,
            forced_up_to=NO_SEQUENCE_NUMBER,
            kind=FlushKind.NORMAL,
        )
        candidates = [
            aggregator
            for aggregator in chosen
            if self._replay.may_be_flushed(aggregator.segment, self._claimed)
        ]
        if not candidates:
            return []
        await self._reconciler.resolve(candidates)
        return await self._builder.plan(
            candidates, up_to=self._up_to, bytes_max=self._settings.publication_bytes_max
        )

    def skipped(self, segment_id: SegmentId, offset: int) -> None:
        """Kept: the storage writer is handed the same items again, and may publish what stands before a truncation."""

    def segment_removed(self, segment_id: SegmentId) -> None:
        segment = self._by_id.get(segment_id)
        if segment is not None:
            self._replay.left_storage(segment)
