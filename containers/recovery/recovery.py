"""Brings a container back from its log, and from what Tier 2 says of it, to the state in which its parts can begin.

Order matters: the log is opened first (that fences its former owner), then the manifest is claimed (that fences a
former owner's publications, and tells which bytes need not come back), then the log is replayed. Nothing is accepted
or served before it has ended. When Tier 2 does not answer, replay takes every byte that the log has.

What replay finds in Tier 2 already is kept as checksums, for the storage writer to compare. When the bytes that Tier
2 lacks do not fit into memory, replay stops, what has been replayed is flushed (containers.recovery.replay_flush),
and replay goes on. The log says nothing of this: the next owner that replays it finds more of it in Tier 2.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from containers.cache.cache_manager import CacheManager
from containers.container_settings import WriterSettings
from containers.log.checkpoints import CheckpointPolicy
from containers.log.data_frame import RecordStream, decode_frame
from containers.log.in_memory_log import InMemoryLog
from containers.log.log_truncation import TruncationMarkers
from containers.metadata.container_metadata import ContainerMetadata
from containers.operations.operation import OperationType
from containers.operations.record_codec import LENGTH_FIELD_BYTES, Record, decode_record
from containers.read_index.container_read_index import ContainerReadIndex
from containers.recovery.replay import Replay, ReplayedOverlap
from containers.recovery.replay_flush import ReplayFlush
from containers.recovery.timely_storage import TimelyStorage
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    CacheFullError,
    DataCorruptionError,
    DurableDataLogError,
    ErrorKind,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import Epoch, SegmentId, SequenceNumber
from segmentstore.contracts.storage import ClaimedBySameLogError, ClaimedManifest, Storage

_LOGGER = logging.getLogger(__name__)

NUMBER_GAP = 1 << 24
"""Sequence numbers skipped at every recovery: more than were ever in flight, so that numbers of frames which a power
cut took are not given again. The same for segment ids."""

SLICE_SECONDS = 0.001
"""Replay gives the loop back after about this long, and a frame: other containers serve meanwhile."""

_APPEND_TYPE = int(OperationType.APPEND)
_CHECKPOINT_TYPES = (int(OperationType.METADATA_CHECKPOINT), int(OperationType.STORAGE_CHECKPOINT))


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What recovery fills and the parts work on."""

    log: DurableDataLog
    storage: Storage
    cache: CacheManager
    metadata: ContainerMetadata
    memory_log: InMemoryLog
    read_index: ContainerReadIndex
    markers: TruncationMarkers
    checkpoints: CheckpointPolicy


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """What recovery found."""

    epoch: int
    claimed: ClaimedManifest | None
    """None: Tier 2 did not answer, the state is that of the log alone."""
    claim_failure: str
    """What it answered instead, in a sentence; "" if it was claimed."""
    frames: int
    operations: int
    data_bytes: int
    """Bytes that only the log had."""
    active_segments: int
    flushes: int
    """How often memory was full, and what had been replayed was flushed."""
    seconds: Mapping[str, float]
    """Of its steps, by name, in their order."""


class _Steps:
    """Measures steps that follow one another."""

    def __init__(self) -> None:
        self._begin = asyncio.get_running_loop().time()
        self.seconds: dict[str, float] = {}

    def end(self, step: str) -> None:
        now = asyncio.get_running_loop().time()
        self.seconds[step], self._begin = now - self._begin, now


class Recovery:
    """One recovery of one container: fills an empty state, once."""

    def __init__(
        self, *, state: RecoveredState, settings: WriterSettings, executor: Executor | None
    ) -> None:
        self._log = state.log
        self._storage = state.storage
        self._timely_storage = TimelyStorage(
            storage=state.storage, container_id=state.metadata.container_id
        )
        self._metadata = state.metadata
        self._memory_log = state.memory_log
        self._read_index = state.read_index
        self._markers = state.markers
        self._replay_flush = ReplayFlush(
            metadata=state.metadata,
            memory_log=state.memory_log,
            storage=self._timely_storage,
            settings=settings,
            executor=executor,
        )
        self.overlap = ReplayedOverlap()
        """Of the replay that run() has made."""
        self._claimed: ClaimedManifest | None = None
        self._found: ClaimedManifest | None = None
        """As it was claimed; `_claimed` knows of flushes on the way."""
        self._claim_failure = ""
        self._root_changes = 0
        """Of the manifest as it was claimed: a flush on the way adds to them."""
        self._flushes = 0

    async def run(self) -> RecoverySummary:
        """Raises DataCorruptionError (the log should be disabled), LogNotPrimaryError, StorageNotPrimaryError,
        InvalidRequestError (Tier 2 belongs to another log), SegmentStoreError."""
        metadata = self._metadata
        steps = _Steps()
        metadata.epoch = await self._log.initialize()
        steps.end("log")
        self._claimed = self._found = await self._claim()
        steps.end("manifest")
        self._root_changes = 0 if self._claimed is None else self._claimed.changes
        replay = Replay(
            metadata=metadata,
            memory_log=self._memory_log,
            read_index=self._read_index,
            storage_known=self._claimed is not None,
        )
        self.overlap = replay.overlap
        frames = await self._replay(replay)
        if not replay.checkpoint_seen and replay.operations:
            raise DataCorruptionError(
                f"the log has {replay.operations} operations but no checkpoint"
            )
        self._require_newest_log(replay)
        replay.finish()
        steps.end("replay")
        claimed = self._claimed
        floor_number, floor_id = 0, 0
        if claimed is not None:
            floor_number, floor_id = claimed.highest_sequence_number, claimed.highest_segment_id
            metadata.root_changes = self._storage.root_changes  # replay relied on what is there
        gap = NUMBER_GAP if frames or floor_number else 0
        metadata.raise_numbers(
            sequence_number=max(metadata.sequence_number, floor_number) + gap,
            segment_id=max(metadata.highest_segment_id, floor_id) + gap,
        )
        metadata.committed_sequence_number = SequenceNumber(metadata.sequence_number)
        return RecoverySummary(
            epoch=metadata.epoch,
            claimed=claimed,
            claim_failure=self._claim_failure,
            frames=frames,
            operations=replay.operations,
            data_bytes=replay.data_bytes,
            active_segments=len(metadata.by_id),
            flushes=self._flushes,
            seconds=steps.seconds,
        )

    async def _claim(self) -> ClaimedManifest | None:
        try:
            return await claim_manifest(self._storage, self._log, self._metadata.epoch)
        except SegmentStoreError as error:
            if error.kind not in (ErrorKind.UNAVAILABLE, ErrorKind.FULL):
                raise
            _LOGGER.warning(
                "container=%d tier 2 does not answer, recovering from the log alone: %s",
                self._metadata.container_id,
                error,
            )
            self._claim_failure = str(error)
            return None

    async def _replay(self, replay: Replay) -> int:
        stream = RecordStream()
        frames = 0
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + SLICE_SECONDS
        others: list[Record] = []

        def take(payload: memoryview, position: int) -> int:
            return position if others else replay.append_records(payload, position)

        async with aclosing(self._log.read()) as entries:
            async for entry in entries:
                frame = decode_frame(entry.payload)
                frames += 1
                for view in stream.records(frame, take=take):
                    if _is_append(view):
                        if others:
                            await self._apply(replay, others)
                            others.clear()
                        try:
                            replay.append_record(view)
                        except CacheFullError as full:
                            await self._append_after_flush(replay, view, full)
                    else:
                        # Copied: the views of a frame are valid only until the next step.
                        others.append(decode_record(memoryview(bytes(view))))
                if others:
                    await self._apply(replay, others)
                    others.clear()
                self._markers.add_frame(frame.last_started, entry.address)
                if loop.time() >= slice_end:
                    await asyncio.sleep(0)
                    slice_end = loop.time() + SLICE_SECONDS
        return frames

    async def _append_after_flush(
        self, replay: Replay, view: memoryview, full: CacheFullError
    ) -> None:
        """The frame that the view belongs to stays in memory meanwhile: the log is not asked for the next one."""
        if self._claimed is None:
            raise _too_little_memory("and Tier 2 does not answer", full) from full
        if not self._flushes:
            await self._look_ahead()
        self._claimed = await self._replay_flush.flush(replay, self._claimed)
        self._flushes += 1
        try:
            replay.append_record(view)
        except CacheFullError as still_full:
            raise _too_little_memory("although Tier 2 took what it can", still_full) from still_full

    async def _look_ahead(self) -> None:
        """Read what the rest of the log says of the manifest's changes, before the first flush adds to them.

        Else an older manifest had as many as the log says, as soon as recovery was tried again.
        """
        stream = RecordStream()
        async with aclosing(self._log.read()) as entries:
            async for entry in entries:
                for view in stream.records(decode_frame(entry.payload)):
                    if view[LENGTH_FIELD_BYTES] in _CHECKPOINT_TYPES:
                        record = decode_record(memoryview(bytes(view)))
                        self._require_newest_root(record.root_changes)
                await asyncio.sleep(0)

    async def _apply(self, replay: Replay, records: list[Record]) -> None:
        if self._claimed is not None and not self._claimed.created:
            wanted = _mapped_ids(records)
            for record in records:
                if record.type is OperationType.METADATA_CHECKPOINT:
                    wanted += replay.prepare_checkpoint(record)
            wanted = sorted({key for key in wanted if key not in replay.records})
            if wanted:
                replay.add_stored_records(await self._timely_storage.load(wanted))
        for record in records:
            self._require_newest_root(record.root_changes)
            replay.apply(record)
            if record.type is OperationType.METADATA_CHECKPOINT:
                self._markers.add_truncation_point(record.sequence_number)

    def _require_newest_log(self, replay: Replay) -> None:
        """The log has what brought the manifest to where it was found, or some of it is lost.

        It is truncated at checkpoints only, so once something was published it holds a checkpoint at least, and
        operations up to the last published one. A log that follows a lost one has neither before its first checkpoint;
        but once it has claimed the manifest, it holds the trace of the owner that did, and once it has published, the
        manifest has more changes than the lost log had made. So an empty one that a person enabled by hand is refused
        again, unless it had published nothing yet.
        """
        claimed = self._found
        if claimed is None:
            return
        has, wanted = replay.highest_sequence_number, claimed.highest_sequence_number
        if not replay.operations:
            if claimed.was_ours and self._log.is_new:
                what = "the log is empty, although it has had an owner: its journals are lost"
            elif wanted and (not self._log.follows or self._has_published(claimed)):
                what = "the log is empty, although something of it was published: its journals are lost"
            else:
                return
        elif has < wanted:
            what = (
                "the log is older than Tier 2: its newest journals are lost, or it is an older copy"
            )
        else:
            return
        raise DataCorruptionError(
            f"{what} container={self._metadata.container_id} highest_sequence_number={has} published={wanted}."
            " Put the newest journals back, or take the log as lost: what was acknowledged and not yet in Tier 2 is"
            " gone then; `segmentstore log set-aside` takes it out of the store, and `segmentstore recover"
            " --from-tier2` begins a new log above what Tier 2 holds"
        )

    def _has_published(self, claimed: ClaimedManifest) -> bool:
        """Whether a log that follows a lost one has changed the manifest since it was made."""
        changes = self._log.follows_changes
        return claimed.was_ours and changes is not None and claimed.changes > changes

    def _require_newest_root(self, logged: int) -> None:
        """Nothing left memory or the log but what that many changes of the manifest had brought to Tier 2."""
        metadata = self._metadata
        metadata.root_changes = max(metadata.root_changes, logged)
        if self._claimed is not None and logged > self._root_changes:
            raise DataCorruptionError(
                f"Tier 2 is older than the log container={metadata.container_id}: its manifest has"
                f" {self._root_changes} changes, and the log relies on what {logged} of them had stored. Was"
                " Tier 2 brought back from an older copy, or did it lose its newest objects? Put the newer ones back,"
                " or take the log as lost and go on with what is there: `segmentstore log set-aside` takes it out of"
                " the store, and `segmentstore recover --from-tier2` begins a new one"
            )


async def claim_manifest(
    storage: Storage, log: DurableDataLog, epoch: Epoch, *, comes_again: bool = False
) -> ClaimedManifest:
    """As Storage.claim(), for the owner of the log, which has this epoch from it.

    A log gives an epoch before Tier 2 hears of it: as long as it is ours, it has given none from ours on. So an owner
    of a copy had it. Another start would have a higher epoch, and would not see what is missing: hence
    DataCorruptionError, for which the log is disabled. Raises LogNotPrimaryError if we were merely overtaken. With
    `comes_again`, DurableDataLogError if the log does not say: a caller with the same epoch finds out later.
    """
    try:
        return await storage.claim(epoch=epoch, log_id=log.log_id, follows=log.follows)
    except ClaimedBySameLogError as error:
        try:
            await log.check_owner()
        except DurableDataLogError as unanswered:
            if comes_again or unanswered.kind is not ErrorKind.UNAVAILABLE:
                raise
            # Not as if Tier 2 were away. To disable the log is to ask again: one that has another owner is left alone.
        again = (
            f"it is refused {error.epochs_ahead} times more before, " if error.epochs_ahead else ""
        )
        raise DataCorruptionError(
            "the log is an older copy, or a copy of it is in use: put the newest journals back, or end the process that"
            " has the other copy and begin again with that copy. `segmentstore log enable` goes on with this log:"
            f" {again}what only the other one has is gone then. epoch={epoch} found={epoch + error.epochs_ahead}"
        ) from error


def _is_append(view: memoryview) -> bool:
    """Whether a whole record is an append: appends are not decoded into objects."""
    return view[LENGTH_FIELD_BYTES] == _APPEND_TYPE


def _mapped_ids(records: Sequence[Record]) -> list[SegmentId]:
    """Ids that Tier 2 should be asked about before these records are applied."""
    return [
        record.segment_id
        for record in records
        if record.type in (OperationType.MAP_SEGMENT, OperationType.MAP_TRANSACTION)
    ]


def _too_little_memory(but: str, full: CacheFullError) -> SegmentStoreError:
    return SegmentStoreError(
        f"the bytes in the log that are not yet in Tier 2 do not fit into the cache {but}: "
        f"start with a larger cache budget (cause: {full})"
    )
