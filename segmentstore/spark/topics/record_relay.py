"""From the staging stream of a write to its topics: each committed version once, whatever dies on the way.

Topics have no transactions, so a write goes through a stream that has them:

    task      rows -> batches -> a stage of the staging stream (a transaction with a lease)
    driver    one call commits the stages of all tasks as version V of the application      (decided, once)
              relay: what the stream holds -> topics, each batch with its producer, epoch and sequence
              truncate the stream to where it was relayed

A staged event is one batch, whose it is and where it goes; the stream frames it as any event:

    u64 version, u16 length of the topic's name, the name in UTF-8, u32 partition, the batch (version 2, no producer)

All batches of one partition are in one segment of the stream, in which they stand in an order that never changes. The
relay sends each with

    producer id      62 bits of SHA-256 of the application and V // 32768, and bit 62 set: ids that the store gives out
                     are far below (topics/producer_ids.py)
    producer epoch   V % 32768
    base sequence    the count of records of V that stand before it in the stream for its partition, modulo 2**31

Why each record of a version is in its topic once:

1. Which rows make up V is decided by the controller's one call. A run that repeats V, with other rows or tasks, is told
   that V is there, and its own stages are thrown away (controller/transactions/DESIGN.md).
2. The stream holds whole versions, one behind the other: it is truncated only where it ended while a version was merged
   and no later one was decided, which is looked up before and after its ends are (`_held`).
3. So every relay, however often it begins and in however many processes, sends the same batches with the same
   sequences in the same order, and goes on behind a batch only when that is stored. A partition stores a sequence once:
   a repeated batch is answered with its first offset if it is one of the producer's last five, with
   OUT_OF_ORDER_SEQUENCE_NUMBER if it lies further back, and with INVALID_PRODUCER_EPOCH if a later version was begun
   there. All before it being stored, the former means here: this one is stored, too. And a later version is begun
   behind the end of this one alone, so the latter means it as well.
4. A relay whose bytes another process has relayed and truncated looks again.

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
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentTruncatedError,
    StorageError,
)
from segmentstore.runtime.waiting import gather_all
from segmentstore.spark.sink.writer import COMMIT_SECONDS
from segmentstore.spark.topics.record_encoder import TargetBatch
from segmentstore.spark.topics.topic_service import TopicService

PRODUCER_EPOCHS: Final = 1 << 15
_READ_BYTES: Final = 4 << 20
_HEAD: Final = struct.Struct(">QH")
_PARTITION: Final = struct.Struct(">I")
_LOOKS_MAX: Final = 16
_STORED_CODES: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
"""What a partition says of batches that are not among the last of their producer: see the module."""
_ID_BITS: Final = (1 << 62) - 1
_ID_MARK: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch, whose it is and where it goes."""

    version: int
    topic: str
    partition: int
    content: bytes


def encode_staged(batch: TargetBatch, version: int) -> bytes:
    """As a framed event."""
    name = batch.topic.encode()
    head = _HEAD.pack(version, len(name)) + name + _PARTITION.pack(batch.partition)
    return frame_event(head + batch.content)


def decode_staged(event: bytes) -> StagedBatch:
    """Of the content of one event. Raises CorruptedDataError."""
    try:
        version, length = _HEAD.unpack_from(event)
        at = _HEAD.size
        topic = event[at : at + length].decode()
        (partition,) = _PARTITION.unpack_from(event, at + length)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptedDataError(f"a staged event is none: {error}") from error
    return StagedBatch(version, topic, partition, event[at + length + _PARTITION.size :])


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

    async def relay(self) -> int:
        """Send all that the stream holds; how many records that are. Raises StorageError if it moves all the time."""
        for _ in range(_LOOKS_MAX):
            held = await self._held()
            if held is None:
                continue
            if not held:
                return 0  # nothing was ever committed
            try:
                counts = await gather_all(
                    self._relay_segment(segment_id, start, end)
                    for segment_id, (start, end) in held.items()
                    if start < end
                )
            except SegmentTruncatedError:
                # Another process has relayed it.
                continue
            cut = StreamCut(str(self._stream.name), {each: end for each, (_, end) in held.items()})
            await self._stream.truncate(cut)
            return sum(counts)
        raise StorageError(f"the staged batches move all the time stream={self._stream.name}")

    async def _held(self) -> Mapping[int, tuple[int, int]] | None:
        """Start and end of what the stream holds by segment, whole versions; None if one was decided meanwhile."""
        staged = self._stream.staged()
        version = await staged.last_version(self._application_id)
        if version is None:
            return {}
        # Decided, but maybe not merged yet: a repetition waits for that.
        await staged.commit(self._application_id, version, (), wait_seconds=COMMIT_SECONDS)
        held: dict[int, tuple[int, int]] = {}
        for each in await self._stream.segments():
            info = await self._stream.segment_info(each.segment_id)
            held[each.segment_id] = (info.start_offset, info.length)
        is_last = await staged.last_version(self._application_id) == version
        return held if is_last else None

    async def _relay_segment(self, segment_id: int, start: int, end: int) -> int:
        sequences: dict[tuple[int, str, int], int] = {}
        count = 0
        async with (
            TopicService(self._kafka) as service,
            aclosing(self._events(segment_id, start, end)) as events,
        ):
            async for event in events:
                staged = decode_staged(event)
                batch = bytearray(staged.content)
                records = parse_header(batch).record_count
                key = (staged.version, staged.topic, staged.partition)
                sequence = sequences.get(key, 0)
                producer_id, epoch = producer_of(self._application_id, staged.version)
                stamp_producer(
                    batch, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
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
        # Everything before it is stored, so the producer cannot be behind it.
        if error.code not in _STORED_CODES:
            raise
