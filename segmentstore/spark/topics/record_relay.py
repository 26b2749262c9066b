"""From the staging stream of a write to its topics: each committed version once, whatever dies on the way.

Topics have no transactions, so a write goes through a stream that has them:

    task      rows -> batches -> a stage of the staging stream (a transaction with a lease)
    driver    one call commits the stages of all tasks as version V of the application      (decided, once)
              relay: what the stream holds -> topics, each batch with its producer, epoch and sequence
              truncate the stream to where it was relayed

A staged event is one batch and where it goes; the stream frames it as any event:

    u16 length of the topic's name, the name in UTF-8, u32 partition, the batch (version 2, without a producer)

All batches of one partition are in one segment of the stream, in which they stand in an order that never changes. The
relay sends each with

    producer id      62 bits of SHA-256 of the application and V // 32768, and bit 62 set: ids that the store gives out
                     are far below (topics/producer_ids.py)
    producer epoch   V % 32768
    base sequence    the count of records that stand before it in the stream for its partition, modulo 2**31

Why each record of a version is in its topic once:

1. Which rows make up V is decided by the controller's one call. A run that repeats V, with other rows or tasks, is told
   that V is there, and its own stages are thrown away (controller/transactions/DESIGN.md).
2. The stream holds bytes of one version at a time: V + 1 is committed only when V was relayed and truncated, and only
   whole versions are truncated. `_held` proves it before each relay: V is the last version both before and after the
   stream's ends were looked up; if a later one is, V was relayed by another process.
3. So every relay of V, however often it begins, sends the same batches with the same sequences in the same order, and
   goes on behind a batch only when that is stored. A partition stores a sequence once: a repeated batch is answered
   with its first offset if it is one of the producer's last five, and with OUT_OF_ORDER_SEQUENCE_NUMBER if it lies
   further back. All before it being stored, the latter means here: this one is stored, too.
4. A relay that another process overtook (it relayed V and V + 1) meets truncated bytes or INVALID_PRODUCER_EPOCH, and
   ends with an error.

What it rests on: a partition remembers a producer for a day, or until 2000 others wrote to it (topics/settings.py). A
relay that breaks off in the middle and is repeated later than that sends again what it had sent. A version's records
appear in their topics one batch after the other, not all at once.
"""

import hashlib
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from segmentstore.client.stream import Stream
from segmentstore.client.stream_segments import StreamCut
from segmentstore.client.topics import TopicRequestError
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, frame_event, walk_events
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.record_batch import add_to_sequence, parse_header, stamp_producer
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.waiting import gather_all
from segmentstore.spark.topics.record_encoder import TargetBatch
from segmentstore.spark.topics.topic_service import TopicService

PRODUCER_EPOCHS: Final = 1 << 15
_READ_BYTES: Final = 4 << 20
_TOPIC_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">I")
_ID_BITS: Final = (1 << 62) - 1
_ID_MARK: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch and where it goes."""

    topic: str
    partition: int
    content: bytes


def encode_staged(batch: TargetBatch) -> bytes:
    """As a framed event."""
    name = batch.topic.encode()
    return frame_event(
        _TOPIC_LENGTH.pack(len(name)) + name + _PARTITION.pack(batch.partition) + batch.content
    )


def decode_staged(event: bytes) -> StagedBatch:
    """Of the content of one event. Raises CorruptedDataError."""
    try:
        (length,) = _TOPIC_LENGTH.unpack_from(event)
        at = _TOPIC_LENGTH.size
        topic = event[at : at + length].decode()
        (partition,) = _PARTITION.unpack_from(event, at + length)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptedDataError(f"a staged event is none: {error}") from error
    return StagedBatch(topic, partition, event[at + length + _PARTITION.size :])


def staging_slot(topic: str, partition: int, *, slots: int) -> int:
    """Which of the stream's segments takes the batches of a partition: always the same."""
    return (int.from_bytes(hashlib.sha256(topic.encode()).digest()[:4]) + partition) % slots


def producer_of(application_id: str, version: int) -> tuple[int, int]:
    """Id and epoch with which a version is relayed."""
    generation, epoch = divmod(version, PRODUCER_EPOCHS)
    digest = hashlib.sha256(f"{application_id}\n{generation}".encode()).digest()
    return int.from_bytes(digest[:8]) & _ID_BITS | _ID_MARK, epoch


class RecordRelay:
    """Of one application. Each method raises what the client raises."""

    def __init__(self, stream: Stream, *, kafka: str, application_id: str) -> None:
        self._stream = stream
        self._kafka = kafka
        self._application_id = application_id

    async def relay(self, version: int) -> int:
        """Send what the version still holds, which is committed and complete; how many records that are."""
        held = await self._held(version)
        if held is None:
            return 0
        counts = await gather_all(
            self._relay_segment(segment_id, start, end, version)
            for segment_id, (start, end) in held.items()
            if start < end
        )
        cut = StreamCut(str(self._stream.name), {each: end for each, (_, end) in held.items()})
        await self._stream.truncate(cut)
        return sum(counts)

    async def _held(self, version: int) -> Mapping[int, tuple[int, int]] | None:
        """Start and end by segment of what the stream holds, if that is of this version; None if of a later one."""
        staged = self._stream.staged()
        if await staged.last_version(self._application_id) != version:
            return None
        held: dict[int, tuple[int, int]] = {}
        for each in await self._stream.segments():
            info = await self._stream.segment_info(each.segment_id)
            held[each.segment_id] = (info.start_offset, info.length)
        if await staged.last_version(self._application_id) != version:
            return None
        return held

    async def _relay_segment(self, segment_id: int, start: int, end: int, version: int) -> int:
        producer_id, epoch = producer_of(self._application_id, version)
        sequences: dict[tuple[str, int], int] = {}
        count = 0
        async with (
            TopicService(self._kafka) as service,
            aclosing(self._events(segment_id, start, end)) as events,
        ):
            async for event in events:
                staged = decode_staged(event)
                batch = bytearray(staged.content)
                records = parse_header(batch).record_count
                key = (staged.topic, staged.partition)
                sequence = sequences.get(key, 0)
                stamp_producer(
                    batch,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                )
                await _store_once(service, staged, bytes(batch))
                sequences[key] = add_to_sequence(sequence, records)
                count += records
        return count

    async def _events(self, segment_id: int, start: int, end: int) -> AsyncGenerator[bytes, None]:
        segment = self._stream.segment(segment_id)
        offset = start
        rest = b""
        while offset < end:
            content = await segment.read(offset, min(_READ_BYTES, end - offset))
            if not content:
                raise CorruptedDataError(
                    f"staged bytes are missing stream={self._stream.name} segment_id={segment_id}"
                    f" offset={offset} end={end}"
                )
            offset += len(content)
            rest += content
            behind = 0
            for begin, behind_event in walk_events(rest):
                if behind_event > len(rest):
                    break
                yield rest[begin + EVENT_HEADER_BYTES : behind_event]
                behind = behind_event
            rest = rest[behind:]
        if rest:
            raise CorruptedDataError(f"a staged event is cut stream={self._stream.name} end={end}")


async def _store_once(service: TopicService, staged: StagedBatch, batch: bytes) -> None:
    try:
        await service.ask(
            lambda topics: topics.produce_batch(staged.topic, staged.partition, batch)
        )
    except TopicRequestError as error:
        # Everything before it is stored, so the producer cannot be behind it: see the module.
        if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise
