"""The `export` job for a topic: its records as Parquet files by day, each record once, and only new ones the next time.

As export.py has it, with partitions for segments and offsets of records for bytes: the same directory, manifests,
staging and lock. In a manifest a range's `segment_id` is the number of a partition.

- An export is of a topic's id: where a topic was made again, the directory of the old one is refused. Batches are read
  by the topic's name, so its id is looked up behind each read, before the commit: ids do not come again, and one that
  is the same then was the same all the time.
- A partition that is added later is exported from the first record that is there then: by the next run, if it is added
  while one is at work.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jobs.export import (
    BatchSummary,
    ExportCommitLog,
    ExportedRange,
    ExportSettings,
    ExportSummary,
    as_text,
    named_rows,
    staged_rows,
)
from segmentstore.spark.jobs.job_execution import Progress
from segmentstore.spark.jobs.output_directory import OutputDirectory
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.topics.topic_offsets import encode_topic_offsets
from segmentstore.spark.topics.topic_options import TopicReadOptions, parse_topic_options
from segmentstore.spark.topics.topic_ranges import (
    TopicRange,
    split_stretches,
    stretches_between,
)
from segmentstore.spark.topics.topic_source import TopicPartition, open_topic_source


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one run exports, under the topic as it was at its beginning."""

    partitions: list[TopicPartition]
    starts: Mapping[int, int]
    """Where every partition goes on."""
    batches: list[list[TopicRange]]


class TopicExportJob:
    """One run."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        source_options: Mapping[str, str],
        directory: OutputDirectory,
        settings: ExportSettings,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """`progress` counts offsets. `source_options`: which topic, and where it is."""
        self._spark = spark
        self._given = {**source_options, "includeHeaders": "true"}
        self._options: TopicReadOptions = parse_topic_options(self._given)
        self._settings = settings
        self._directory = directory
        self._progress = progress
        if len(self._options.topics) != 1:
            raise InvalidRequestError("an export is of one topic")

    def run(self) -> ExportSummary:
        """Raises InvalidRequestError, JobInUseError, DataLossError, StorageError, CorruptedDataError, and what Spark
        raises."""
        with LoopRunner() as runner:
            partitions = runner.run(self._partitions(runner))
            topic = _topic_of(partitions)
            ledger = ExportCommitLog(self._directory, stream=f"topic {topic}")
            try:
                ledger.open()
                plan = runner.run(self._plan(runner, ledger, topic))
                return self._run(runner, plan, ledger)
            finally:
                ledger.close()

    def _run(self, runner: LoopRunner, plan: _Plan, ledger: ExportCommitLog) -> ExportSummary:
        summary = ExportSummary(earlier_rows=sum(batch.rows for batch in ledger.batches))
        total = sum(each.end - each.start for batch in plan.batches for each in batch)
        done = 0
        self._progress(0, total)
        for batch in plan.batches:
            summary.batches.append(self._export(runner, plan, batch, ledger))
            done += sum(each.end - each.start for each in batch)
            self._progress(done, total)
        if not plan.batches and not self._settings.fail_on_data_loss:
            ledger.note_losses(ends=_ends_behind([], ends=ledger.ends, starts=plan.starts))
        return summary

    async def _partitions(self, runner: LoopRunner) -> list[TopicPartition]:
        async with open_topic_source(self._options, executor=runner.executor) as source:
            return await source.partitions()

    async def _plan(self, runner: LoopRunner, ledger: ExportCommitLog, topic: str) -> _Plan:
        async with open_topic_source(self._options, executor=runner.executor) as source:
            partitions = await source.partitions()
            _require_topic(partitions, topic)
            noted = {each.key: ledger.ends.get(each.index, each.start) for each in partitions}
            stretches = stretches_between(
                partitions,
                starts=noted,
                ends=await source.ends(partitions),
                fail_on_data_loss=self._settings.fail_on_data_loss,
            )
            ranges = await split_stretches(
                source, stretches, bytes_max=self._settings.batch_bytes, count_min=1
            )
        # What was deleted before it was exported may be lost, as nothing was raised.
        starts = {each.index: max(noted[each.key], each.start) for each in partitions}
        return _Plan(partitions, starts, _batches_of(ranges, self._settings.batch_bytes))

    def _export(
        self, runner: LoopRunner, plan: _Plan, batch: list[TopicRange], ledger: ExportCommitLog
    ) -> BatchSummary:
        started = time.perf_counter()
        behind = _ends_behind(batch, ends=ledger.ends, starts=plan.starts)
        rows = staged_rows(
            self._read(plan.partitions, batch),
            ledger=ledger,
            compression=self._settings.compression,
        )
        _require_topic(runner.run(self._partitions(runner)), _topic_of(plan.partitions))
        written = ledger.commit(
            ranges=[ExportedRange(each.index, each.name, each.start, each.end) for each in batch],
            rows=rows,
            ends=behind,
            finished=(),
        )
        return BatchSummary(
            batch=written.number,
            segments=len({each.index for each in batch}),
            rows=written.rows,
            stream_bytes=sum(each.size_bytes for each in batch),
            files=len(written.files),
            seconds=time.perf_counter() - started,
        )

    def _read(self, partitions: Sequence[TopicPartition], batch: Sequence[TopicRange]) -> DataFrame:
        """The records of a batch. Every other partition is named as well, with nothing to read: what is not named
        would be read to its end."""
        (topic,) = self._options.topics
        starts = {(topic, each.index): each.end for each in partitions}
        ends = dict(starts)
        for each in batch:
            starts[topic, each.index] = each.start
            ends[topic, each.index] = each.end
        frame = (
            self._spark.read.format("segmentstore")
            .options(**self._given)
            .option("failOnDataLoss", str(self._settings.fail_on_data_loss).lower())
            .option("startingOffsets", json.dumps(encode_topic_offsets(starts)))
            .option("endingOffsets", json.dumps(encode_topic_offsets(ends)))
            .load()
        )
        frame = named_rows(frame, "partition", [each.index for each in batch])
        return as_text(frame) if self._settings.text else frame


def _topic_of(partitions: Sequence[TopicPartition]) -> str:
    """The name and the id of the topic that all of them are of."""
    return partitions[0].segment_name.rpartition("/")[0].rpartition("/")[2]


def _require_topic(partitions: Sequence[TopicPartition], topic: str) -> None:
    """Raises InvalidRequestError if they are of another one."""
    found = _topic_of(partitions)
    if found != topic:
        raise InvalidRequestError(
            "the topic was made again while it was exported; what was read last was not committed, and the new one"
            f" needs a directory of its own exported={topic} found={found}"
        )


def _ends_behind(
    batch: Sequence[TopicRange], *, ends: Mapping[int, int], starts: Mapping[int, int]
) -> dict[int, int]:
    """Where every partition stands behind a batch, as ends_behind() has it for segments."""
    stood = {each: max(end, starts.get(each, end)) for each, end in ends.items()}
    return {**starts, **stood, **{each.index: each.end for each in batch}}


def _batches_of(ranges: list[TopicRange], batch_bytes: int) -> list[list[TopicRange]]:
    """Neighbouring ranges together, about so many bytes in each batch; those of a partition that meet become one."""
    batches: list[list[TopicRange]] = []
    size = 0
    for each in ranges:
        if not batches or size + each.size_bytes > batch_bytes:
            batches.append([])
            size = 0
        size += each.size_bytes
        last = batches[-1][-1] if batches[-1] else None
        if last is not None and (last.index, last.end) == (each.index, each.start):
            batches[-1][-1] = replace(
                last, end=each.end, size_bytes=last.size_bytes + each.size_bytes
            )
        else:
            batches[-1].append(each)
    return batches
