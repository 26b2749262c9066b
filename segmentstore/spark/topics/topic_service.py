"""The service as readers and writers of topics ask it: one connection, made again where it broke.

Invariant: only what may be asked twice is asked here: reads, and batches whose producer's sequence makes a repetition
harmless. What is not answered in time, however often the connection was made, ends with the last error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Self, TypeVar
from uuid import UUID

from segmentstore.client.errors import ConnectionLostError, OutcomeUnknownError
from segmentstore.client.topics import (
    FetchedBatches,
    PartitionOffsets,
    TopicRequestError,
    Topics,
    connected_topics,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.contracts.errors import ErrorKind
from segmentstore.runtime.backoff import Backoff
from segmentstore.spark.topics.topic_catalogue import TopicMissingError

T = TypeVar("T")

ASK_SECONDS: Final = 60.0
"""A store that was killed is back by then."""
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic as the service shows it."""

    topic_id: UUID
    offsets: Sequence[PartitionOffsets]
    """Of every partition, in order."""


class TopicService:
    """Hold it in `async with`; connects when it is asked."""

    def __init__(self, address: str, *, ask_seconds: float = ASK_SECONDS) -> None:
        self._address = address
        self._ask_seconds = ask_seconds
        self._open = AsyncExitStack()
        self._topics: Topics | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()

    async def ask(self, work: Callable[[Topics], Awaitable[T]]) -> T:
        """The answer. Raises TopicRequestError for what a repetition would not change, ClientError."""
        backoff = Backoff(seconds_first=_PAUSE_SECONDS, seconds_max=_PAUSE_SECONDS_MAX)
        deadline = asyncio.get_running_loop().time() + self._ask_seconds
        while True:
            try:
                return await work(await self._connected())
            except (ConnectionLostError, OutcomeUnknownError, TopicRequestError) as error:
                if isinstance(error, TopicRequestError):
                    if error.kind is not ErrorKind.UNAVAILABLE:
                        raise
                else:
                    await self._disconnect()
                pause = backoff.next_seconds()
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)

    async def described(self, topic: str) -> "ServedTopic":
        """A topic as it is now. Raises TopicMissingError, and as ask()."""
        topic_id = await self.topic_id(topic)
        offsets = await self._of_topic(topic, lambda topics: topics.offsets(topic))
        return ServedTopic(topic_id, offsets)

    async def topic_id(self, topic: str) -> UUID:
        """A topic that is deleted and made again has another one. Raises as described()."""
        return UUID(hex=await self._of_topic(topic, lambda topics: topics.topic_id(topic)))

    async def partitions_and_config(self, topic: str) -> tuple[int, Mapping[str, str]]:
        """How many partitions there are, and what is set. Raises as described()."""
        count = await self._of_topic(topic, lambda topics: topics.partition_count(topic))
        return count, await self._of_topic(topic, lambda topics: topics.config(topic))

    async def offsets_at_time(self, topic: str, time_ms: int) -> Mapping[int, int]:
        """By partition the first offset whose record is not older; partitions without one are left out."""
        return await self.ask(lambda topics: topics.offsets_at_time(topic, time_ms))

    async def fetch(
        self, topic: str, partition: int, *, offset: int, bytes_max: int
    ) -> FetchedBatches | None:
        """Whole batches from the one that contains the offset on; None if there is no such offset (any more).

        Raises TopicMissingError, and as ask().
        """
        try:
            return await self.ask(
                lambda topics: topics.fetch_batches(
                    topic, partition, offset=offset, bytes_max=bytes_max
                )
            )
        except TopicRequestError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicMissingError(f"topic is gone topic={topic!r}") from error
            raise

    async def _of_topic(self, topic: str, work: Callable[[Topics], Awaitable[T]]) -> T:
        try:
            return await self.ask(work)
        except TopicRequestError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise TopicMissingError(f"topic does not exist topic={topic!r}") from error

    async def _connected(self) -> Topics:
        if self._topics is None:
            self._topics = await self._open.enter_async_context(connected_topics(self._address))
        return self._topics

    async def _disconnect(self) -> None:
        self._topics = None
        opened, self._open = self._open, AsyncExitStack()
        await opened.aclose()
