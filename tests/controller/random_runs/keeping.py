"""What retention may take from one stream: the policies that were asked for, and who subscribes.

Clients do not choose these cuts, so each event that is gone is explained by itself: by a cut that somebody asked
for, or by a policy. An event that was born after a subscription was answered goes before the group has consumed it only
if the policy has a maximum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from segmentstore.codec.controller_api import controller_pb2 as api

_SLACK_SECONDS = 0.002
"""Clocks have whole milliseconds."""


class Measure(Enum):
    """What a policy counts; as the wire has it."""

    TIME = 1
    """Milliseconds."""
    SIZE = 2
    """Bytes."""


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """A policy as it was asked for."""

    measure: Measure
    keep: int
    keep_max: int
    """0: what is not consumed is kept for ever."""

    @property
    def message(self) -> api.RetentionPolicy:
        return api.RetentionPolicy(
            retentionType=self.measure.name, retentionParam=self.keep, retentionMax=self.keep_max
        )

    def allows(self, *, seconds: float, size: float, guarded: bool) -> bool:
        """Whether what is so old at most, with so many bytes behind it at most, may be gone."""
        if guarded and not self.keep_max:
            return False
        limit = max(self.keep, self.keep_max) if guarded else self.keep
        if self.measure is Measure.SIZE:
            return size > limit
        return seconds + _SLACK_SECONDS > limit / 1000


@dataclass(slots=True)
class Subscription:
    """A group that surely holds the stream back since a moment of the ledger."""

    since: int
    consumed: list[Mapping[int, int]] = field(default_factory=list)
    """Cuts that it said or may have said it has consumed, or where it may start."""
    consumed_before: list[Mapping[int, int]] = field(default_factory=list)
    """The same of generations that have ended."""
    reset_from: Mapping[int, int] | None = None
    """Where the stream began when the last generation had begun, and no look of retention from before it went on: what
    earlier ones had consumed explains nothing that went since. None while that is unknown: it still explains."""

    def begin_generation(self, start: Mapping[int, int] | None) -> None:
        """The group was reset: all behind `start`, or behind the head without one, is yet to be read."""
        self.consumed_before += self.consumed
        self.consumed = [start] if start else []
        self.reset_from = None

    @property
    def excuses(self) -> list[Mapping[int, int]]:
        """What lies before one of these may have been consumed when it went."""
        if self.reset_from is None:
            return [*self.consumed, *self.consumed_before]
        return [*self.consumed, self.reset_from]


@dataclass(slots=True)
class Keeping:
    """Of one incarnation of a stream."""

    policies: list[KnownPolicy] = field(default_factory=list)
    """Every one that was ever asked for."""
    subscription: Subscription | None = None
    judged: dict[int, int] = field(default_factory=dict)
    """The head that was looked at last."""
