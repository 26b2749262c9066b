"""What a stream is configured to be: how it scales, what it keeps, how it is tagged."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

from segmentstore.contracts.errors import InvalidRequestError

_SCALING_NUMBER_END: Final = 1 << 31
_RETENTION_LIMIT_END: Final = (1 << 63) - 1
"""What says so much keeps everything."""


class ScaleType(IntEnum):
    """As the controller numbers them: never renumber."""

    FIXED = 0
    KILOBYTES_PER_SECOND = 1
    EVENTS_PER_SECOND = 2


class RetentionType(IntEnum):
    """As the controller numbers them: never renumber."""

    NONE = 0
    TIME = 1
    SIZE = 2


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many segments a stream has, and what changes that; whatever a client said that made or updated it."""

    type: ScaleType = ScaleType.FIXED
    target_rate: int = 0
    """Per segment, in units of the type."""
    scale_factor: int = 0
    """Segments that one becomes when it is too busy."""
    segments_min: int = 1

    def __post_init__(self) -> None:
        if self.segments_min < 1:
            raise InvalidRequestError(
                f"a stream has at least one segment segments={self.segments_min}"
            )
        numbers = (self.target_rate, self.scale_factor, self.segments_min)
        if max(numbers) >= _SCALING_NUMBER_END:
            raise InvalidRequestError(f"no stream scales by such numbers given={max(numbers)}")

    @classmethod
    def fixed(cls, segments: int) -> Self:
        """So many segments until a client scales the stream."""
        return cls(segments_min=segments)

    @classmethod
    def by_event_rate(
        cls, events_per_second: int, *, factor: int = 2, segments_min: int = 1
    ) -> Self:
        """Split a segment that takes more events than that, merge those that take far fewer."""
        _require_scaling(events_per_second, factor)
        return cls(ScaleType.EVENTS_PER_SECOND, events_per_second, factor, segments_min)

    @classmethod
    def by_data_rate(
        cls, kilobytes_per_second: int, *, factor: int = 2, segments_min: int = 1
    ) -> Self:
        """Split a segment that takes more kilobytes than that, merge those that take far fewer."""
        _require_scaling(kilobytes_per_second, factor)
        return cls(ScaleType.KILOBYTES_PER_SECOND, kilobytes_per_second, factor, segments_min)


def _require_scaling(rate: int, factor: int) -> None:
    if rate < 1 or factor < 2:
        raise InvalidRequestError(
            "a stream that scales has a rate of at least 1 and a factor of at least 2 "
            f"rate={rate} factor={factor}"
        )


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a stream keeps: everything, a stretch of time, or an amount."""

    type: RetentionType = RetentionType.NONE
    limit: int = 0
    """Milliseconds or bytes."""

    @classmethod
    def forever(cls) -> Self:
        """Nothing is dropped unless a client truncates the stream."""
        return cls()

    @classmethod
    def by_time(cls, seconds: float) -> Self:
        """Events older than that may be dropped."""
        return cls(RetentionType.TIME, _limit(seconds * 1000))

    @classmethod
    def by_size(cls, size_bytes: int) -> Self:
        """What exceeds that size may be dropped, the oldest first."""
        return cls(RetentionType.SIZE, _limit(size_bytes))


def _limit(amount: float) -> int:
    if not 0 <= amount < _RETENTION_LIMIT_END:
        raise InvalidRequestError(
            "what a stream keeps is a time or a size from nothing up to what 63 bits hold"
        )
    return int(amount)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Everything that a user decides about a stream."""

    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    tags: tuple[str, ...] = ()
