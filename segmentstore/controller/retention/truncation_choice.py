"""Which cut a stream is truncated at: pure.

| policy | the newest cut that may go is | the oldest that must stay is |
|---|---|---|
| TIME | the newest that is older than `keep` milliseconds | the newest that is older than `keep_max` milliseconds |
| SIZE | the newest with more than `keep` bytes behind it | the newest with more than `keep_max` bytes behind it |

Without subscribers the stream is truncated at the newest cut that may go. With them it is truncated where the slowest
of them stands (S), held between both bounds:

- S behind the newest cut that may go: that cut, since the policy promises `keep` to everybody;
- S before it, and behind the cut of `keep_max`: S;
- S before the cut of `keep_max`, or crossing it: that cut, because the policy allows no more;
- S crosses only the newest cut that may go: the newest kept cut that S has passed for every key.

Invariants:

- Nothing is chosen that lies behind the newest cut that may go.
- Nothing beyond S is chosen, unless `keep_max` forces it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from segmentstore.codec.stream_records.retention_cuts_record import RetentionCut
from segmentstore.codec.stream_records.watermark import KeyedSegment
from segmentstore.controller.retention.cut_order import CutOrder, KeyedCut, order_of


class RetentionKind(Enum):
    """What a policy measures."""

    TIME = "time"
    SIZE = "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """A policy: milliseconds for TIME, bytes for SIZE."""

    kind: RetentionKind
    keep: int
    keep_max: int | None = None
    """None: unread bytes are kept for ever."""


def choose_cut(
    *,
    limits: RetentionLimits,
    cuts: Sequence[RetentionCut],
    time_ms: int,
    bytes_total: int,
    subscribed: KeyedCut | None,
    keyed: Callable[[Mapping[int, int]], KeyedCut],
) -> Mapping[int, int] | None:
    """Offsets to truncate at; None if everything stays. `cuts` are in order, oldest first.

    `bytes_total` counts as RetentionCut.bytes_before does; `subscribed` is the lowest position of all subscribers, None
    without any; `keyed` adds the key ranges to the segments of a cut.
    """

    def beyond(cut: RetentionCut) -> int:
        if limits.kind is RetentionKind.TIME:
            return time_ms - cut.time_ms
        return bytes_total - cut.bytes_before

    allowed = _newest(cuts, lambda cut: beyond(cut) > limits.keep)
    if allowed is None:
        return None
    if subscribed is None:
        return allowed.offsets
    if order_of(subscribed, keyed(allowed.offsets)) is CutOrder.AT_OR_AFTER:
        return allowed.offsets
    keep_max = limits.keep_max
    forced = None if keep_max is None else _newest(cuts, lambda cut: beyond(cut) > keep_max)
    if forced is not None and _is_behind(keyed(forced.offsets), subscribed):
        return forced.offsets
    if order_of(subscribed, keyed(allowed.offsets)) is CutOrder.BEFORE:
        return _offsets(subscribed)
    passed = _newest(
        cuts,
        lambda cut: (
            cut.time_ms <= allowed.time_ms
            and order_of(subscribed, keyed(cut.offsets)) is CutOrder.AT_OR_AFTER
        ),
    )
    return None if passed is None else passed.offsets


def _is_behind(cut: KeyedCut, other: KeyedCut) -> bool:
    return order_of(other, cut) is not CutOrder.AT_OR_AFTER


def _newest(
    cuts: Sequence[RetentionCut], accepts: Callable[[RetentionCut], bool]
) -> RetentionCut | None:
    return next((cut for cut in reversed(cuts) if accepts(cut)), None)


def _offsets(cut: Mapping[KeyedSegment, int]) -> dict[int, int]:
    return {segment.segment_id: offset for segment, offset in cut.items()}
