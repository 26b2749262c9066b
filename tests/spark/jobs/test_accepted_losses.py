"""Goal: a loss that an export accepts once is no loss to its later runs, which see the next one.

Method: runs of the jobs over a stream or topic that changes in between, without Spark: nothing is read of a batch.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from segmentstore.spark.jobs import export, topic_export
from segmentstore.spark.jobs.export import ExportCommitLog, ExportJob, ExportSettings
from segmentstore.spark.jobs.output_directory import LocalDirectory
from segmentstore.spark.jobs.topic_export import TopicExportJob
from segmentstore.spark.options import parse_options
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.streams.service_catalog import ServiceStreamCatalog
from segmentstore.spark.streams.stream_source import StreamSource
from segmentstore.spark.topics.topic_source import TopicPartition, TopicSource
from segmentstore.topics.topic_records import partition_segment_name
from tests.spark.jobs.test_exported_rows import CHILD, AskedRead, OneStream, segment, stream_of

STREAM = {"tier2": "here", "stream": "s/t"}
TOPIC = {"tier2": "here", "topic": "logs"}


class Exports:
    """Runs of one export of a stream."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self.stream = stream_of(segment(0, 0, 50), segment(1, 0, 90))

        @asynccontextmanager
        async def opened(*_: object, **__: object) -> AsyncIterator[StreamSource]:
            served = cast(ServiceStreamCatalog, OneStream(self.stream))
            options = parse_options(STREAM)
            yield StreamSource(options=options, view=None, store=None, served=served)

        monkeypatch.setattr(export, "open_stream_source", opened)
        monkeypatch.setattr(export, "staged_rows", lambda *_, **__: 0)

    def run(self, *, accept: bool = False) -> int:
        """How many batches it had."""
        job = ExportJob(
            spark=cast(SparkSession, AskedRead()),
            source_options=STREAM,
            directory=LocalDirectory(self._directory),
            settings=ExportSettings(fail_on_data_loss=not accept),
        )
        return len(job.run().batches)

    def ends(self) -> dict[int, int]:
        log = ExportCommitLog(LocalDirectory(self._directory), stream="s/t")
        log.open()
        log.close()
        return dict(log.ends)


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exports:
    runs = Exports(tmp_path, monkeypatch)
    assert runs.run() == 1
    assert runs.ends() == {0: 50, 1: 90}
    return runs


@pytest.mark.parametrize("length", [0, 7])
def test_a_segment_that_is_gone_is_accepted_once(exports: Exports, length: int) -> None:
    exports.stream = stream_of(segment(1, 0, 90), segment(CHILD, 0, length))
    with pytest.raises(DataLossError, match="segment_id=0"):
        exports.run()
    assert exports.run(accept=True) == (length > 0)
    assert exports.run() == 0
    # The next one is seen.
    exports.stream = stream_of(segment(CHILD, 0, 20))
    with pytest.raises(DataLossError, match="segment_id=1"):
        exports.run()


@pytest.mark.parametrize("added", [0, 30])
def test_a_segment_that_was_truncated_behind_its_noted_end_is_accepted_once(
    exports: Exports, added: int
) -> None:
    # What is added comes to the other segment.
    exports.stream = stream_of(segment(0, 0, 50 + added), segment(1, 120, 120))
    with pytest.raises(DataLossError, match=r"head=120 tail=120"):
        exports.run()
    assert exports.run(accept=True) == (added > 0)
    assert exports.ends() == {0: 50 + added, 1: 120}
    exports.stream = stream_of(segment(0, 0, 90), segment(1, 120, 150))
    assert exports.run() == 1
    assert exports.ends() == {0: 90, 1: 150}


def test_a_run_that_accepts_losses_and_finds_none_leaves_no_manifest(exports: Exports) -> None:
    for _ in range(2):
        assert exports.run(accept=True) == 0
    assert exports.run() == 0


class OneTopic:
    """A source of one topic that Tier 2 has nothing of."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        self.all = partitions

    async def partitions(self) -> list[TopicPartition]:
        return list(self.all)

    async def ends(self, partitions: list[TopicPartition]) -> dict[tuple[str, int], int]:
        return {each.key: each.end for each in partitions}

    def published(self, _partition: TopicPartition) -> None:
        return None


class TopicExports:
    """Runs of one export of a topic."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        names = [partition_segment_name("logs", UUID(int=1), index) for index in range(2)]
        self.source = OneTopic(
            [TopicPartition("logs", index, name, 0, 10) for index, name in enumerate(names)]
        )

        @asynccontextmanager
        async def opened(*_: object, **__: object) -> AsyncIterator[TopicSource]:
            yield cast(TopicSource, self.source)

        monkeypatch.setattr(topic_export, "open_topic_source", opened)
        monkeypatch.setattr(topic_export, "staged_rows", lambda *_, **__: 0)

    def run(self, *, accept: bool = False) -> int:
        """How many batches it had."""
        job = TopicExportJob(
            spark=cast(SparkSession, AskedRead()),
            source_options=TOPIC,
            directory=LocalDirectory(self._directory),
            settings=ExportSettings(fail_on_data_loss=not accept),
        )
        return len(job.run().batches)


@pytest.mark.parametrize("added", [0, 5])
def test_records_that_were_deleted_before_they_were_exported_are_accepted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: int
) -> None:
    exports = TopicExports(tmp_path, monkeypatch)
    assert exports.run() == 1
    first, second = exports.source.all
    exports.source.all = [replace(first, start=30, end=30), replace(second, end=10 + added)]
    with pytest.raises(DataLossError, match="partition 0"):
        exports.run()
    assert exports.run(accept=True) == (added > 0)
    assert exports.run() == 0
    exports.source.all[0] = replace(first, start=30, end=33)
    assert exports.run() == 1
