"""Watches how fast the segments of streams grow, and scales streams as their policies say.

Rates are the store's own: lengths and event counts of active segments, asked for at every interval. They are kept in
memory only; a controller that starts watches anew and scales nothing before its windows are full.

A rate is averaged over windows of several lengths. Each average forgets exponentially: a sample that is one window old
counts 1/e of a new one. A segment that was watched for less than that is averaged over the time it was watched, so that
its first sample weighs no more than the others. Its average counts only once the window is full.

A segment is **hot** if in any window that it was watched for, its rate is above the target times that window's factor
(short windows need a large excess, so that a burst alone splits nothing). It is split evenly into as many parts as the
highest of these rates needs, at least two and at most the policy's factor.

A segment is **cold** if it was watched for the longest window, its rate there is below half of the target, and no other
window is above the target. Two cold neighbours become one.

Invariants:

- It scales through the same operation as a user does, so it can do nothing that a user could not.
- It never scales by a policy that an update has replaced, though it reads policies seldom.
- Between two of its scales of one stream lies the cool-down; new segments are watched for a whole window besides.
- A stream that fails is left for the next interval and holds up no other.
- New ranges cover exactly the union of the sealed ones.
- The stream never has fewer segments than the policy's minimum because of a merge, nor more than the bound because of a
  split. Splits come first: while one can be done nothing is merged.
- No new range is empty: a hot segment without a number between its bounds is left, and holds up no other.
- A segment takes part in at most one merge of a choice.
- Rates are never negative, and a segment that grows steadily has that rate in all windows.
- Samples may come at any distance from one another; the result does not depend on how a steady growth is cut up.
"""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.codec.controller_records.stream_records import (
    ScalingPolicy,
    ScalingType,
    SegmentWithRange,
    StreamState,
)
from segmentstore.codec.stream_names import is_user_name, number_of
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.errors import ScopeNotFoundError, StreamNotFoundError
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.settings import AutoScaleSettings, StreamSettings
from segmentstore.controller.streams.key_space import split_range
from segmentstore.controller.streams.scaling import Scaling
from segmentstore.controller.streams.stream_history import all_streams
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments

_LOG = logging.getLogger(__name__)

_KILOBYTE = 1024


class SegmentRates:
    """Averages for one segment; the first sample only says where it started."""

    def __init__(self, *, windows_seconds: Sequence[float], now: float, amount: int) -> None:
        self._windows = tuple(windows_seconds)
        self._rates = [0.0] * len(self._windows)
        self._started = now
        self._now = now
        self._amount = amount

    def sample(self, *, now: float, amount: int) -> None:
        """`amount` bytes or events have been appended since the segment was created, as of `now` (loop time)."""
        elapsed = now - self._now
        if elapsed <= 0:
            return
        # A count can only go back if the segment is another one; that is no growth.
        rate = max(0, amount - self._amount) / elapsed
        for index, window in enumerate(self._windows):
            weight = 1 - math.exp(-elapsed / window)
            self._rates[index] += weight * (rate - self._rates[index])
        self._now = now
        self._amount = amount

    def go_on_empty(self) -> None:
        """The same keys are taken by a new, empty segment from now on."""
        self._amount = 0

    def watched_seconds(self) -> float:
        """From the first sample to the last."""
        return self._now - self._started

    def rate(self, window: int) -> float:
        """Per second, in the window of that index."""
        watched = self.watched_seconds()
        if watched <= 0:
            return 0.0
        # The sum of the weights of all samples: below 1 while the window is not full many times over.
        return self._rates[window] / (1 - math.exp(-watched / self._windows[window]))

    def is_settled(self, window: int) -> bool:
        """Whether the segment was watched for as long as the window."""
        return self.watched_seconds() >= self._windows[window]


@dataclass(slots=True)
class Watched:
    """A stream with a policy, and the rates of its active segments."""

    policy: ScalingPolicy
    rates: dict[int, SegmentRates] = field(default_factory=dict)
    scaled_at: float | None = None
    """Loop time of the last scale from here."""


class AutoScale:
    """Works until cancelled."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        operations: StreamOperations,
        scaling: Scaling,
        segments: StreamSegments,
        segments_per_stream_max: int,
        settings: AutoScaleSettings,
    ) -> None:
        """`segments_per_stream_max`: the limit of streams, also where a client scales them."""
        self._segments_per_stream_max = segments_per_stream_max
        self._store = store
        self._operations = operations
        self._scaling = scaling
        self._segments = segments
        self._settings = settings
        self._watched: dict[tuple[str, str], Watched] = {}
        self._refreshed_at: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look_at_all()
            await asyncio.sleep(self._settings.interval_seconds)

    async def look_at_all(self) -> None:
        """One sample of every watched stream, and what follows from it."""
        await self._refresh_if_due()
        for (scope, stream), watched in list(self._watched.items()):
            try:
                await self._look_at(scope, stream, watched)
            except (ScopeNotFoundError, StreamNotFoundError):
                del self._watched[(scope, stream)]
            except SegmentStoreError as error:
                _LOG.warning("stream=%s/%s keeps its shape for now: %s", scope, stream, error)
            # What is in memory comes without a turn of the loop.
            await asyncio.sleep(0)

    async def _refresh_if_due(self) -> None:
        """Find out which streams have which policy."""
        now = asyncio.get_running_loop().time()
        last = self._refreshed_at
        if last is not None and now - last < self._settings.refresh_seconds:
            return
        found: dict[tuple[str, str], Watched] = {}

        def keep(scope: str, error: SegmentStoreError) -> None:
            # The rates of its streams are worth keeping until it answers again.
            _LOG.warning("scope=%s policies are not read anew: %s", scope, error)
            for key, known in self._watched.items():
                if key[0] == scope:
                    found.setdefault(key, known)

        try:
            async with aclosing(all_streams(self._store, on_unreadable=keep)) as streams:
                async for walked in streams:
                    policy = walked.configuration.scaling
                    key = (walked.scope, walked.stream)
                    if (
                        policy.type is ScalingType.FIXED
                        or policy.target_rate <= 0
                        or not is_user_name(walked.stream)
                        or len(found) >= self._settings.streams_max
                    ):
                        continue
                    known = self._watched.get(key)
                    if known is None or known.policy.type is not policy.type:
                        known = Watched(policy)
                    known.policy = policy
                    found[key] = known
        except SegmentStoreError as error:
            _LOG.warning("policies are not read anew: %s", error)
            return
        self._watched = found
        self._refreshed_at = now

    async def _look_at(self, scope: str, stream: str, watched: Watched) -> None:
        history = await self._operations.history(scope, stream)
        state = await history.state()
        if state.is_sealing_or_sealed:
            raise StreamNotFoundError(scope, stream)
        epoch = await history.epoch(state.current_epoch)
        sizes = await self._segments.sizes(
            [history.segment_name(segment.segment_id) for segment in epoch.segments]
        )
        now = asyncio.get_running_loop().time()
        rates: dict[int, SegmentRates] = {}
        # A commit behind a scale repeats all segments under the same numbers: that is no reason to forget them.
        ids = {number_of(each): each for each in watched.rates}
        for segment, size in zip(epoch.segments, sizes, strict=True):
            if size is None:
                return
            by_events = watched.policy.type is ScalingType.EVENTS_PER_SECOND
            amount = size.events if by_events else size.length
            rates[segment.segment_id] = _rates_with_sample(
                watched.rates, ids, segment.segment_id, now, amount
            ) or (
                SegmentRates(windows_seconds=self._settings.windows_seconds, now=now, amount=amount)
            )
        watched.rates = rates
        cooling = (
            watched.scaled_at is not None
            and now - watched.scaled_at < self._settings.cool_down_seconds
        )
        if state.state is not StreamState.ACTIVE or cooling:
            return
        choice = choose_scale(
            segments=[(each.with_range, rates[each.segment_id]) for each in epoch.segments],
            limits=limits_of(watched.policy, segments_max=self._segments_per_stream_max),
            settings=self._settings,
        )
        if choice is not None:
            _LOG.info("stream=%s/%s scales by rate %s", scope, stream, choice)
            await self._scaling.scale(
                scope,
                stream,
                sealed=choice.sealed,
                ranges=choice.ranges,
                while_policy=watched.policy,
            )
            watched.scaled_at = asyncio.get_running_loop().time()


def _rates_with_sample(
    known: Mapping[int, SegmentRates],
    id_of_number: Mapping[int, int],
    segment_id: int,
    now: float,
    amount: int,
) -> SegmentRates | None:
    """The segment's rates with a new sample; None if nothing is known of it."""
    rates = known.get(segment_id)
    if rates is None:
        earlier = id_of_number.get(number_of(segment_id))
        if earlier is None:
            return None
        rates = known[earlier]
        rates.go_on_empty()
    rates.sample(now=now, amount=amount)
    return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLimits:
    """What a stream's policy says; the target is per second and segment, in bytes or events."""

    target: float
    split_factor: int
    segments_min: int
    segments_max: int = StreamSettings().segments_per_stream_max
    """Splits stop here: a scale beyond it would be refused as a whole."""


def limits_of(policy: ScalingPolicy, *, segments_max: int) -> ScaleLimits:
    """A policy by rate, in bytes or events per second."""
    unit = _KILOBYTE if policy.type is ScalingType.KILOBYTES_PER_SECOND else 1
    return ScaleLimits(
        target=float(policy.target_rate * unit),
        split_factor=policy.scale_factor,
        segments_min=policy.segment_count_min,
        segments_max=segments_max,
    )


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """Segments to seal and the ranges that replace them, in the order of keys."""

    sealed: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]


def choose_scale(
    *,
    segments: Sequence[tuple[SegmentWithRange, SegmentRates]],
    limits: ScaleLimits,
    settings: AutoScaleSettings,
) -> ScaleChoice | None:
    """What to do now; None for nothing. `segments` are all active ones."""
    ordered = sorted(segments, key=lambda item: item[0].low)
    return _choose_splits(ordered, limits, settings) or _choose_merges(ordered, limits, settings)


def _choose_splits(
    segments: Sequence[tuple[SegmentWithRange, SegmentRates]],
    limits: ScaleLimits,
    settings: AutoScaleSettings,
) -> ScaleChoice | None:
    room = limits.segments_max - len(segments)
    sealed: list[int] = []
    ranges: list[tuple[float, float]] = []
    for segment, rates in segments:
        excess = _excess(rates, limits, settings)
        parts = min(max(2, int(excess)), max(2, limits.split_factor), room + 1)
        if excess <= 1 or parts < 2:
            continue
        # A hot key has its range halved until no number is left between the bounds; an empty part would refuse it all.
        split = [
            each for each in split_range(segment.low, segment.high, parts) if each[0] < each[1]
        ]
        if len(split) < 2:
            continue
        room -= len(split) - 1
        sealed.append(segment.segment_id)
        ranges += split
    return ScaleChoice(tuple(sealed), tuple(ranges)) if sealed else None


def _excess(rates: SegmentRates, limits: ScaleLimits, settings: AutoScaleSettings) -> float:
    """Highest rate over the target among the windows that call the segment hot; 0 if none does."""
    hot = False
    highest = 0.0
    for window, factor in enumerate(settings.hot_factors):
        if not rates.is_settled(window):
            continue
        over = rates.rate(window) / limits.target
        highest = max(highest, over)
        hot = hot or over > factor
    return highest if hot else 0.0


def _choose_merges(
    segments: Sequence[tuple[SegmentWithRange, SegmentRates]],
    limits: ScaleLimits,
    settings: AutoScaleSettings,
) -> ScaleChoice | None:
    spare = len(segments) - max(1, limits.segments_min)
    sealed: list[int] = []
    ranges: list[tuple[float, float]] = []
    position = 0
    while position + 1 < len(segments) and spare > 0:
        (left, left_rates), (right, right_rates) = segments[position : position + 2]
        if (
            left.high == right.low
            and _is_cold(left_rates, limits, settings)
            and _is_cold(right_rates, limits, settings)
        ):
            sealed += [left.segment_id, right.segment_id]
            ranges.append((left.low, right.high))
            spare -= 1
            position += 2
        else:
            position += 1
    return ScaleChoice(tuple(sealed), tuple(ranges)) if sealed else None


def _is_cold(rates: SegmentRates, limits: ScaleLimits, settings: AutoScaleSettings) -> bool:
    longest = len(settings.windows_seconds) - 1
    return (
        rates.is_settled(longest)
        and rates.rate(longest) < limits.target / 2
        and all(rates.rate(window) < limits.target for window in range(longest))
    )
