"""The records of one stream: its state, what was asked of it, its segments and epochs, its head, its retention cuts.

Every record has a version of its own, the first field. Under which key each one stands says record_keys.py.

## State: StreamStateRecord

The state of a stream, and its counters. Every transition rewrites this record, under its version.

    version 1 | unsigned state | unsigned current epoch | unsigned last epoch | unsigned next segment number
              | signed created ms

- current epoch <= last epoch; both only grow. Every epoch up to the last one has a record.
- The current epoch's segments are those that writers are sent to. The last epoch is ahead of it only while a
  transition (scaling, committing behind a scale) is under way.
- The next segment number lies above every number in use; a record is never taken back, also when a stream is deleted.

## Configuration: StreamConfigurationRecord

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

- Tags are in order and not repeated.

## Epoch: EpochRecord, with a StreamSegment for each segment that took events side by side

    version 1 | unsigned epoch | unsigned reference epoch | signed created ms | list of segments
    segment     unsigned segment id | fraction low | fraction high | signed created ms

- The segments stand in the order of the key space and cover it without gap or overlap.
- 0 <= low < high <= 1; the range holds its lower bound and not its upper one.
- A segment's id never changes and is never used again: creation epoch in the upper, number in the lower 32 bits.
- No segment was created in a later epoch; epochs are numbered from 0 without gaps, and a record never changes.
- The reference epoch is the epoch whose shape this one repeats (a transaction that is committed behind a scale); its
  own number otherwise.

## Sealed segment: SealedSegmentRecord

What came after a segment: the epoch that replaced it, and how long it became.

    version 1 | unsigned replacing epoch | flag length is known | unsigned length

- It is written together with the epoch that replaces the segment: from that moment the segment has successors.
- The length is added once the segment is sealed and never changes afterwards.

## Truncation: TruncationRecord

    version 1 | offsets head | flag is under way | offsets previous head

- The head covers the key space and never goes back.
- While a truncation is under way the previous head says where to begin deleting; an empty one means the first epoch.

## Retention cuts: RetentionCutsRecord

The cuts of a stream that retention chooses from.

    version 1; list of cuts, oldest first: signed time in ms, unsigned bytes before the cut, offsets

- Times never go down from one cut to the next, nor do bytes: a wall clock that went back repeats the last time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Final

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter
from segmentstore.codec.stream_names import creation_epoch_of, number_of

_STATE_VERSION: Final = 1
_CONFIGURATION_VERSION: Final = 1
_EPOCH_VERSION: Final = 1
_SEALED_SEGMENT_VERSION: Final = 1
_TRUNCATION_VERSION: Final = 1
_RETENTION_CUTS_VERSION: Final = 1


class StreamState(IntEnum):
    """Persistent: never renumber."""

    CREATING = 1
    ACTIVE = 2
    SCALING = 3
    TRUNCATING = 4
    SEALING = 5
    SEALED = 6
    DELETING = 7
    COMMITTING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStateRecord:
    """One stream's state."""

    state: StreamState
    current_epoch: int
    last_epoch: int
    next_segment_number: int
    created_ms: int

    @property
    def is_sealing_or_sealed(self) -> bool:
        """Whether no event may be written to it any more."""
        return self.state in (StreamState.SEALING, StreamState.SEALED)

    def encode(self) -> bytes:
        writer = FieldWriter(_STATE_VERSION)
        writer.unsigned(self.state)
        writer.unsigned(self.current_epoch)
        writer.unsigned(self.last_epoch)
        writer.unsigned(self.next_segment_number)
        writer.signed(self.created_ms)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "StreamStateRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="stream state", version_max=_STATE_VERSION)
        record = cls(
            state=reader.choice(StreamState),
            current_epoch=reader.unsigned(),
            last_epoch=reader.unsigned(),
            next_segment_number=reader.unsigned(),
            created_ms=reader.signed(),
        )
        reader.end()
        return record

    def check(self) -> None:
        """The counters fit each other."""
        assert self.current_epoch <= self.last_epoch, f"current epoch is ahead {self}"
        assert self.next_segment_number >= 1, f"a stream without segments {self}"


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
        writer = FieldWriter(_CONFIGURATION_VERSION)
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
        reader = FieldReader(
            content, what="stream configuration", version_max=_CONFIGURATION_VERSION
        )
        scaling = ScalingPolicy(
            type=reader.choice(ScalingType),
            target_rate=reader.unsigned(),
            scale_factor=reader.unsigned(),
            segment_count_min=reader.unsigned(),
        )
        retention = RetentionPolicy(
            type=reader.choice(RetentionType),
            limit=reader.signed(),
            maximum=reader.signed(),
        )
        record = cls(
            scaling=scaling,
            retention=retention,
            tags=reader.list_of(reader.text),
            timestamp_aggregation_timeout_ms=reader.signed(),
            rollover_bytes=reader.signed(),
        )
        reader.end()
        return record


@dataclass(frozen=True, slots=True, order=True)
class SegmentWithRange:
    """A segment and the part of the key space that it covers, low inclusive, high exclusive."""

    segment_id: int
    low: float
    high: float

    def overlaps(self, other: "SegmentWithRange") -> bool:
        """Whether a routing key can belong to both."""
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """A segment as an epoch lists it."""

    segment_id: int
    low: float
    high: float
    created_ms: int

    @property
    def number(self) -> int:
        return number_of(self.segment_id)

    @property
    def creation_epoch(self) -> int:
        return creation_epoch_of(self.segment_id)

    @property
    def with_range(self) -> SegmentWithRange:
        return SegmentWithRange(self.segment_id, self.low, self.high)

    def overlaps(self, other: "StreamSegment") -> bool:
        """Whether some routing key falls into both."""
        return self.low < other.high and other.low < self.high

    def write(self, writer: FieldWriter) -> None:
        writer.unsigned(self.segment_id)
        writer.fraction(self.low)
        writer.fraction(self.high)
        writer.signed(self.created_ms)

    @classmethod
    def read(cls, reader: FieldReader) -> "StreamSegment":
        """Raises CorruptedDataError."""
        return cls(reader.unsigned(), reader.fraction(), reader.fraction(), reader.signed())

    def check(self) -> None:
        """The range is one."""
        assert 0.0 <= self.low < self.high <= 1.0, f"range is not in the key space {self}"


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch."""

    epoch: int
    reference_epoch: int
    created_ms: int
    segments: tuple[StreamSegment, ...]

    def segment(self, segment_id: int) -> StreamSegment | None:
        """The segment of that id; None if it is not part of this epoch. O(segments)."""
        return next((each for each in self.segments if each.segment_id == segment_id), None)

    def encode(self) -> bytes:
        writer = FieldWriter(_EPOCH_VERSION)
        writer.unsigned(self.epoch)
        writer.unsigned(self.reference_epoch)
        writer.signed(self.created_ms)
        writer.list_of(self.segments, lambda segment: segment.write(writer))
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "EpochRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="epoch record", version_max=_EPOCH_VERSION)
        epoch = reader.unsigned()
        reference_epoch = reader.unsigned()
        created_ms = reader.signed()
        segments = reader.list_of(lambda: StreamSegment.read(reader))
        reader.end()
        return cls(epoch, reference_epoch, created_ms, segments)

    def check(self) -> None:
        """The segments partition the key space and none comes from the future; O(segments)."""
        assert self.segments, f"an epoch without segments epoch={self.epoch}"
        assert self.segments[0].low == 0.0, f"a gap at the start of the key space {self}"
        assert self.segments[-1].high == 1.0, f"a gap at the end of the key space {self}"
        for left, right in pairwise(self.segments):
            assert left.high == right.low, f"a gap or an overlap left={left} right={right}"
        for segment in self.segments:
            segment.check()
            assert segment.creation_epoch <= self.epoch, f"a segment from the future {segment}"


@dataclass(frozen=True, slots=True)
class SealedSegmentRecord:
    """The end of one segment."""

    replacing_epoch: int
    length: int | None = None
    """None until the segment is sealed."""

    def encode(self) -> bytes:
        writer = FieldWriter(_SEALED_SEGMENT_VERSION)
        writer.unsigned(self.replacing_epoch)
        writer.flag(self.length is not None)
        writer.unsigned(self.length or 0)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "SealedSegmentRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(
            content, what="sealed segment record", version_max=_SEALED_SEGMENT_VERSION
        )
        replacing_epoch = reader.unsigned()
        known = reader.flag()
        length = reader.unsigned()
        reader.end()
        return cls(replacing_epoch, length if known else None)


@dataclass(frozen=True, slots=True)
class TruncationRecord:
    """Where a stream begins."""

    head: Mapping[int, int]
    """Segment id -> first readable offset."""
    previous_head: Mapping[int, int] | None = None
    """None: nothing is under way."""

    def encode(self) -> bytes:
        writer = FieldWriter(_TRUNCATION_VERSION)
        writer.offsets(self.head)
        writer.flag(self.previous_head is not None)
        writer.offsets(self.previous_head or {})
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "TruncationRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="truncation record", version_max=_TRUNCATION_VERSION)
        head = reader.offsets()
        under_way = reader.flag()
        previous_head = reader.offsets()
        reader.end()
        return cls(head, previous_head if under_way else None)


@dataclass(frozen=True, slots=True)
class RetentionCut:
    """Where the stream ended at some time."""

    time_ms: int
    bytes_before: int
    """Bytes that the stream has taken up to here since retention began to watch it."""
    offsets: Mapping[int, int]

    def encode(self) -> bytes:
        """Its part of a record."""
        fields = FieldWriter(_RETENTION_CUTS_VERSION)
        fields.signed(self.time_ms)
        fields.unsigned(self.bytes_before)
        fields.offsets(self.offsets)
        return fields.end()[1:]  # the version stands before the first cut alone


@dataclass(frozen=True, slots=True)
class StoredRetentionCuts:
    """A RetentionCutsRecord in bytes: it has up to some 100,000 numbers, which are read and written cut by cut."""

    content: bytes

    def encode(self) -> bytes:
        return self.content

    @staticmethod
    def decode(content: bytes) -> "StoredRetentionCuts":
        """Damage is found by each_cut()."""
        return StoredRetentionCuts(content)

    @staticmethod
    def of(cuts: Sequence[bytes]) -> "StoredRetentionCuts":
        """Of encoded cuts, oldest first."""
        fields = FieldWriter(_RETENTION_CUTS_VERSION)
        fields.unsigned(len(cuts))
        return StoredRetentionCuts(b"".join((fields.end(), *cuts)))

    def each_cut(self) -> Iterator[RetentionCut]:
        """Oldest first. Raises CorruptedDataError, also behind the last one."""
        fields = FieldReader(
            self.content, what="retention cuts", version_max=_RETENTION_CUTS_VERSION
        )
        yield from fields.each_of(
            lambda: RetentionCut(fields.signed(), fields.unsigned(), fields.offsets())
        )
        fields.end()


@dataclass(frozen=True, slots=True)
class RetentionCutsRecord:
    """All cuts of one stream; its name stands in the key."""

    cuts: tuple[RetentionCut, ...] = ()

    def encode(self) -> bytes:
        return StoredRetentionCuts.of([cut.encode() for cut in self.cuts]).content

    @staticmethod
    def decode(content: bytes) -> "RetentionCutsRecord":
        return RetentionCutsRecord(tuple(StoredRetentionCuts(content).each_cut()))

    def check(self) -> None:
        """Proves that the cuts are in order; O(n)."""
        for earlier, later in zip(self.cuts, self.cuts[1:], strict=False):
            assert earlier.time_ms <= later.time_ms, f"times go down {earlier} {later}"
            assert earlier.bytes_before <= later.bytes_before, f"bytes go down {earlier} {later}"
