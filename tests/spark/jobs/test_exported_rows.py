"""Goal: a batch of an export reads what its manifest names, whatever came to the stream or topic since it was planned.

Method: what the job asks Spark for is planned as the data source plans it, over what there is by then.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import In

from segmentstore.spark.jobs.export import ExportedRange, ExportJob, ExportSettings, PlannedBatch
from segmentstore.spark.jobs.output_directory import LocalDirectory
from segmentstore.spark.jobs.topic_export import TopicExportJob
from segmentstore.spark.options import parse_options
from segmentstore.spark.scan.scan_planner import bounds_of, plan_scan
from segmentstore.spark.streams.segment_graph import StreamMetadata, StreamSegmentMetadata
from segmentstore.spark.streams.service_catalog import ServiceStreamCatalog
from segmentstore.spark.streams.stream_source import StreamSource
from segmentstore.spark.topics.topic_offsets import EARLIEST
from segmentstore.spark.topics.topic_options import parse_topic_options
from segmentstore.spark.topics.topic_ranges import (
    TopicRange,
    split_stretches,
    stretches_between,
    topic_bounds_of,
)
from segmentstore.spark.topics.topic_source import TopicPartition, TopicSource

CHILD = 1 << 32 | 2


@dataclass
class AskedRead:
    """What a job asks Spark for: a session, its reader and the frame in one."""

    words: dict[str, str] = field(default_factory=dict)
    filters: list[In] = field(default_factory=list)

    @property
    def read(self) -> Self:
        return self

    def format(self, _name: str) -> Self:
        return self

    def option(self, name: str, value: str) -> Self:
        self.words[name] = value
        return self

    def options(self, **words: str) -> Self:
        self.words |= words
        return self

    def load(self) -> Self:
        return self

    def where(self, condition: str) -> Self:
        found = re.fullmatch(r"`(\w+)` IN \(([0-9, ]+)\)", condition)
        assert found is not None, condition
        self.filters.append(In((found[1],), tuple(int(each) for each in found[2].split(","))))
        return self


def segment(segment_id: int, start: int, end: int) -> StreamSegmentMetadata:
    return StreamSegmentMetadata(
        segment_id=segment_id,
        name=f"s/t/{segment_id & 0xFFFFFFFF}.#epoch.{segment_id >> 32}",
        epoch=segment_id >> 32,
        low=0.0,
        high=1.0,
        start_offset=start,
        end_offset=end,
        published_end=0,
        is_sealed=False,
        container_id=-1,
    )


def stream_of(*segments: StreamSegmentMetadata) -> StreamMetadata:
    head = {each.segment_id: each.start_offset for each in segments}
    return StreamMetadata(scope="s", stream="t", segments=segments, head=head)


class OneStream:
    """A catalog of one stream."""

    def __init__(self, stream: StreamMetadata) -> None:
        self._stream = stream

    async def stream_metadata(self, _scope: str, _stream: str) -> StreamMetadata:
        return self._stream


async def test_a_batch_has_nothing_of_a_segment_that_came_behind_one_that_is_gone_since(
    tmp_path: Path,
) -> None:
    asked = AskedRead()
    job = ExportJob(
        spark=cast(SparkSession, asked),
        source_options={"tier2": "here", "stream": "s/t"},
        directory=LocalDirectory(tmp_path),
        settings=ExportSettings(fail_on_data_loss=False),
    )
    planned = stream_of(segment(0, 0, 50), segment(1, 0, 90))
    job._read(planned, PlannedBatch((ExportedRange(1, "s/t/1.#epoch.0", 10, 60),)))
    by_then = stream_of(segment(1, 0, 120), segment(CHILD, 0, 30))
    options = parse_options(asked.words)
    served = cast(ServiceStreamCatalog, OneStream(by_then))
    source = StreamSource(options=options, view=None, store=None, served=served)
    parts = await plan_scan(source, options, bounds_of(asked.filters))
    assert [(part.segment_id, part.start, part.end) for part in parts] == [(1, 10, 60)]


async def test_a_batch_has_nothing_of_a_partition_that_was_added_since(tmp_path: Path) -> None:
    asked = AskedRead()
    job = TopicExportJob(
        spark=cast(SparkSession, asked),
        source_options={"topic": "logs", "tier2": "here"},
        directory=LocalDirectory(tmp_path),
        settings=ExportSettings(),
    )
    planned = [TopicPartition("logs", index, f"p{index}", 0, 90) for index in range(2)]
    job._read(planned, [TopicRange("logs", 1, "p1", 10, 60)])
    by_then = [*planned, TopicPartition("logs", 2, "p2", 0, 30)]
    options = parse_topic_options(asked.words)
    source = TopicSource(options, view=None, service=None, executor=None)
    stretches = stretches_between(
        by_then,
        starts=await source.starts(by_then, default=EARLIEST),
        ends=await source.ends(by_then),
        fail_on_data_loss=options.fail_on_data_loss,
    )
    bounds = topic_bounds_of(asked.filters)
    parts = await split_stretches(source, stretches, bounds=bounds, bytes_max=1 << 20, count_min=1)
    assert [(part.index, part.start, part.end) for part in parts] == [(1, 10, 60)]
