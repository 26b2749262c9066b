"""What the user asked of a stream.

    version 1 | unsigned scaling type | unsigned target rate | unsigned scale factor | unsigned segment count min
              | unsigned retention type | signed retention limit | signed retention maximum
              | list of text tags | signed timestamp aggregation timeout ms | signed rollover bytes

Numbers stand as the client sent them; what they mean:

| scaling type | target rate |
|---|---|
| 0 fixed count | unused |
| 1 kilobytes per second | of one segment |
| 2 events per second | of one segment |

| retention type | limit | maximum |
|---|---|---|
| 0 none | unused | unused |
| 1 time | milliseconds to keep | milliseconds at most, for streams whose readers consume |
| 2 size | bytes to keep | bytes at most, for streams whose readers consume |

Invariant: tags are in order and not repeated.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter
from segmentstore.contracts.errors import CorruptedDataError

_VERSION: Final = 1


class ScalingType(IntEnum):
    """Persistent: never renumber."""

    FIXED = 0
    KILOBYTES_PER_SECOND = 1
    EVENTS_PER_SECOND = 2


class RetentionType(IntEnum):
    """Persistent: never renumber."""

    NONE = 0
    TIME = 1
    SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """How many segments a stream should have."""

    type: ScalingType = ScalingType.FIXED
    target_rate: int = 0
    scale_factor: int = 0
    """Into how many segments a hot one is split."""
    segment_count_min: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How much of a stream is kept."""

    type: RetentionType = RetentionType.NONE
    limit: int = 0
    maximum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfigurationRecord:
    """One stream's configuration."""

    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = 0
    """0: the store's own choice."""

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
        writer.unsigned(self.scaling.type)
        writer.unsigned(self.scaling.target_rate)
        writer.unsigned(self.scaling.scale_factor)
        writer.unsigned(self.scaling.segment_count_min)
        writer.unsigned(self.retention.type)
        writer.signed(self.retention.limit)
        writer.signed(self.retention.maximum)
        writer.list_of(self.tags, writer.text)
        writer.signed(self.timestamp_aggregation_timeout_ms)
        writer.signed(self.rollover_bytes)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "StreamConfigurationRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="stream configuration", version_max=_VERSION)
        try:
            scaling = ScalingPolicy(
                type=ScalingType(reader.unsigned()),
                target_rate=reader.unsigned(),
                scale_factor=reader.unsigned(),
                segment_count_min=reader.unsigned(),
            )
            retention = RetentionPolicy(
                type=RetentionType(reader.unsigned()),
                limit=reader.signed(),
                maximum=reader.signed(),
            )
        except ValueError as error:
            raise CorruptedDataError("stream configuration has an unknown policy") from error
        record = cls(
            scaling=scaling,
            retention=retention,
            tags=reader.list_of(reader.text),
            timestamp_aggregation_timeout_ms=reader.signed(),
            rollover_bytes=reader.signed(),
        )
        reader.end()
        return record
