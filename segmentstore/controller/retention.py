"""Takes cuts of streams and truncates them as their policies say.

    record `stream/<stream>/retention` in the scope's table: the cuts to choose from

At every interval each stream with a policy gets a cut (where its active segments end now), and is truncated at the one
that `choose_cut` chooses. The mark stream and the streams of reader groups have no policy. Watermarks play no part.

| policy | the newest cut that may go is | the oldest that must stay is |
|---|---|---|
| TIME | the newest that is older than `keep` milliseconds | the newest that is older than `keep_max` milliseconds |
| SIZE | the newest with more than `keep` bytes behind it | the newest with more than `keep_max` bytes behind it |

Without subscribers the stream is truncated at the newest cut that may go. With them it is truncated where the slowest
of them stands (S), held between both bounds:

- S behind the newest cut that may go: that cut, since the policy promises `keep` to every reader;
- S before it, and behind the cut of `keep_max`: S;
- S before the cut of `keep_max`, or crossing it: that cut, because the policy allows no more;
- S crosses only the newest cut that may go: the newest kept cut that S has passed for every key.

Invariants:

- Nothing is deleted by age while the clocks are not trusted: no cut of such a stream is taken either, because
  its time would be wrong for ever. Retention by size goes on.
- Nothing is deleted by a policy that an update has replaced: it is read anew for each stream, and again where the
  stream is truncated.
- Times of cuts never go down.
- Cuts of an earlier stream of the name count for nothing: they name segments that this one does not have.
- A stream that fails is left for the next interval and holds up no other.
- Nothing is chosen that lies behind the newest cut that may go.
- Nothing beyond S is chosen, unless `keep_max` forces it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.stream_records import (
    RetentionCut,
    RetentionCutsRecord,
    RetentionPolicy,
    RetentionType,
    SegmentWithRange,
    StoredRetentionCuts,
    StreamSegment,
)
from segmentstore.codec.stream_names import creation_epoch_of, is_user_name
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.errors import (
    PolicyReplacedError,
    PreconditionError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.settings import RetentionSettings
from segmentstore.controller.streams.stream_cuts import (
    CutOrder,
    CutWithRanges,
    SegmentsByKey,
    lies_behind,
    order_of,
)
from segmentstore.controller.streams.stream_history import StreamHistory, all_streams
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.streams.truncation import Truncation
from segmentstore.controller.subscribers import Subscribers
from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.waiting import give_way

_LOG = logging.getLogger(__name__)

_FOR_EVER = (1 << 63) - 1
_CUTS_PER_TURN = 2
"""Of a stream of a thousand segments: some 4 us for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """A policy that lets something go: milliseconds for TIME, bytes for SIZE."""

    type: RetentionType
    keep: int
    keep_max: int | None = None
    """None: unread bytes are kept for ever."""


class Retention:
    """Works until cancelled."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        operations: StreamOperations,
        truncation: Truncation,
        subscribers: Subscribers,
        segments: StreamSegments,
        wall_clock: WallClock,
        clock_watch: ClockWatch,
        settings: RetentionSettings,
    ) -> None:
        self._store = store
        self._operations = operations
        self._truncation = truncation
        self._subscribers = subscribers
        self._segments = segments
        self._wall_clock = wall_clock
        self._settings = settings
        self._clock_watch = clock_watch
        self._has_rules_of_age = False
        """As the last walk over all streams found it."""

    def complaint(self) -> str:
        """Why nothing is deleted because of its age; "" if all is well, or if no stream has such a policy."""
        return self._clock_watch.complaint() if self._has_rules_of_age else ""

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        self._clock_watch.doubt("the controller has just started")
        due = loop.time() + self._settings.interval_seconds
        await self._look_for_rules_of_age()
        while True:
            # Looks often, so that a jump and its way back are not seen as one.
            await asyncio.sleep(min(self._settings.clock_look_seconds, max(0.0, due - loop.time())))
            self._clock_watch.look()
            if loop.time() >= due:
                await self.look_at_all()
                due = loop.time() + self._settings.interval_seconds

    async def look_at_all(self) -> None:
        """One pass over all streams."""
        async with aclosing(self._streams_with_limits()) as streams:
            async for scope, stream in streams:
                try:
                    await self.look_at(scope, stream)
                except SegmentStoreError as error:
                    _LOG.warning("stream=%s/%s keeps everything for now: %s", scope, stream, error)

    async def _look_for_rules_of_age(self) -> None:
        async with aclosing(self._streams_with_limits()) as streams:
            async for _ in streams:
                self._clock_watch.look()

    async def _streams_with_limits(self) -> AsyncGenerator[tuple[str, str], None]:
        """Scope and name of every stream that has limits, as of when its page was read. Hold it in `aclosing`."""
        is_complete = True
        has_rules_of_age = False

        def tell(scope: str, error: SegmentStoreError) -> None:
            nonlocal is_complete
            is_complete = False
            _LOG.warning("scope=%s retention is put off: %s", scope, error)

        try:
            async with aclosing(all_streams(self._store, on_unreadable=tell)) as streams:
                async for listed in streams:
                    limits = limits_of(listed.configuration.retention)
                    if limits is None or not is_user_name(listed.stream):
                        continue
                    has_rules_of_age |= limits.type is RetentionType.TIME
                    yield listed.scope, listed.stream
        except SegmentStoreError as error:
            is_complete = False
            _LOG.warning("retention is put off: %s", error)
        # What could not be read may have such a policy, as it may have had before.
        self._has_rules_of_age = has_rules_of_age or (self._has_rules_of_age and not is_complete)

    async def look_at(self, scope: str, stream: str) -> None:
        """Take a cut of one stream, and truncate it if it is time."""
        history = await self._operations.history(scope, stream)
        state = await history.state()
        if state.is_sealing_or_sealed:
            return
        configuration = (await history.configuration()).record
        limits = None if configuration is None else limits_of(configuration.retention)
        if configuration is None or limits is None:
            return
        if limits.type is RetentionType.TIME and not self._clock_watch.trusted():
            return
        key = cuts_key(stream)
        known = await history.table.read(key)
        before = await _decoded(known.record)
        epoch = await history.epoch(state.current_epoch)
        cuts, ranges = await self._own_cuts(history, before)
        ranges |= {each.segment_id: each.with_range for each in epoch.segments}
        cuts, total = await self._with_new_cut(history, cuts, epoch.segments)
        chosen, keys = await self._choose(history, limits, cuts, total, ranges)
        if chosen is not None and await self._truncate(history, chosen, configuration.retention):
            keyed = {keys[each]: offset for each, offset in chosen.items()}
            cuts = [
                cut
                for cut in cuts
                if order_of(keyed, {keys[each]: at for each, at in cut.offsets.items()})
                is not CutOrder.AT_OR_AFTER
            ]
        RetentionCutsRecord(tuple(cuts)).check()
        after = StoredRetentionCuts.of(self._thinned(await _encoded(cuts)))
        if after != (known.record or StoredRetentionCuts.of(())):
            batch = Batch()
            batch.put(key, after, known)
            await history.table.commit(batch)

    async def _truncate(
        self, history: StreamHistory, cut: Mapping[int, int], policy: RetentionPolicy
    ) -> bool:
        """Whether the cut will be of no use any more."""
        try:
            await self._truncation.truncate(history.scope, history.stream, cut, while_policy=policy)
        except PolicyReplacedError as error:
            _LOG.info("stream=%s keeps everything for now: %s", history.name, error)
            return False
        except PreconditionError as error:
            # Another truncation went further, or across this cut.
            _LOG.info("stream=%s is not truncated at a cut: %s", history.name, error)
        return True

    async def on_stream_deletion(self, history: StreamHistory) -> None:
        """The stream is being deleted: its cuts are of no interest any more."""
        key = cuts_key(history.stream)
        batch = Batch()
        batch.remove(key, await history.table.read(key))
        await history.table.commit(batch)

    async def _own_cuts(
        self, history: StreamHistory, cuts: Sequence[RetentionCut]
    ) -> tuple[Sequence[RetentionCut], dict[int, SegmentWithRange]]:
        """The cuts of this very stream, and the ranges of their segments."""
        ids = {each for cut in cuts for each in cut.offsets}
        if not ids:
            return (), {}
        try:
            segments = await history.segments_of(ids)
        except StreamSegmentNotFoundError as error:
            # A look at an earlier stream of the name was still on its way when that one was deleted.
            _LOG.warning(
                "stream=%s retention begins anew, its cuts are foreign: %s", history.name, error
            )
            return (), {}
        return cuts, {each.segment_id: each.with_range for each in segments}

    async def _with_new_cut(
        self,
        history: StreamHistory,
        cuts: Sequence[RetentionCut],
        active: Sequence[StreamSegment],
    ) -> tuple[list[RetentionCut], int]:
        """The cuts with one at the present end, and the bytes before the end."""
        sizes = await self._segments.sizes(
            [history.segment_name(each.segment_id) for each in active]
        )
        if any(size is None for size in sizes):
            raise PreconditionError(f"a segment went away meanwhile stream={history.name!r}")
        offsets = {
            segment.segment_id: size.length
            for segment, size in zip(active, sizes, strict=True)
            if size is not None
        }
        last = cuts[-1] if cuts else None
        if last is not None and dict(last.offsets) == offsets:
            return list(cuts), last.bytes_before
        start = dict(last.offsets) if last is not None else await history.head()
        total = (last.bytes_before if last is not None else 0) + await self._bytes_between(
            history, start, offsets
        )
        now_ms = self._wall_clock.now_ms()
        if last is not None:
            now_ms = max(now_ms, last.time_ms)
        return [*cuts, RetentionCut(now_ms, total, offsets)], total

    async def _bytes_between(
        self, history: StreamHistory, start: Mapping[int, int], end: Mapping[int, int]
    ) -> int:
        behind = SegmentsByKey(await history.segments_of(start))
        first = min(map(creation_epoch_of, start))
        last = max(map(creation_epoch_of, end))
        total = 0
        async with aclosing(history.segments_born(first, last)) as segments:
            async for segment in segments:
                segment_id = segment.segment_id
                if segment_id not in start and lies_behind(segment, behind):
                    continue
                length = end.get(segment_id)
                if length is None:
                    sealed = (await history.sealed([segment_id]))[segment_id].record
                    length = sealed.length if sealed is not None else None
                total += max(0, (length or 0) - start.get(segment_id, 0))
        return total

    async def _choose(
        self,
        history: StreamHistory,
        limits: RetentionLimits,
        cuts: Sequence[RetentionCut],
        total: int,
        ranges: Mapping[int, SegmentWithRange],
    ) -> tuple[Mapping[int, int] | None, Mapping[int, SegmentWithRange]]:
        subscribed = await self._subscribers.lowest_cut(history)
        if subscribed is not None:
            ranges = {**ranges, **{segment.segment_id: segment for segment in subscribed}}
        chosen = await choose_cut(
            limits=limits,
            cuts=cuts,
            time_ms=self._wall_clock.now_ms(),
            bytes_total=total,
            subscribed=subscribed,
            keyed=lambda offsets: {ranges[each]: at for each, at in offsets.items()},
        )
        return chosen, ranges

    def _thinned(self, cuts: Sequence[bytes]) -> Sequence[bytes]:
        """Encoded ones, oldest first."""
        while len(cuts) > 2 and (
            len(cuts) > self._settings.cuts_per_stream_max
            or sum(map(len, cuts)) > self._settings.cuts_bytes_max
        ):
            half = len(cuts) // 2
            cuts = [*cuts[:half:2], *cuts[half:]] if half > 1 else cuts[1:]
        return cuts


def limits_of(policy: RetentionPolicy) -> RetentionLimits | None:
    """The policy in numbers; None if everything is kept."""
    if policy.type is RetentionType.NONE or not 0 <= policy.limit < _FOR_EVER:
        return None
    bounded = 0 < policy.maximum < _FOR_EVER
    return RetentionLimits(
        type=policy.type,
        keep=policy.limit,
        keep_max=max(policy.limit, policy.maximum) if bounded else None,
    )


def cuts_key(stream: str) -> RecordKey[StoredRetentionCuts]:
    """Where the cuts of a stream stand, in the table of its scope."""
    return RecordKey(record_keys.retention_cuts(stream), StoredRetentionCuts.decode)


async def _decoded(stored: StoredRetentionCuts | None) -> list[RetentionCut]:
    """With turns of the loop in between. Raises CorruptedDataError."""
    cuts: list[RetentionCut] = []
    for cut in () if stored is None else stored.each_cut():
        cuts.append(cut)
        await give_way(len(cuts), every=_CUTS_PER_TURN)
    return cuts


async def _encoded(cuts: Sequence[RetentionCut]) -> list[bytes]:
    """With turns of the loop in between."""
    encoded: list[bytes] = []
    for cut in cuts:
        encoded.append(cut.encode())
        await give_way(len(encoded), every=_CUTS_PER_TURN)
    return encoded


async def choose_cut(
    *,
    limits: RetentionLimits,
    cuts: Sequence[RetentionCut],
    time_ms: int,
    bytes_total: int,
    subscribed: CutWithRanges | None,
    keyed: Callable[[Mapping[int, int]], CutWithRanges],
) -> Mapping[int, int] | None:
    """Offsets to truncate at; None if everything stays. `cuts` are in order, oldest first.

    `bytes_total` counts as RetentionCut.bytes_before does; `subscribed` is the lowest position of all subscribers, None
    without any; `keyed` adds the key ranges to the segments of a cut. Others run while cuts are compared: there may be
    hundreds, of a thousand segments each.
    """

    def beyond(cut: RetentionCut) -> int:
        if limits.type is RetentionType.TIME:
            return time_ms - cut.time_ms
        return bytes_total - cut.bytes_before

    allowed = _newest_cut(cuts, lambda cut: beyond(cut) > limits.keep)
    if allowed is None:
        return None
    if subscribed is None:
        return allowed.offsets
    if order_of(subscribed, keyed(allowed.offsets)) is CutOrder.AT_OR_AFTER:
        return allowed.offsets
    keep_max = limits.keep_max
    forced = None if keep_max is None else _newest_cut(cuts, lambda cut: beyond(cut) > keep_max)
    if forced is not None and _is_behind(keyed(forced.offsets), subscribed):
        return forced.offsets
    if order_of(subscribed, keyed(allowed.offsets)) is CutOrder.BEFORE:
        return _offsets_of(subscribed)
    for compared, cut in enumerate(reversed(cuts), 1):
        if (
            cut.time_ms <= allowed.time_ms
            and order_of(subscribed, keyed(cut.offsets)) is CutOrder.AT_OR_AFTER
        ):
            return cut.offsets
        await give_way(compared, every=_CUTS_PER_TURN)
    return None


def _is_behind(cut: CutWithRanges, other: CutWithRanges) -> bool:
    return order_of(other, cut) is not CutOrder.AT_OR_AFTER


def _newest_cut(
    cuts: Sequence[RetentionCut], accepts: Callable[[RetentionCut], bool]
) -> RetentionCut | None:
    return next((cut for cut in reversed(cuts) if accepts(cut)), None)


def _offsets_of(cut: Mapping[SegmentWithRange, int]) -> dict[int, int]:
    return {segment.segment_id: offset for segment, offset in cut.items()}
