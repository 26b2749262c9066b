"""Batches for the tests of topics, and a partition over segments in memory."""

from random import Random

from crc32c import crc32c

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    Compression,
    Record,
    check_batch,
    decode_batch,
    encode_batch,
)
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import make_config
from tests.http.memory_segments import MemorySegments

NOW = 1_700_000_000_000
SEGMENT = "_system/topics/t~00/0"

SMALL = TopicSettings(
    mark_bytes=2_000,
    producers_per_partition_max=20,
    positions_per_partition_max=8,
    files_known_per_partition_max=3,
)
"""Many marks and few positions and files in memory: everything is found by every way."""


_RANDOM = Random(17)
"""Owners draw numbers that differ."""


class Clock:
    """A wall clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = NOW

    def now_ms(self) -> int:
        return self.now


def known() -> bool:
    """As compaction asks whether the clocks are trusted."""
    return True


def not_known() -> bool:
    return False


def batch_of(
    *values: bytes | None,
    time: int = NOW,
    producer: tuple[int, int, int] | None = None,
    compression: Compression = Compression.NONE,
) -> bytes:
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return encode_batch(
        [Record(0, time + i, b"k", value) for i, value in enumerate(values)],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def unreadable_batch() -> bytes:
    """Its checksum is right, its only record is not."""
    batch = bytearray(encode_batch([Record(0, NOW, b"k", b"value")]))
    batch[-3] = 0x7F
    batch[BATCH_HEADER_BYTES] = 0x7E
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    check_batch(batch)
    return bytes(batch)


def batch_that_does_not_decompress(*, time: int) -> bytes:
    """What a producer that is at fault may send: its checksum is right."""
    batch = bytearray(encode_batch([Record(0, time, b"k", b"v")], compression=Compression.GZIP))
    batch[BATCH_HEADER_BYTES] ^= 0xFF
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    check_batch(batch)
    return bytes(batch)


def records_in(content: bytes) -> list[Record]:
    """Of all batches, each proved by its checksum."""
    found: list[Record] = []
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at + 8 : at + 12]) + 12
        found += decode_batch(content[at : at + size])
        at += size
    return found


def make_partition(
    segments: MemorySegments,
    *,
    clock: Clock | None = None,
    settings: TopicSettings = SMALL,
    config: dict[str, str] | None = None,
    record_files: RecordFiles | None = None,
) -> Partition:
    """Not opened yet."""
    return Partition(
        topic="t",
        index=0,
        segment_name=SEGMENT,
        segments=segments,
        wall_clock=clock or Clock(),
        random=_RANDOM,
        config=make_config(config or {}, bytes_max=10_000),
        settings=settings,
        record_files=record_files,
    )


def files_in(objects: ObjectStore, *, batch_bytes_max: int = 1_000) -> Tier2RecordFiles:
    """As the service has them, with small batches and a small cache."""
    return Tier2RecordFiles(
        object_store=objects,
        writers=None,
        readers=None,
        cache_bytes=20_000,
        batch_bytes_max=batch_bytes_max,
    )


async def open_partition(
    segments: MemorySegments,
    *,
    clock: Clock | None = None,
    settings: TopicSettings = SMALL,
    config: dict[str, str] | None = None,
    record_files: RecordFiles | None = None,
) -> Partition:
    if SEGMENT not in segments.names():
        await segments.create(SEGMENT, [AttributeUpdate(EVENT_COUNT, 0)])
    partition = make_partition(
        segments, clock=clock, settings=settings, config=config, record_files=record_files
    )
    await partition.recover()
    return partition


async def read_all(partition: Partition, *, max_bytes: int = 500) -> list[Record]:
    """From the log start to the high watermark, and every offset once."""
    found: list[Record] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        records = records_in(await partition.fetch(offset, max_bytes))
        assert records, f"nothing at {offset}"
        assert records[0].offset <= offset <= records[-1].offset
        found += [record for record in records if record.offset >= offset]
        offset = records[-1].offset + 1
    return found
