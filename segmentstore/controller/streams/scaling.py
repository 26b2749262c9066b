"""Scaling a stream by hand, by rate or to a new policy: active segments are replaced by others over the same keys.

A commit behind a scale takes the same steps from one epoch to the next (EpochTransition). Their order is the one
promise: the new epoch is recorded, its segments are created, then every replaced segment gets its successors, and only
then is the first of them sealed; the new epoch becomes current last. A client that meets the seal finds where to go on.

Invariants:

- The intent of a scale is the new epoch itself: the task that resumes it follows its record and decides nothing again.
- Every step may be repeated; records that an earlier attempt wrote are left as they are.
- A segment is replaced once, by the epoch right behind the last one that lists it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    ScalingPolicy,
    ScalingType,
    SealedSegmentRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
)
from segmentstore.codec.stream_names import segment_id_of
from segmentstore.controller.errors import PreconditionError, StreamSealedError
from segmentstore.controller.metadata.batch import Batch, Versioned
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.key_space import Range, replacing_ranges, split_range
from segmentstore.controller.streams.stream_history import (
    StreamHistory,
    epoch_key,
    sealed_key,
    state_key,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.runtime.clock import WallClock


@dataclass(frozen=True, slots=True)
class ScaleOutcome:
    """What a scale did."""

    epoch_before: int
    new_segments: Sequence[StreamSegment]


class EpochTransition:
    """The steps from an epoch to the recorded one behind it. The caller holds the stream."""

    def __init__(self, *, segments: StreamSegments) -> None:
        self._segments = segments

    async def create_segments(
        self, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> None:
        """All segments of the new epoch exist afterwards."""
        await self._segments.create(_segment_names(history, new_segments(before, after)))

    async def publish_successors(
        self, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> None:
        """A reader that asks for the successors of a replaced segment gets them from now on."""
        replaced = [segment.segment_id for segment in replaced_segments(before, after)]
        batch = Batch()
        for segment_id, known in (await history.sealed(replaced)).items():
            if known.record is None:
                batch.put(
                    sealed_key(history.stream, segment_id), SealedSegmentRecord(after.epoch), known
                )
        await history.table.commit(batch)

    async def seal_replaced(
        self, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> dict[int, int]:
        """Seal what was replaced; segment id -> final length. Successors were published before."""
        replaced = replaced_segments(before, after)
        lengths = await self._segments.seal(_segment_names(history, replaced))
        return {
            segment.segment_id: length for segment, length in zip(replaced, lengths, strict=True)
        }

    async def add_lengths(
        self, history: StreamHistory, batch: Batch, lengths: dict[int, int]
    ) -> None:
        """Put the final lengths of replaced segments into the caller's batch."""
        for segment_id, known in (await history.sealed(list(lengths))).items():
            assert known.record is not None, f"sealed without successors segment_id={segment_id}"
            if known.record.length is None:
                record = replace(known.record, length=lengths[segment_id])
                batch.put(sealed_key(history.stream, segment_id), record, known)


class Scaling:
    """The verb scale."""

    def __init__(
        self,
        *,
        operations: StreamOperations,
        transition: EpochTransition,
        wall_clock: WallClock,
        settings: StreamSettings,
    ) -> None:
        self._operations = operations
        self._transition = transition
        self._wall_clock = wall_clock
        self._settings = settings
        operations.register(StreamState.SCALING, self._resume)

    async def scale(
        self,
        scope: str,
        stream: str,
        *,
        sealed: Sequence[int],
        ranges: Sequence[Range],
        while_policy: ScalingPolicy | None = None,
    ) -> ScaleOutcome:
        """Replace active segments by new ones over just the same keys; returns when writers are sent to these.

        With `while_policy` refused by PolicyReplacedError if the stream has another policy by now.

        Raises PreconditionError, StreamNotFoundError, ScopeNotFoundError, StreamSealedError.
        """
        # Before any of them is looked at: a request has room for hundreds of thousands.
        self._require_count(max(len(sealed), len(ranges)))
        async with self._operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            if state.record is None:
                raise history.not_found()
            if state.record.state is StreamState.SEALED:
                raise StreamSealedError(scope, stream)
            if while_policy is not None:
                await history.require_policy(while_policy)
            before = await history.epoch(state.record.current_epoch)
            after = self._next_epoch(before, state.record, sealed=sealed, ranges=ranges)
            batch = Batch()
            await self._put_intent(history, batch, state, state.record, after)
            await history.table.commit(batch)
            await self._operations.drive(history)
        born = [each for each in after.segments if each.creation_epoch == after.epoch]
        return ScaleOutcome(before.epoch, born)

    async def put_scale_to_policy(
        self,
        history: StreamHistory,
        batch: Batch,
        state: Versioned[StreamStateRecord],
        policy: ScalingPolicy,
    ) -> None:
        """Put the scale that a new policy asks for into the batch that stores it: the two are not seen apart.

        A fixed number is the number that a stream has, a minimum is one that it grows to. The caller holds the stream,
        and drives it behind the batch.
        """
        assert state.record is not None, f"nothing to scale stream={history.name!r}"
        before = await history.epoch(state.record.current_epoch)
        count = policy.segment_count_min
        now = len(before.segments)
        if now == count or (now > count and policy.type is not ScalingType.FIXED):
            return
        after = self._next_epoch(
            before,
            state.record,
            sealed=[segment.segment_id for segment in before.segments],
            ranges=split_range(0.0, 1.0, count),
        )
        await self._put_intent(history, batch, state, state.record, after)

    def _next_epoch(
        self,
        before: EpochRecord,
        state: StreamStateRecord,
        *,
        sealed: Sequence[int],
        ranges: Sequence[Range],
    ) -> EpochRecord:
        named = set(sealed)
        active = [segment for segment in before.segments if segment.segment_id in named]
        if len(active) != len(sealed):
            raise PreconditionError(f"not every segment is active segment_ids={sorted(sealed)}")
        exact = replacing_ranges(active, ranges)
        self._require_count(len(before.segments) - len(active) + len(exact))
        now_ms = max(self._wall_clock.now_ms(), before.created_ms)
        epoch = state.last_epoch + 1
        born = [
            StreamSegment(
                segment_id_of(number=state.next_segment_number + place, creation_epoch=epoch),
                low,
                high,
                now_ms,
            )
            for place, (low, high) in enumerate(exact)
        ]
        kept = [segment for segment in before.segments if segment.segment_id not in named]
        segments = tuple(sorted([*kept, *born], key=lambda segment: segment.low))
        record = EpochRecord(epoch, epoch, now_ms, segments)
        record.check()
        return record

    def _require_count(self, segments: int) -> None:
        if segments > self._settings.segments_per_stream_max:
            raise PreconditionError(
                f"a stream has at most {self._settings.segments_per_stream_max} segments"
            )

    async def _put_intent(
        self,
        history: StreamHistory,
        batch: Batch,
        state: Versioned[StreamStateRecord],
        record: StreamStateRecord,
        after: EpochRecord,
    ) -> None:
        born = sum(segment.creation_epoch == after.epoch for segment in after.segments)
        scaling = replace(
            record,
            state=StreamState.SCALING,
            last_epoch=after.epoch,
            next_segment_number=record.next_segment_number + born,
        )
        key = epoch_key(history.stream, after.epoch)
        batch.put(state_key(history.stream), scaling, state)
        batch.put(key, after, await history.table.read(key))
        batch.list_name(PENDING_INDEX, history.stream)

    async def _resume(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to scale stream={history.name!r}"
        before = await history.epoch(state.record.current_epoch)
        after = await history.epoch(state.record.last_epoch)
        await self._transition.create_segments(history, before, after)
        await self._transition.publish_successors(history, before, after)
        lengths = await self._transition.seal_replaced(history, before, after)
        batch = Batch()
        await self._transition.add_lengths(history, batch, lengths)
        active = replace(state.record, state=StreamState.ACTIVE, current_epoch=after.epoch)
        active.check()
        batch.put(state_key(history.stream), active, state)
        batch.unlist_name(PENDING_INDEX, history.stream)
        await history.table.commit(batch)


def new_segments(before: EpochRecord, after: EpochRecord) -> list[StreamSegment]:
    """Segments of `after` that `before` does not list."""
    known = {segment.segment_id for segment in before.segments}
    return [segment for segment in after.segments if segment.segment_id not in known]


def replaced_segments(before: EpochRecord, after: EpochRecord) -> list[StreamSegment]:
    """Segments of `before` that `after` no longer lists."""
    kept = {segment.segment_id for segment in after.segments}
    return [segment for segment in before.segments if segment.segment_id not in kept]


def _segment_names(history: StreamHistory, segments: Sequence[StreamSegment]) -> list[str]:
    return [history.segment_name(segment.segment_id) for segment in segments]
