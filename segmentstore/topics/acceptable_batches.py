"""Which batches a topic takes: what is judged of a batch alone, before it is compared with what its producer sent.

Invariants: a batch that is taken is whole, its checksum is right, its records can be read, and none is from the future
or the past beyond what the topic allows. Of a topic that is compacted by key every record has one: that is looked at
on the event loop, in bounded time.
"""

from typing import Final

from segmentstore.codec.record_batch import (
    BatchBytes,
    BatchError,
    BatchHeader,
    BatchProblem,
    RecordsTooLongError,
    TimestampType,
    check_batch,
    placed_copy,
)
from segmentstore.codec.record_columns import all_have_keys, require_readable
from segmentstore.topics.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordBatchTooLargeError,
)
from segmentstore.topics.topic_config import TopicConfig

_NO_TIME: Final = -1
"""What records have that were sent without one. It is not judged, as by Kafka."""

DECOMPRESSED_BYTES_MAX: Final = 20 << 20
"""Of the records of one batch whose keys are looked at. By gzip, the slowest codec, they take 0.08 s."""


def acceptable_header(batch: BatchBytes, config: TopicConfig, *, now_ms: int) -> BatchHeader:
    """Of the batch. Raises RecordBatchTooLargeError, InvalidRecordError, InvalidTimestampError."""
    if len(batch) > config.message_bytes_max:
        raise RecordBatchTooLargeError(size=len(batch), size_max=config.message_bytes_max)
    try:
        header = check_batch(batch)
        _require_kind(header)
        if header.base_offset:
            # It means nothing yet, and the native loops take no offset that a partition cannot have.
            batch = placed_copy(batch, 0)
        if config.compacts:
            _require_keys(batch)
        else:
            require_readable(batch)
    except BatchError as error:
        raise InvalidRecordError(error.problem, str(error)) from error
    _require_time(header, config, now_ms)
    return header


def _require_kind(header: BatchHeader) -> None:
    if header.is_control or header.is_transactional:
        raise InvalidRecordError(
            BatchProblem.INVALID, "a batch of a transaction; topics have no transactions"
        )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidRecordError(BatchProblem.INVALID, "only the store sets the time of an append")


def _require_keys(batch: BatchBytes) -> None:
    try:
        are_keyed = all_have_keys(batch, bytes_max=DECOMPRESSED_BYTES_MAX)
    except RecordsTooLongError as error:
        # Producers send such a batch again in pieces; what is invalid they give up.
        raise RecordBatchTooLargeError(
            size=DECOMPRESSED_BYTES_MAX + 1, size_max=DECOMPRESSED_BYTES_MAX
        ) from error
    if not are_keyed:
        raise InvalidRecordError(
            BatchProblem.INVALID, "a record of a topic that is compacted by key has none"
        )


def _require_time(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """The times of single records are the producer's affair below the highest."""
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME or header.max_timestamp == _NO_TIME:
        return
    if header.max_timestamp - now_ms > config.timestamp_after_ms_max:
        raise InvalidTimestampError(
            f"a record is from the future timestamp={header.max_timestamp} now={now_ms}"
            f" after_max={config.timestamp_after_ms_max}"
        )
    if now_ms - header.max_timestamp > config.timestamp_before_ms_max:
        raise InvalidTimestampError(
            f"a record is too old timestamp={header.max_timestamp} now={now_ms}"
            f" before_max={config.timestamp_before_ms_max}"
        )
