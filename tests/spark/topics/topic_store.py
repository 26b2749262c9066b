"""A topic of one store in this process, and what was produced to it: in files, in chunks, or in the log alone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random

from containers.container_settings import ContainerSettings
from segmentstore.codec.record_batch import (
    Compression,
    Record,
    TimestampType,
    encode_batch,
)
from segmentstore.codec.topic_files import (
    RegisteredFile,
    decode_file,
    encode_file,
    file_key,
)
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.spark.tier2_access import Tier2Reader
from segmentstore.spark.topics.partition_reader import PartitionReader
from segmentstore.spark.topics.published_partition import PublishedPartition
from segmentstore.spark.topics.topic_columns import TOPIC_COLUMNS
from segmentstore.spark.topics.topic_options import TopicReadOptions
from segmentstore.spark.topics.topic_ranges import TopicRange
from segmentstore.spark.topics.topic_service import TopicService
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_records import partition_segment_name
from tests.containers.node import MemoryTiers
from tests.tier2.format.record_images import make_record_file
from tests.topics.kafka_service import KafkaService, kafka_service

TOPIC = "logs"
NOW = 1_700_000_000_000
_FLUSHED_BY_THE_TEST = ContainerSettings()
_FLUSHED_BY_THE_TEST = replace(
    _FLUSHED_BY_THE_TEST,
    writer=replace(
        _FLUSHED_BY_THE_TEST.writer, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0
    ),
)


@dataclass
class Produced:
    """One record, and whose clock its time is of."""

    record: Record
    timestamp_type: TimestampType

    def row(self) -> dict[str, object]:
        """As Spark is to show it."""
        record = self.record
        headers = [{"key": name, "value": value} for name, value in record.headers] or None
        return {
            "key": record.key,
            "value": record.value,
            "topic": TOPIC,
            "partition": 0,
            "offset": record.offset,
            "timestamp": record.timestamp_ms * 1000,
            "timestampType": int(self.timestamp_type),
            "headers": headers,
        }


@dataclass
class TopicStore:
    """Partition 0 of the topic."""

    tiers: MemoryTiers
    service: KafkaService
    segment_name: str
    produced: list[Produced] = field(default_factory=list)
    file_count: int = 0

    async def produce(
        self, records: Sequence[Record], *, compression: Compression = Compression.NONE
    ) -> None:
        """One batch; offsets are given."""
        start = len(self.produced)
        partition = await self.service.topics.own_partition(TOPIC, 0)
        appended = await partition.produce(encode_batch(records, compression=compression))
        assert appended.base_offset == start
        self.produced += [
            Produced(replace(record, offset=start + number), TimestampType.CREATE_TIME)
            for number, record in enumerate(records)
        ]

    async def flush(self) -> None:
        """Everything goes to Tier 2."""
        await self.service.container.flush()

    async def make_file(self, *, small_blocks: bool = True) -> None:
        """What lies in batches becomes a file."""
        partition = await self.service.topics.own_partition(TOPIC, 0)
        assert await partition.make_file() > 0, "there were no batches"
        self.file_count += 1
        if small_blocks:
            await self.replace_file(self.file_count, name_number=1000 + self.file_count)

    async def file(self, number: int) -> RegisteredFile:
        async with self.service.container.open_segment(self.segment_name) as segment:
            key = file_key(number)
            return decode_file((await segment.load_attributes([key]))[key])

    async def replace_file(self, number: int, *, name_number: int) -> None:
        """By one of small blocks, as compaction does; the old object stays."""
        old = await self.file(number)
        file = await self._put_file(old.first_offset, old.end_offset, name_number)
        assert replace(file, size=old.size, name_number=old.name_number) == old
        async with self.service.container.open_segment(self.segment_name) as segment:
            update = AttributeUpdate(file_key(number), encode_file(file))
            await segment.append(b"", attribute_updates=[update])

    async def _put_file(self, start: int, end: int, name_number: int) -> RegisteredFile:
        some = self.produced[start:end]
        rows = [each.record for each in some]
        groups = [list(group) for _, group in groupby(rows, lambda row: row.offset // 7)]
        batches = [encode_batch(each, base_offset=each[0].offset) for each in groups]
        image = make_record_file(
            b"".join(batches),
            created_ms=NOW,
            start_offset=start,
            end_offset=end,
            block_bytes_target=600,
        )
        content = b"".join(bytes(each) for each in image.buffers)
        times = [each.record.timestamp_ms for each in some]
        highest = max(each.record.timestamp_ms for each in self.produced[:end])
        file = RegisteredFile(
            start, end, len(content), len(some), min(times), max(times), highest, name_number
        )
        await self.tiers.object_store.put_if_absent(file.name(TOPIC, 0).key, content)
        return file

    async def view(self) -> Tier2Reader:
        view = Tier2Reader(store=self.tiers.object_store, executor=None)
        await view.open()
        return view

    async def published(self) -> PublishedPartition:
        return PublishedPartition(
            await self.view(),
            topic=TOPIC,
            partition=0,
            segment_name=self.segment_name,
            executor=None,
        )

    def part(
        self,
        start: int,
        end: int,
        *,
        lowest_time_ms: int | None = None,
        highest_time_ms: int | None = None,
    ) -> TopicRange:
        return TopicRange(TOPIC, 0, self.segment_name, start, end, lowest_time_ms, highest_time_ms)

    async def read(
        self,
        part: TopicRange,
        *,
        tier2: bool = True,
        served: bool = True,
        columns: Sequence[str] = TOPIC_COLUMNS,
        fail_on_data_loss: bool = True,
    ) -> list[dict[str, object]]:
        """The rows of a range, times as microseconds."""
        published = await self.published() if tier2 else None
        return await self.read_with(
            part, published, served=served, columns=columns, fail_on_data_loss=fail_on_data_loss
        )

    async def read_with(
        self,
        part: TopicRange,
        published: PublishedPartition | None,
        *,
        served: bool,
        columns: Sequence[str] = TOPIC_COLUMNS,
        fail_on_data_loss: bool = True,
    ) -> list[dict[str, object]]:
        options = TopicReadOptions(
            topics=(part.topic,), columns=tuple(columns), fail_on_data_loss=fail_on_data_loss
        )
        rows: list[dict[str, object]] = []
        async with TopicService(self.service.address, ask_seconds=60.0) as service:
            reader = PartitionReader(
                part,
                options=options,
                published=published,
                service=service if served else None,
            )
            async with aclosing(reader.batches()) as batches:
                async for batch in batches:
                    if "timestamp" in batch.schema.names:
                        at = batch.schema.names.index("timestamp")
                        batch = batch.set_column(at, "timestamp", batch.column(at).cast("int64"))
                    rows += batch.to_pylist()
        return rows

    def expected(self, start: int, end: int) -> list[dict[str, object]]:
        return [each.row() for each in self.produced[max(start, 0) : end]]


def some_records(random: Random, count: int) -> list[Record]:
    """Nulls, empty fields, headers that repeat, clocks that go back."""
    return [
        Record(
            0,
            NOW + random.randrange(-5_000, 5_000),
            random.choice([None, b"", random.randbytes(5)]),
            random.choice([None, b"", random.randbytes(random.randrange(200))]),
            tuple(
                (random.choice(["a", "b", "ü"]), random.choice([None, b"", b"1"]))
                for _ in range(random.choice([0, 0, 1, 3]))
            ),
        )
        for _ in range(count)
    ]


@asynccontextmanager
async def topic_store(*, mark_bytes: int = 3_000) -> AsyncIterator[TopicStore]:
    """Nothing reaches Tier 2 but by flush(); the topic has one partition."""
    tiers = MemoryTiers()
    async with kafka_service(
        tiers,
        topic_settings=TopicSettings(mark_bytes=mark_bytes, file_seconds=3600.0),
        container_settings=_FLUSHED_BY_THE_TEST,
    ) as service:
        await service.topics.create(TOPIC, 1, {})
        description = service.topics.describe(TOPIC)
        assert description is not None
        name = partition_segment_name(TOPIC, description.topic_id, 0)
        yield TopicStore(tiers, service, name)
