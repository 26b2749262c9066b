"""Which error code tells of which error.

Clients differ in what they do with a code; these were chosen by what all of them do.

- A producer tries again only after 3, 5, 6, 7, 19, 20 and 56. 56 says that nothing was stored; 7 that it may have been;
  6, behind which all clients ask for metadata, that nothing was and that another broker leads the partition.
  46 would be taken for success and is never sent.
- A consumer goes on by itself after 3, 6, 9, 56, 74, 75, 78 and 100. After 1 it jumps to where its configuration says,
  so that 1 is sent only when it is true.
"""

from typing import Final

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.record_batch import BatchProblem
from segmentstore.topics.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionUnavailableError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
    UnknownPartitionError,
    UnknownTopicIdError,
)

_CODES: Final[dict[type[TopicError], ErrorCode]] = {
    NotLeaderError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    UnknownTopicIdError: ErrorCode.UNKNOWN_TOPIC_ID,
    TopicNotFoundError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    UnknownPartitionError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    TopicExistsError: ErrorCode.TOPIC_ALREADY_EXISTS,
    InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    InvalidConfigError: ErrorCode.INVALID_CONFIG,
    InvalidPartitionsError: ErrorCode.INVALID_PARTITIONS,
    OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ProducerFencedError: ErrorCode.INVALID_PRODUCER_EPOCH,
    RecordBatchTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
}

_BATCH_CODES: Final = {
    BatchProblem.CORRUPT: ErrorCode.CORRUPT_MESSAGE,
    BatchProblem.INVALID: ErrorCode.INVALID_RECORD,
    BatchProblem.OLD_FORMAT: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    BatchProblem.UNKNOWN_COMPRESSION: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}

_TEXT_CHARACTERS_MAX: Final = 500


def text_of(error: Exception) -> str:
    """What it says. Cut: it may show what the client sent, escaped, and no answer holds a text that long."""
    return str(error)[:_TEXT_CHARACTERS_MAX]


def code_of(error: TopicError) -> ErrorCode:
    """What a client is told of it, wherever it comes from."""
    if isinstance(error, InvalidRecordError):
        return _BATCH_CODES[error.problem]
    if isinstance(error, PartitionUnavailableError):
        was_not_stored = error.stored is False
        return ErrorCode.KAFKA_STORAGE_ERROR if was_not_stored else ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, TopicsUnavailableError):
        # Only asking again tells what became of a change.
        return ErrorCode.REQUEST_TIMED_OUT
    return _CODES[type(error)]


def fetch_code_of(error: TopicError) -> ErrorCode:
    """As code_of(), for consumers: they change nothing, so that nothing can be unknown."""
    if isinstance(error, PartitionUnavailableError | TopicsUnavailableError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return code_of(error)
