"""Watches how fast the segments of streams grow, and scales streams as their policies say.

Rates are the store's own: lengths and event counts of active segments, asked for at every interval. They live in
memory; a controller that starts watches anew and scales nothing before its windows are full.

Invariants:

- It scales through the same operation as a user does, so it can do nothing that a user could not.
- Between two of its scales of one stream lies the cool-down; new segments are watched for a whole window besides.
- A stream that fails is left for the next interval and holds up no other.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.codec.stream_names import is_user_name, number_of
from segmentstore.codec.stream_records.stream_configuration_record import (
    ScalingPolicy,
    ScalingType,
)
from segmentstore.codec.stream_records.stream_state_record import StreamState
from segmentstore.codec.stream_records.watermark import KeyedSegment
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.autoscale.scale_choice import ScaleLimits, choose_scale
from segmentstore.controller.autoscale.segment_rates import SegmentRates
from segmentstore.controller.autoscale.settings import AutoScaleSettings
from segmentstore.controller.errors import ScopeNotFoundError, StreamNotFoundError
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.retention.segment_sizes import SegmentSizes
from segmentstore.controller.retention.stream_walk import all_streams
from segmentstore.controller.streams.scaling import Scaling
from segmentstore.controller.streams.stream_operations import StreamOperations

_LOG = logging.getLogger(__name__)

_KILOBYTE = 1024


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
        sizes: SegmentSizes,
        settings: AutoScaleSettings,
    ) -> None:
        self._store = store
        self._operations = operations
        self._scaling = scaling
        self._sizes = sizes
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

    async def _refresh_if_due(self) -> None:
        """Find out which streams have which policy."""
        now = asyncio.get_running_loop().time()
        last = self._refreshed_at
        if last is not None and now - last < self._settings.refresh_seconds:
            return
        found: dict[tuple[str, str], Watched] = {}
        try:
            async with aclosing(all_streams(self._store)) as streams:
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
        if state.state in (StreamState.SEALING, StreamState.SEALED):
            raise StreamNotFoundError(scope, stream)
        epoch = await history.epoch(state.current_epoch)
        sizes = await self._sizes.of(
            [history.segment_name(segment.segment_id) for segment in epoch.segments]
        )
        now = asyncio.get_running_loop().time()
        rates: dict[int, SegmentRates] = {}
        for segment, size in zip(epoch.segments, sizes, strict=True):
            if size is None:
                return
            by_events = watched.policy.type is ScalingType.EVENTS_PER_SECOND
            amount = size.events if by_events else size.length
            rates[segment.segment_id] = _sampled(
                watched.rates, segment.segment_id, now, amount
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
            segments=[
                (KeyedSegment(each.segment_id, each.low, each.high), rates[each.segment_id])
                for each in epoch.segments
            ],
            limits=limits_of(watched.policy),
            settings=self._settings,
        )
        if choice is not None:
            _LOG.info("stream=%s/%s scales by rate %s", scope, stream, choice)
            await self._scaling.scale(scope, stream, sealed=choice.sealed, ranges=choice.ranges)
            watched.scaled_at = asyncio.get_running_loop().time()


def _sampled(
    known: Mapping[int, SegmentRates], segment_id: int, now: float, amount: int
) -> SegmentRates | None:
    """The segment's rates with a new sample; None if nothing is known of it."""
    rates = known.get(segment_id)
    if rates is None:
        # A commit behind a scale repeats all segments under the same numbers: that is no reason to forget them.
        earlier = [each for each in known if number_of(each) == number_of(segment_id)]
        if not earlier:
            return None
        rates = known[earlier[-1]]
        rates.go_on_empty()
    rates.sample(now=now, amount=amount)
    return rates


def limits_of(policy: ScalingPolicy) -> ScaleLimits:
    """A policy by rate, in bytes or events per second."""
    unit = _KILOBYTE if policy.type is ScalingType.KILOBYTES_PER_SECOND else 1
    return ScaleLimits(
        target=float(policy.target_rate * unit),
        split_factor=policy.scale_factor,
        segments_min=policy.segment_count_min,
    )
