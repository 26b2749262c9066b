"""What the `stats` job says of topics: how many records there are, in how many files, from partitions' attributes.

No file is read: what a file holds is in its registration (segmentstore/codec/topic_files.py).
"""

from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.spark.topics.published_partition import facts_of_record
from segmentstore.topics.record_files.published_files import published_files
from segmentstore.topics.topic_records import PARTITION_PREFIX, parse_partition_segment
from tier2.outside_access import ContainerReader


@dataclass(slots=True)
class PartitionStatistics:
    """Of one partition."""

    index: int
    offsets: int
    """From the log start to the end; as many records, unless some were compacted away."""
    batch_bytes: int
    """Of records that are in no file yet."""
    files: int = 0
    file_bytes: int = 0
    file_records: int = 0
    lowest_ms: int | None = None
    """Of the records in files."""
    highest_ms: int | None = None


@dataclass(slots=True)
class TopicStatistics:
    """Of the partitions that are in Tier 2."""

    name: str
    partitions: list[PartitionStatistics] = field(default_factory=list)

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.partitions)

    @property
    def files(self) -> int:
        return sum(each.files for each in self.partitions)

    @property
    def file_bytes(self) -> int:
        return sum(each.file_bytes for each in self.partitions)

    @property
    def batch_bytes(self) -> int:
        return sum(each.batch_bytes for each in self.partitions)

    @property
    def skew(self) -> float:
        """The largest partition's share of records, where 1 is even."""
        largest = max((each.offsets for each in self.partitions), default=0)
        return largest * len(self.partitions) / self.offsets if self.offsets else 1.0


async def add_topics(reader: ContainerReader, topics: dict[str, TopicStatistics]) -> None:
    """The partitions of one container. Raises StorageError."""
    async with aclosing(reader.list_segments(PARTITION_PREFIX, "")) as records:
        async for record in records:
            place = parse_partition_segment(record.name)
            if place is None:
                continue
            topic, index = place
            facts = facts_of_record(record)
            partition = PartitionStatistics(
                index=index,
                offsets=max(0, facts.end - facts.log_start),
                batch_bytes=facts.end_position - facts.start_position,
            )
            async with aclosing(
                published_files(reader, facts.segment_id, first=1, last=facts.last_file)
            ) as files:
                async for _, file in files:
                    partition.files += 1
                    partition.file_bytes += file.size
                    partition.file_records += file.record_count
                    lowest, highest = partition.lowest_ms, partition.highest_ms
                    partition.lowest_ms = (
                        file.lowest_ms if lowest is None else min(lowest, file.lowest_ms)
                    )
                    partition.highest_ms = (
                        file.highest_ms if highest is None else max(highest, file.highest_ms)
                    )
            topics.setdefault(topic, TopicStatistics(topic)).partitions.append(partition)
