"""Fetch and ListOffsets.

A fetch looks at every partition that it names. If there are too few bytes and no error, it watches them and looks
again at those that moved, until there are enough or its time is up.

Invariants:

- A fetch looks once more behind the beginning of its watch: what came in between is not missed.
- Only whole batches below the high watermark are answered, at least one if there is any, and after that so many as the
  request and the settings allow.
- The answer names exactly the partitions that the request names; in a session (`fetch_sessions.py`), of all that it
  follows, those of which there is news.
- Of a fetch that has ended nothing is watched any more.
- A partition that takes too long, as one whose records are in a Tier 2 that is silent, is answered without records. Of
  those that the request names behind it, it holds up none whose records are at hand.
- Others run between the partitions of one request, of which there may be tens of thousands.
"""

import asyncio
import logging
from asyncio import Event
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    TOPIC_IDS_SINCE,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListedOffset,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from segmentstore.kafka.answer_room import AnswerRoom
from segmentstore.kafka.fetch_sessions import FetchSession
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.refusals import fetch_code_of
from segmentstore.kafka.settings import ITEMS_PER_TURN, KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.runtime.waiting import SharedTime, give_way, wait_for_event
from segmentstore.topics.catalogue import TopicKey
from segmentstore.topics.errors import OffsetOutOfRangeError, TopicError
from segmentstore.topics.partition import Partition
from segmentstore.topics.topics import Topics

_LOG = logging.getLogger(__name__)

_UNKNOWN = -1
_NO_RECORD = (_UNKNOWN, _UNKNOWN)
"""Offset and time."""
_AT_HAND_SECONDS = 0.05
"""For each of the partitions behind one that took too long: what is in memory takes less."""
_REST_SECONDS = 1.0
"""For all of them."""
_ROOM_LOOK_SECONDS = 1.0
"""How often a fetch that waits for more, and keeps records, looks whether others wait for its room."""
_VERSION_WITH_MAX_TIMESTAMP = 7
"""From this version of ListOffsets on the record with the highest time is asked for by a number of its own."""


@dataclass(slots=True)
class _Look:
    """One partition of a fetch, as it was seen last."""

    topic: TopicKey
    wanted: FetchPartition
    is_stale: bool = True
    """Something may have come since."""
    error_code: ErrorCode = ErrorCode.NONE
    high_watermark: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN
    records: bytes = b""


@dataclass(slots=True)
class _Watch:
    """The partitions that a waiting fetch is called back by."""

    moved: Event = field(default_factory=Event)
    ends: list[Callable[[], None]] = field(default_factory=list)
    watched: dict[tuple[TopicKey, int], Partition] = field(default_factory=dict)

    def add(self, look: _Look, found: Partition) -> None:
        """Unless it is watched already: a partition that was recovered may be another object."""
        place = (look.topic, look.wanted.partition)
        if self.watched.get(place) is found:
            return
        self.watched[place] = found

        def tell() -> None:
            look.is_stale = True
            self.moved.set()

        self.ends.append(found.watch(tell))

    def end(self) -> None:
        for end in self.ends:
            end()
        self.ends.clear()


class Fetching:
    """Answers consumers."""

    def __init__(
        self, *, topics: Topics, settings: KafkaSettings, counters: KafkaCounters, quota: ByteQuota
    ) -> None:
        self._topics = topics
        self._quota = quota
        self._settings = settings
        self._counters = counters

    async def fetch(
        self,
        request: FetchRequest,
        session: FetchSession,
        client_id: str,
        room: AnswerRoom,
        *,
        version: int,
    ) -> FetchResponse:
        """Returns when there is enough, or the request's time is up. `session`: that of the connection; `room`: for the
        records of the answer, given back by the caller."""
        self._counters.fetches += 1
        refusal = session.take(request, by_id=version >= TOPIC_IDS_SINCE)
        if refusal:
            return FetchResponse(error_code=refusal, topics=())
        looks = [_Look(topic, wanted) for topic, wanted in session.wanted(request)]
        watch = _Watch()
        try:
            await self._until_enough(request, looks, watch, room)
        finally:
            watch.end()
        byte_count = sum(len(look.records) for look in looks)
        self._counters.fetched_bytes += byte_count
        response = await _response(request, looks, session)
        response.throttle_time_ms = self._quota.take(
            client_id, byte_count, asyncio.get_running_loop().time()
        )
        return response

    async def _until_enough(
        self, request: FetchRequest, looks: list[_Look], watch: _Watch, room: AnswerRoom
    ) -> None:
        loop = asyncio.get_running_loop()
        wait_ms = min(max(request.max_wait_ms, 0), self._settings.fetch_wait_ms_max)
        bytes_max = min(max(request.max_bytes, 0), self._settings.fetch_bytes_max)
        least = min(request.min_bytes, bytes_max)
        until = loop.time() + wait_ms / 1000
        is_watching = False
        while True:
            watch.moved.clear()
            if not await self._look(looks, bytes_max, watch if is_watching else None, room):
                _LOG.info("a fetch is answered without what takes too long to read")
                return
            has_error = any(look.error_code for look in looks)
            if has_error or not looks or sum(len(look.records) for look in looks) >= least:
                return
            if loop.time() >= until:
                return
            if not is_watching:
                is_watching = True
                for look in looks:
                    look.is_stale = True
                continue
            look_at = until
            if room.kept_bytes:
                # Others may need what it keeps, and it has something to answer.
                look_at = min(until, loop.time() + _ROOM_LOOK_SECONDS)
            await wait_for_event(watch.moved, until=look_at)
            if room.kept_bytes and room.is_wanted:
                return
            if len(looks) > 1 and any(look.is_stale for look in looks):
                await asyncio.sleep(min(self._settings.wake_seconds, max(0, until - loop.time())))

    async def _look(
        self, looks: list[_Look], bytes_max: int, watch: _Watch | None, room: AnswerRoom
    ) -> bool:
        """Whether nothing took too long. What does is left out, and hides nothing of those behind it."""
        now = asyncio.get_running_loop().time
        until = now() + self._settings.read_seconds
        end = until + _REST_SECONDS
        is_whole = True
        taken = looked_at = 0
        rest = iter(looks)
        while True:
            try:
                async with asyncio.timeout_at(until) as limit:
                    for look in rest:
                        if not look.is_stale:
                            taken += len(look.records)
                            continue
                        if not is_whole:
                            limit.reschedule(min(now() + _AT_HAND_SECONDS, end))
                        await self._look_at(
                            look, bytes_max - taken, is_first=taken == 0, watch=watch, room=room
                        )
                        taken += len(look.records)
                        looked_at += 1
                        # Not give_way(): a call for each of them is a tenth of a look.
                        if looked_at % ITEMS_PER_TURN == 0:
                            await asyncio.sleep(0)
                return is_whole
            except TimeoutError:
                is_whole = False
                until = end

    async def _look_at(
        self,
        look: _Look,
        bytes_max: int,
        *,
        is_first: bool,
        watch: _Watch | None,
        room: AnswerRoom,
    ) -> None:
        look.is_stale = False
        wanted = look.wanted
        try:
            found = await self._topics.own_partition(look.topic, wanted.partition)
            if watch is not None:
                # Before the look, so that nothing comes between the two unseen.
                watch.add(look, found)
            room.drop(len(look.records))
            look.records = b""
            if wanted.fetch_offset != found.high_watermark and (is_first or bytes_max > 0):
                look.records = await self._read(
                    found, wanted, bytes_max, is_first=is_first, room=room
                )
            elif not found.is_sure():
                await found.confirm_ends()
            look.high_watermark = found.high_watermark
            look.log_start_offset = found.log_start_offset
        except OffsetOutOfRangeError as error:
            look.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            look.log_start_offset = error.log_start
        except TopicError as error:
            look.error_code = fetch_code_of(error)

    @staticmethod
    async def _read(
        found: Partition,
        wanted: FetchPartition,
        bytes_max: int,
        *,
        is_first: bool,
        room: AnswerRoom,
    ) -> bytes:
        """What is too much beside that which the answer has already comes with another request."""
        most = max(0, min(wanted.partition_max_bytes, bytes_max))
        while True:
            records = await found.fetch(wanted.fetch_offset, most)
            if len(records) > bytes_max and not is_first:
                return b""
            if room.keep(len(records)):
                return records
            if room.kept_bytes:
                return b""
            # What comes meanwhile is not read with it: for that much there may be no room again, and so on for ever.
            most = len(records)
            del records
            await room.wait(most)

    async def list_offsets(
        self, request: ListOffsetsRequest, *, version: int
    ) -> ListOffsetsResponse:
        """Each by itself: those that cannot be told, or not in time, do not hide the others.

        A partition whose records are looked into twice is refused, as Kafka refuses all that are named twice. Both ends
        of one may be asked for at once: other brokers of this store do.
        """
        looked_into = Counter(
            (topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
            if each.timestamp not in (EARLIEST, LATEST)
        )
        topics = []
        told = 0
        time_of_all = SharedTime(self._settings.read_seconds)
        for topic in request.topics:
            partitions: list[ListedOffset] = []
            for each in topic.partitions:
                partitions.append(
                    _named_twice(each)
                    if looked_into[topic.name, each.partition_index] > 1
                    else await self._list_offset(topic.name, each, version, time_of_all)
                )
                told += 1
                await give_way(told, every=ITEMS_PER_TURN)
            topics.append(ListedTopic(name=topic.name, partitions=tuple(partitions)))
        return ListOffsetsResponse(topics=tuple(topics))

    async def _list_offset(
        self, topic: str, wanted: ListOffsetsPartition, version: int, time_of_all: SharedTime
    ) -> ListedOffset:
        error_code, timestamp, offset = ErrorCode.NONE, _UNKNOWN, _UNKNOWN
        try:
            async with time_of_all.limit():
                found = await self._topics.own_partition(topic, wanted.partition_index)
                if wanted.timestamp in (LATEST, EARLIEST):
                    await found.confirm_ends()
                    is_last = wanted.timestamp == LATEST
                    offset = found.high_watermark if is_last else found.log_start_offset
                elif wanted.timestamp >= 0:
                    offset, timestamp = await found.offset_at_time(wanted.timestamp) or _NO_RECORD
                elif wanted.timestamp == MAX_TIMESTAMP and version >= _VERSION_WITH_MAX_TIMESTAMP:
                    offset, timestamp = await found.latest_record() or _NO_RECORD
                else:
                    # As Kafka answers numbers that a later version gives a meaning to, or none does.
                    error_code = ErrorCode.UNSUPPORTED_VERSION
        except TimeoutError:
            error_code = ErrorCode.KAFKA_STORAGE_ERROR
        except TopicError as error:
            error_code = fetch_code_of(error)
        return ListedOffset(
            partition_index=wanted.partition_index,
            error_code=error_code,
            timestamp=timestamp,
            offset=offset,
        )


def _named_twice(wanted: ListOffsetsPartition) -> ListedOffset:
    return ListedOffset(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.INVALID_REQUEST,
        timestamp=_UNKNOWN,
        offset=_UNKNOWN,
    )


async def _response(
    request: FetchRequest, looks: list[_Look], session: FetchSession
) -> FetchResponse:
    topics = dict[TopicKey, list[FetchedPartition]]()
    for told, look in enumerate(looks, 1):
        found = _fetched(look)
        if session.tell(request, look.topic, found):
            topics.setdefault(look.topic, []).append(found)
        if told % ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
    return FetchResponse(
        session_id=session.session_id,
        topics=tuple(
            FetchedTopic(topic=key, partitions=tuple(partitions))
            if isinstance(key, str)
            else FetchedTopic(topic_id=key, partitions=tuple(partitions))
            for key, partitions in topics.items()
        ),
    )


def _fetched(look: _Look) -> FetchedPartition:
    return FetchedPartition(
        partition_index=look.wanted.partition,
        error_code=look.error_code,
        high_watermark=look.high_watermark,
        last_stable_offset=look.high_watermark,
        log_start_offset=look.log_start_offset,
        # Whatever was read before the error is read again.
        records=b"" if look.error_code else look.records,
    )
