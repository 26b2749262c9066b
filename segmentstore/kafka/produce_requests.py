"""Produce: batches are handed to their partitions in the order of the requests, and answered when they are durable.

Invariants:

- submit() hands over every batch of a request before it returns; the next request of the connection comes behind it.
- A batch is answered once, and with success only when its records are durable.
- No task for a batch: the partition's futures call the request back.
- Partitions that are being recovered hold up a request together as long as one of them may; then the others are next.
- What an idempotent producer sent behind a batch that it is to send again waits for that (`refused_batches.py`).
"""

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import Buffer
from segmentstore.codec.kafka_protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
)
from segmentstore.codec.record_batch import SentBatch, sent_batch
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.refusals import code_of, text_of
from segmentstore.kafka.refused_batches import RefusedBatches
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.waiting import SharedTime
from segmentstore.topics.catalogue import TopicKey
from segmentstore.topics.errors import (
    NotLeaderError,
    PartitionUnavailableError,
    RecordBatchTooLargeError,
    TopicError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_log import Appended
from segmentstore.topics.topic_records import partition_segment_name
from segmentstore.topics.topics import Topics

NO_ACKS = 0
_ACKS = (-1, 0, 1)
_REASONS_TOLD_MAX = 100
"""Of one request."""


class Submission:
    """One request. `has_refusal` and `response` are true when it is done."""

    def __init__(self, request: ProduceRequest) -> None:
        # Not the topics themselves: nothing of the request's bytes is kept.
        self._topics = [
            (topic.name, topic.topic_id, [(each.index, _Outcome()) for each in topic.partitions])
            for topic in request.topics
        ]
        self._open = sum(len(partitions) for *_, partitions in self._topics)
        self.throttle_ms = 0
        """What the client is told to wait, and the server waits before it takes more from it."""
        self._on_done: Callable[[], None] | None = None
        self._come_again: list[_Handed] = []
        self._refusals = 0

    @property
    def is_done(self) -> bool:
        return self._open == 0

    @property
    def has_refusal(self) -> bool:
        return any(outcome.error_code for *_, each in self._topics for _, outcome in each)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Called once: now, or when the last batch is settled."""
        if self.is_done:
            callback()
            return
        self._on_done = callback

    def response(self) -> ProduceResponse:
        return ProduceResponse(
            throttle_time_ms=self.throttle_ms,
            topics=tuple(
                ProducedTopic(
                    name=name,
                    topic_id=topic_id,
                    partitions=tuple(
                        ProducedPartition(
                            index=index,
                            error_code=outcome.error_code,
                            base_offset=outcome.base_offset,
                            log_append_time_ms=outcome.append_time_ms,
                            log_start_offset=outcome.log_start_offset,
                            error_message=outcome.error_message,
                        )
                        for index, outcome in partitions
                    ),
                )
                for name, topic_id, partitions in self._topics
            ),
        )

    def refused(self, outcome: "_Outcome", error: TopicError) -> None:
        """The first of them with their reasons, each of which may be longer than what was refused."""
        outcome.error_code = code_of(error)
        self._refusals += 1
        if self._refusals <= _REASONS_TOLD_MAX:
            outcome.error_message = text_of(error)

    def outcome(self, topic: int, partition_: int) -> "_Outcome":
        return self._topics[topic][2][partition_][1]

    def comes_again(self, handed: "_Handed") -> None:
        """A batch was refused, so that its producer sends it again when the request is answered."""
        handed.note_refusal()
        self._come_again.append(handed)

    def settled(self) -> None:
        """One batch more."""
        self._open -= 1
        assert self._open >= 0, f"a batch is answered twice open={self._open}"
        if self._open > 0:
            return
        for handed in self._come_again:
            handed.note_answer()
        if self._on_done is not None:
            self._on_done()


@dataclass(slots=True)
class _Outcome:
    """What became of one batch."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1


class Producing:
    """Hands batches over."""

    def __init__(
        self,
        *,
        topics: Topics,
        settings: KafkaSettings,
        counters: KafkaCounters,
        quota: ByteQuota,
    ) -> None:
        self._topics = topics
        self._quota = quota
        self._settings = settings
        self._counters = counters

    async def submit(
        self,
        request: ProduceRequest,
        client_id: str,
        fail: Callable[[BaseException], None],
        refused: RefusedBatches,
    ) -> Submission:
        """Everything that the request brings; `fail` is told of what breaks behind it. `refused`: of the connection."""
        submission = Submission(request)
        refusal = self._refusal_of(request)
        byte_count = 0
        time_of_all = SharedTime(self._settings.partition_seconds)
        for at, topic in enumerate(request.topics):
            for partition_at, wanted in enumerate(topic.partitions):
                outcome = submission.outcome(at, partition_at)
                if refusal is not ErrorCode.NONE or wanted.records is None:
                    # No bytes for a partition are nothing to store, and nothing to refuse.
                    outcome.error_code = refusal
                    submission.settled()
                    continue
                byte_count += len(wanted.records)
                # Now: the memory of the records is used again before they are settled.
                sent = sent_batch(wanted.records)
                handed = _Handed(topic.key, wanted.index, len(wanted.records), sent, refused)
                future = await self._produce(handed, wanted.records, time_of_all)
                settle = guarded(partial(self._settle, submission, outcome, handed), fail)
                if future.done():
                    # What comes behind it in this turn of the loop has to know.
                    settle(future)
                else:
                    future.add_done_callback(settle)
        submission.throttle_ms = self._quota.take(
            client_id, byte_count, asyncio.get_running_loop().time()
        )
        return submission

    @staticmethod
    def _refusal_of(request: ProduceRequest) -> ErrorCode:
        if request.transactional_id is not None:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.acks not in _ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS
        return ErrorCode.NONE

    async def _produce(
        self, handed: "_Handed", records: Buffer, time_of_all: SharedTime
    ) -> "Future[Appended]":
        found = await self._partition(handed, time_of_all)
        if isinstance(found, TopicError):
            return _failed(found)
        # Behind the wait for the partition, in which one before it may have been refused.
        if handed.waits(found):
            handed.sent = None
            return _failed(
                PartitionUnavailableError(
                    "a batch that was sent before it is to come again first"
                    f" topic={handed.topic!r} partition={handed.index}"
                )
            )
        return found.produce(records)

    async def _partition(
        self, handed: "_Handed", time_of_all: SharedTime
    ) -> Partition | TopicError:
        length_max = self._settings.batch_bytes_max
        if handed.byte_count > length_max:
            return RecordBatchTooLargeError(size=handed.byte_count, size_max=length_max)
        topic, index = handed.topic, handed.index
        found = self._topics.own_partition_if_open(topic, index)
        if found is not None:
            return found
        try:
            async with time_of_all.limit():
                return await self._topics.own_partition(topic, index)
        except TimeoutError:
            return PartitionUnavailableError(
                f"partition is being recovered topic={topic!r} partition={index}"
            )
        except TopicError as error:
            return error

    def _settle(
        self,
        submission: Submission,
        outcome: _Outcome,
        handed: "_Handed",
        future: "Future[Appended]",
    ) -> None:
        failure = future.exception() if not future.cancelled() else _broken_off()
        if failure is None:
            appended = future.result()
            outcome.base_offset = appended.base_offset
            outcome.append_time_ms = appended.append_time_ms
            outcome.log_start_offset = appended.log_start_offset
            self._counters.produced_batches += 1
            self._counters.produced_bytes += handed.byte_count
        elif isinstance(failure, TopicError):
            submission.refused(outcome, failure)
            self._counters.produce_refusals += 1
            # Names of which no topic is known would be kept without a bound on their length.
            is_passing = isinstance(failure, NotLeaderError | PartitionUnavailableError)
            known = self._topics.describe(handed.topic) if is_passing else None
            if known is not None:
                handed.partition = partition_segment_name(known.name, known.topic_id, handed.index)
                submission.comes_again(handed)
        else:
            raise failure
        submission.settled()


@dataclass(slots=True)
class _Handed:
    """One batch, without its bytes."""

    topic: TopicKey
    index: int
    byte_count: int
    sent: SentBatch | None
    """None: nothing that comes behind it minds what becomes of it."""
    refused: RefusedBatches
    partition: str = ""
    """The name of its segment, once it was refused."""

    def waits(self, found: Partition) -> bool:
        """For one that was sent before it, and is to come again."""
        if self.sent is None:
            return False
        now = asyncio.get_running_loop().time()
        is_behind = self.refused.holds_up(found.segment_name, self.sent, now=now)
        return is_behind and not found.expects(self.sent)

    def note_refusal(self) -> None:
        """It is to come again."""
        if self.sent is not None:
            now = asyncio.get_running_loop().time()
            self.refused.note(self.partition, self.sent, now=now)

    def note_answer(self) -> None:
        """Its client is told now."""
        if self.sent is not None:
            now = asyncio.get_running_loop().time()
            self.refused.told(self.partition, now=now)


def _broken_off() -> TopicError:
    return PartitionUnavailableError("the wait for it has ended", stored=None)


def _failed(error: TopicError) -> "Future[Appended]":
    future: Future[Appended] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
