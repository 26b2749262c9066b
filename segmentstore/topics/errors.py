"""Every error of topics. A caller of this package meets these and no other.

The class says why; a server of a protocol has one code for each.
"""

from uuid import UUID

from segmentstore.codec.record_batch import BatchProblem


class TopicError(Exception):
    """Base class of the errors of topics. Messages are lower case, with the facts as key=value at the end."""


class TopicNotFoundError(TopicError):
    """No topic of that name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"topic does not exist name={name!r}")
        self.name = name


class UnknownTopicIdError(TopicError):
    """No topic has that id: the one that had it was deleted, and has perhaps been made again."""

    def __init__(self, topic_id: UUID) -> None:
        super().__init__(f"no topic has this id topic_id={topic_id}")
        self.topic_id = topic_id


class TopicExistsError(TopicError):
    """A topic of that name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"topic exists already name={name!r}")
        self.name = name


class InvalidTopicError(TopicError):
    """No topic may have that name."""


class InvalidConfigError(TopicError):
    """A topic has no such setting, or not with that value."""


class InvalidPartitionsError(TopicError):
    """A topic cannot have so many partitions."""


class UnknownPartitionError(TopicError):
    """The topic has no such partition, or was deleted while the partition was in use."""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(f"partition does not exist topic={name!r} partition={index}")
        self.name = name
        self.index = index


class TopicsUnavailableError(TopicError):
    """The catalogue of topics cannot be read or written now. A change may have been made: ask again."""


class CatalogueConflictError(TopicsUnavailableError):
    """Another process changed a topic's record after it was read here. Nothing was done."""


class NotLeaderError(TopicError):
    """The partition's container is not in this process: another one leads it, or none at the moment."""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(f"partition is not led here topic={name!r} partition={index}")


class OffsetOutOfRangeError(TopicError):
    """No record has that offset: it lies below the first one, or behind the next one."""

    def __init__(self, offset: int, *, log_start: int, next_offset: int) -> None:
        super().__init__(
            f"offset is out of range offset={offset} log_start={log_start} next={next_offset}"
        )
        self.offset = offset
        self.log_start = log_start
        self.next_offset = next_offset


class OutOfOrderSequenceError(TopicError):
    """A batch does not follow the last one of its producer."""

    def __init__(self, *, producer_id: int | None, expected: int | None, given: int | None) -> None:
        """None: another process judged it."""
        super().__init__(
            f"sequence is out of order producer_id={producer_id} expected={expected} given={given}"
        )
        self.expected = expected
        self.given = given


class ProducerFencedError(TopicError):
    """A newer epoch of the same producer has appended meanwhile."""

    def __init__(self, *, producer_id: int | None, current: int | None, given: int | None) -> None:
        """None: another process judged it."""
        super().__init__(
            f"producer has a newer epoch producer_id={producer_id} current={current} given={given}"
        )


class RecordBatchTooLargeError(TopicError):
    """A batch has more bytes than its topic takes (`max.message.bytes`)."""

    def __init__(self, *, size: int, size_max: int | None) -> None:
        """`size_max` is None if another process judged it."""
        super().__init__(f"record batch is too large size={size} size_max={size_max}")
        self.size = size
        self.size_max = size_max


class InvalidTimestampError(TopicError):
    """A record's time is further from now than its topic takes."""


class InvalidRecordError(TopicError):
    """What was produced is no batch that may be stored; `problem` says what kind of wrong."""

    def __init__(self, problem: BatchProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class PartitionUnavailableError(TopicError):
    """The partition cannot do it now: its container moves or starts, a log or a disk is full, storage is in trouble."""

    def __init__(self, message: str, *, stored: bool | None = False) -> None:
        super().__init__(message)
        self.stored = stored
        """Of a change: False if it was surely not made, None if it may have been."""
