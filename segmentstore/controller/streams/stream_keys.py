"""The typed keys of a stream's records in the table of its scope (codec/stream_records/record_places.py), and indexes.

| index | names |
|---|---|
| `streams` | every stream that exists, internal ones too |
| `pending` | streams with an unfinished operation |
| `tags/<tag>` | streams with that tag |
"""

from segmentstore.codec.stream_records import record_places
from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.sealed_segment_record import SealedSegmentRecord
from segmentstore.codec.stream_records.segment_number_record import SegmentNumberRecord
from segmentstore.codec.stream_records.stream_configuration_record import (
    StreamConfigurationRecord,
)
from segmentstore.codec.stream_records.stream_state_record import StreamStateRecord
from segmentstore.codec.stream_records.truncation_record import TruncationRecord
from segmentstore.controller.metadata.record_key import RecordKey

STREAMS_INDEX = "streams"

DELETED_NUMBERS_KEY = RecordKey(record_places.DELETED_NUMBERS, SegmentNumberRecord.decode)


def state_key(stream: str) -> RecordKey[StreamStateRecord]:
    """Life and counters."""
    return RecordKey(record_places.state(stream), StreamStateRecord.decode)


def configuration_key(stream: str) -> RecordKey[StreamConfigurationRecord]:
    """What the user asked for."""
    return RecordKey(record_places.configuration(stream), StreamConfigurationRecord.decode)


def epoch_key(stream: str, epoch: int) -> RecordKey[EpochRecord]:
    """One epoch."""
    return RecordKey(record_places.epoch(stream, epoch), EpochRecord.decode)


def sealed_key(stream: str, segment_id: int) -> RecordKey[SealedSegmentRecord]:
    """What replaced a segment."""
    return RecordKey(record_places.sealed(stream, segment_id), SealedSegmentRecord.decode)


def truncation_key(stream: str) -> RecordKey[TruncationRecord]:
    """The head."""
    return RecordKey(record_places.truncation(stream), TruncationRecord.decode)


def deleted_number_key(stream: str) -> RecordKey[SegmentNumberRecord]:
    """The next free number of a deleted stream."""
    return RecordKey(record_places.deleted_number(stream), SegmentNumberRecord.decode)


def tag_index(tag: str) -> str:
    """The index of streams with a tag."""
    return f"tags/{tag}"
