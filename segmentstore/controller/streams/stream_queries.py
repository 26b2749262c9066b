"""Questions about a stream that change nothing.

Invariants:

- "No successors" is answered only for a segment that ends its stream: the stream is sealed, or all of its active
  segments were sealed in the store by a client. In every other case the answer is there or not known yet.
- A successor lists every segment that it replaced, and its range is contained in theirs or theirs in its own.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    StreamConfigurationRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
)
from segmentstore.codec.stream_names import creation_epoch_of
from segmentstore.controller.errors import (
    EpochNotFoundError,
    PreconditionError,
    RetryLaterError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.streams.stream_cuts import (
    Cut,
    SegmentsByKey,
    check_cover,
    check_cut,
    lies_ahead,
    lies_behind,
    normalised,
    reaches,
)
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that goes on where others ended."""

    segment: StreamSegment
    predecessors: Sequence[int]
    """All segments that it replaced."""


class StreamQueries:
    """Answers from the records of streams.

    Every method raises StreamNotFoundError and ScopeNotFoundError.
    """

    def __init__(self, *, operations: StreamOperations, segments: StreamSegments) -> None:
        self._operations = operations
        self._segments = segments

    async def exists(self, scope: str, stream: str) -> bool:
        """Whether there is a stream of that name; False also without its scope."""
        try:
            await (await self._operations.history(scope, stream)).state()
        except (ScopeNotFoundError, StreamNotFoundError):
            return False
        return True

    async def state(self, scope: str, stream: str) -> StreamStateRecord:
        """Where the stream stands."""
        return (await self._existing(scope, stream))[1]

    async def configuration(self, scope: str, stream: str) -> StreamConfigurationRecord:
        """What the user asked for."""
        history, _ = await self._existing(scope, stream)
        configuration = (await history.configuration()).record
        if configuration is None:
            raise history.not_found()
        return configuration

    async def current_segments(self, scope: str, stream: str) -> Sequence[StreamSegment]:
        """Those that take events, in the order of the key space; none for a sealed stream."""
        history, state = await self._existing(scope, stream)
        if state.state is StreamState.SEALED:
            return ()
        return (await history.epoch(state.current_epoch)).segments

    async def epoch_segments(
        self, scope: str, stream: str, epoch: int | None
    ) -> Sequence[StreamSegment]:
        """Those of one epoch; of the current one for None. Raises EpochNotFoundError."""
        history, state = await self._existing(scope, stream)
        number = state.current_epoch if epoch is None else epoch
        # Epochs behind the current one are on their way: their segments may not be there yet.
        if not 0 <= number <= state.current_epoch:
            raise EpochNotFoundError(f"epoch does not exist stream={history.name!r} epoch={number}")
        return (await history.epoch(number)).segments

    async def segments_at(self, scope: str, stream: str, timestamp_ms: int) -> Mapping[int, int]:
        """Segment id -> offset from which on to read what was there at that time; the head for 0.

        The answer is as fine as epochs are: segments active at that time are given whole.
        """
        history, state = await self._existing(scope, stream)
        head = await history.head()
        if timestamp_ms <= 0:
            return head
        first, last = 0, state.current_epoch
        while first < last:
            middle = (first + last + 1) // 2
            if (await history.epoch(middle)).created_ms <= timestamp_ms:
                first = middle
            else:
                last = middle - 1
        segments = (await history.epoch(first)).segments
        cut = {segment.segment_id: 0 for segment in segments}
        head_segments = await history.segments_of(head)
        return cut if reaches(cut, segments, head, head_segments) else head

    async def successors(self, scope: str, stream: str, segment_id: int) -> Sequence[Successor]:
        """What goes on behind a sealed segment; nothing if the stream ends there.

        Raises StreamSegmentNotFoundError, RetryLaterError (the segment is not sealed).
        """
        history, state = await self._existing(scope, stream)
        found = await self._known_successors(history, state, segment_id)
        if found is not None:
            return found
        # An operation may be about to publish them: what holds the stream is waited for.
        async with self._operations.exclusive(scope, stream) as settled:
            state = await settled.state()
            found = await self._known_successors(settled, state, segment_id)
            if found is not None:
                return found
            epoch = await settled.epoch(state.current_epoch)
            if await self._sealed_by_clients(settled, epoch):
                return ()
        raise RetryLaterError(
            f"segment is not sealed stream={history.name!r} segment_id={segment_id}"
        )

    async def segments_between(
        self, scope: str, stream: str, start: Cut, end: Cut
    ) -> Sequence[StreamSegment]:
        """Every segment with bytes between two cuts; an empty start is the head, an empty end the tail.

        Raises PreconditionError (no valid cuts, or the end lies before the start), StreamSegmentNotFoundError.
        """
        history, state = await self._existing(scope, stream)
        from_cut = normalised(start or await history.head())
        from_segments = await self._cut_segments(history, from_cut)
        first = min(segment.creation_epoch for segment in from_segments)
        if end:
            to_cut = normalised(end)
            to_segments = await self._cut_segments(history, to_cut)
            if not reaches(to_cut, to_segments, from_cut, from_segments):
                raise PreconditionError(f"the end lies before the start stream={history.name!r}")
        else:
            to_segments = list((await history.epoch(state.current_epoch)).segments)
        last = max(segment.creation_epoch for segment in to_segments)
        start_by_key, end_by_key = SegmentsByKey(from_segments), SegmentsByKey(to_segments)
        async with aclosing(history.segments_born(first, last)) as segments:
            return [
                segment
                async for segment in segments
                if not lies_behind(segment, start_by_key) and not lies_ahead(segment, end_by_key)
            ]

    async def is_cut_valid(self, scope: str, stream: str, cut: Cut) -> bool:
        """Whether the cut covers the key space and lies between the stream's head and its end."""
        history, _ = await self._existing(scope, stream)
        offsets = normalised(cut)
        try:
            segments = await self._cut_segments(history, offsets)
        except (PreconditionError, StreamSegmentNotFoundError):
            return False
        head = await history.head()
        if not reaches(offsets, segments, head, await history.segments_of(head)):
            return False
        infos = await self._segments.info([history.segment_name(each) for each in offsets])
        return all(
            info is not None and offset <= info.length
            for info, offset in zip(infos, offsets.values(), strict=True)
        )

    async def is_segment_active(self, scope: str, stream: str, segment_id: int) -> bool:
        """Whether writers are sent to the segment."""
        try:
            active = await self.current_segments(scope, stream)
        except (ScopeNotFoundError, StreamNotFoundError):
            return False
        return any(segment.segment_id == segment_id for segment in active)

    async def _existing(self, scope: str, stream: str) -> tuple[StreamHistory, StreamStateRecord]:
        history = await self._operations.history(scope, stream)
        return history, await history.state()

    async def _cut_segments(self, history: StreamHistory, cut: Cut) -> list[StreamSegment]:
        check_cut(cut)
        segments = await history.segments_of(cut)
        check_cover(segments)
        return segments

    async def _known_successors(
        self, history: StreamHistory, state: StreamStateRecord, segment_id: int
    ) -> Sequence[Successor] | None:
        """None: not known yet."""
        if not 0 <= creation_epoch_of(segment_id) <= state.last_epoch:
            raise StreamSegmentNotFoundError(
                f"stream has no such segment stream={history.name!r} segment_id={segment_id}"
            )
        segment = (await history.segments_of([segment_id]))[0]
        sealed = (await history.sealed([segment_id]))[segment_id].record
        if sealed is not None:
            after = await history.epoch(sealed.replacing_epoch)
            before = await history.epoch(sealed.replacing_epoch - 1)
            return _successors(segment, before, after)
        return () if state.state is StreamState.SEALED else None

    async def _sealed_by_clients(self, history: StreamHistory, epoch: EpochRecord) -> bool:
        # A byte stream's writer seals its segment itself; its readers then ask what comes behind.
        infos = await self._segments.info(
            [history.segment_name(segment.segment_id) for segment in epoch.segments]
        )
        return all(info is not None and info.sealed for info in infos)


def _successors(segment: StreamSegment, before: EpochRecord, after: EpochRecord) -> list[Successor]:
    kept = {each.segment_id for each in after.segments}
    replaced = [each for each in before.segments if each.segment_id not in kept]
    return [
        Successor(born, [each.segment_id for each in replaced if each.overlaps(born)])
        for born in after.segments
        if born.creation_epoch == after.epoch and born.overlaps(segment)
    ]
