"""From one epoch to the next: what scaling and a commit behind a scale have in common.

The order is the one promise: the new epoch is recorded, its segments are created, then every replaced segment gets its
successors, and only then is the first of them sealed. A client that meets the seal finds where to go on (H75).

Invariants:

- Every step may be repeated; records that an earlier attempt wrote are left as they are.
- A segment is replaced once, by the epoch right behind the last one that lists it.
"""

from collections.abc import Sequence
from dataclasses import replace

from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.sealed_segment_record import SealedSegmentRecord
from segmentstore.codec.stream_records.stream_segment import StreamSegment
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_keys import sealed_key
from segmentstore.controller.streams.stream_segments import StreamSegments


def replaced_segments(before: EpochRecord, after: EpochRecord) -> list[StreamSegment]:
    """Segments of `before` that `after` no longer lists."""
    kept = {segment.segment_id for segment in after.segments}
    return [segment for segment in before.segments if segment.segment_id not in kept]


def new_segments(before: EpochRecord, after: EpochRecord) -> list[StreamSegment]:
    """Segments of `after` that `before` does not list."""
    known = {segment.segment_id for segment in before.segments}
    return [segment for segment in after.segments if segment.segment_id not in known]


class EpochTransition:
    """The steps from an epoch to the recorded one behind it. The caller holds the stream."""

    def __init__(self, *, segments: StreamSegments) -> None:
        self._segments = segments

    async def create_segments(
        self, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> None:
        """All segments of the new epoch exist afterwards."""
        await self._segments.create(_names(history, new_segments(before, after)))

    async def publish_successors(
        self, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> None:
        """Whoever asks for the successors of a replaced segment gets them from now on."""
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
        lengths = await self._segments.seal(_names(history, replaced))
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


def _names(history: StreamHistory, segments: Sequence[StreamSegment]) -> list[str]:
    return [history.segment_name(segment.segment_id) for segment in segments]
