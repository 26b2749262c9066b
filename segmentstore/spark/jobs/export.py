"""The `export` job: the events of a stream as Parquet files by day, each event once, and only new ones the next time.

    plan    the stream as it is now - what was exported -> batches of bounded size
    batch   spark.read of its ranges -> date of the event -> Parquet in staging -> manifest -> files in place

    OUT/date=2026-11-21/batch-000007-part-....parquet     what readers see
    OUT/_batches/000007.json                              the manifest of one batch: its commit
    OUT/_staging/000007-<run>/                            a batch on its way; hidden from Spark's readers
    OUT/_lock                                             held by the run that works there; local directories only

- A range goes from where the last manifest ends to the tail at planning; ends lie where events begin.
- What retention took away before it was exported is an error, unless it may be lost; what went before the export began,
  or was exported, is none. So a manifest says of every segment of the stream where it begins or goes on, and a segment
  counts as finished only when it is sealed: bytes of one that has successors may not be published yet.
- A loss that may be is written down with what is exported, or in a manifest of its own, so it is none to later runs. A
  segment that is gone counts as finished then.
- A batch is committed by its manifest. Killed before it, what is staged is thrown away and the batch is made again;
  killed behind it, the next run moves the rest of the files, whose names are in the manifest, and removes staging.
- A batch holds what its manifest names and nothing else, whatever came to the stream since the run was planned.
- Manifests are numbered without a gap. Each says where every segment stood behind it, so the last one alone tells
  where to go on.
- A manifest is made once and never replaced, and a run stages under a name of its own. So of runs that meet one commits
  a batch, and the others end with an error. None removes what another run, which may still be at work, has staged for a
  batch that is not committed. In a local directory a second run is refused before it does anything.
- A manifest without files is only of a batch without events; the staged files are durable before their manifest is.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.codec.stream_names import creation_epoch_of
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError, StorageError
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.spark.jobs.job_execution import Progress
from segmentstore.spark.jobs.output_directory import OutputDirectory
from segmentstore.spark.jobs.run_lock import JobInUseError
from segmentstore.spark.options import parse_options
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.scan_planner import RangeFactory, planned_ranges, split_ranges
from segmentstore.spark.streams.offsets import Position
from segmentstore.spark.streams.segment_graph import StreamMetadata
from segmentstore.spark.streams.stream_source import StreamSource, open_stream_source

_LOG = logging.getLogger(__name__)
_BATCHES, _STAGING = "_batches", "_staging"
_MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What one run does. Sizes in bytes of the stream."""

    batch_bytes: int = 1 << 30
    text: bool = False
    """Keys and values as text (UTF-8) instead of bytes."""
    compression: str = "zstd"
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """The events of a segment that begin in [start, end)."""

    segment_id: int
    segment: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Ranges in the order of the stream."""

    ranges: tuple[ExportedRange, ...]

    @property
    def length(self) -> int:
        return sum(each.end - each.start for each in self.ranges)


@dataclass(slots=True)
class BatchSummary:
    """One row of the report."""

    batch: int
    segments: int
    rows: int
    stream_bytes: int
    files: int
    seconds: float


@dataclass(slots=True)
class ExportSummary:
    """What a run did."""

    batches: list[BatchSummary] = field(default_factory=list)
    earlier_rows: int = 0
    """Of batches that were there already."""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.batches)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one run exports, under the stream as it was at its beginning."""

    stream: StreamMetadata
    starts: Mapping[int, int]
    """Where every segment of the stream goes on."""
    finished: frozenset[int]
    batches: tuple[PlannedBatch, ...]


class ExportJob:
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
        """`progress` counts bytes of the stream.

        `source_options`: which stream, and where it is: options of the data source without positions.
        """
        self._spark = spark
        self._given = dict(source_options)
        self._options = replace(
            parse_options(self._given), fail_on_data_loss=settings.fail_on_data_loss
        )
        self._settings = settings
        self._progress = progress
        if not self._options.stream:
            raise InvalidRequestError("an export is of one stream: stream=SCOPE/STREAM")
        self._ledger = ExportCommitLog(directory, stream=self._options.stream_name)

    def run(self) -> ExportSummary:
        """Raises InvalidRequestError, JobInUseError, DataLossError, StorageError, CorruptedDataError, and what Spark
        raises."""
        try:
            self._ledger.open()
            return self._run()
        finally:
            self._ledger.close()

    def _run(self) -> ExportSummary:
        summary = ExportSummary(earlier_rows=sum(batch.rows for batch in self._ledger.batches))
        plan = self._plan()
        total = sum(batch.length for batch in plan.batches)
        done = 0
        self._progress(0, total)
        for batch in plan.batches:
            summary.batches.append(self._export(plan, batch))
            done += batch.length
            self._progress(done, total)
        if not plan.batches and not self._settings.fail_on_data_loss:
            ends = ends_behind(PlannedBatch(()), ends=self._ledger.ends, starts=plan.starts)
            self._ledger.note_losses(
                ends=ends, finished=plan.finished | finished_at(ends, plan.stream)
            )
        return summary

    def _plan(self) -> "_Plan":
        with LoopRunner() as runner:

            async def plan() -> _Plan:
                async with open_stream_source(self._options, executor=runner.executor) as source:
                    (stream,) = await source.selected_streams()
                    finished = await self._finished(source, stream)
                    starts = starts_of(
                        stream,
                        ends=self._ledger.ends,
                        finished=finished,
                        fail_on_data_loss=self._settings.fail_on_data_loss,
                    )
                    # Those that are gone may be, as nothing was raised: exported to their end, or lost.
                    finished |= self._ledger.ends.keys() - stream.by_id.keys()
                    ranges = await self._new_ranges(source, stream, starts)
                    batches = tuple(batches_of(ranges, self._settings.batch_bytes))
                    return _Plan(stream, starts, finished, batches)

            return runner.run(plan())

    async def _finished(self, source: StreamSource, stream: StreamMetadata) -> frozenset[int]:
        """Segments that were exported to their end, also those that were sealed there after the last batch."""
        known = self._ledger.finished
        gone = [each for each in self._ledger.ends if each not in stream.by_id]
        strangers = [each for each in stream.head if each not in self._ledger.ends]
        if not gone or not (strangers or any(each not in known for each in gone)):
            return known
        records = await source.ends_of_gone(stream.scope, stream.stream, gone)
        ends = {each: record for each, record in zip(gone, records, strict=True) if record}
        unseen = never_seen(ends, head=strangers)
        if unseen and self._settings.fail_on_data_loss:
            raise _gone_error(stream, unseen[0], 0)
        whole = [each for each in ends if ends[each].length == self._ledger.ends[each]]
        return known.union(whole)

    async def _new_ranges(
        self, source: StreamSource, stream: StreamMetadata, starts: Mapping[int, int]
    ) -> list[ExportedRange]:
        """What is new, cut so that a batch can end behind every range."""
        stretches = planned_ranges(
            stream,
            starts=starts,
            ends=await source.ends(stream),
            fail_on_data_loss=self._settings.fail_on_data_loss,
        )
        maker = RangeFactory(
            scope=stream.scope, stream=stream.stream, content=source.content_of(stream)
        )
        found = await split_ranges(
            source.view, maker, stretches, target_bytes=self._settings.batch_bytes
        )
        ranges: list[ExportedRange] = []
        for each in found:
            assert each.segment_id is not None, f"a stream's segment has an id {each}"
            ranges.append(ExportedRange(each.segment_id, each.segment_name, each.start, each.end))
        return ranges

    def _export(self, plan: "_Plan", batch: PlannedBatch) -> BatchSummary:
        started = time.perf_counter()
        ends = ends_behind(batch, ends=self._ledger.ends, starts=plan.starts)
        rows = staged_rows(
            self._read(plan.stream, batch),
            ledger=self._ledger,
            compression=self._settings.compression,
        )
        written = self._ledger.commit(
            ranges=batch.ranges,
            rows=rows,
            ends=ends,
            finished=sorted(plan.finished | finished_at(ends, plan.stream)),
        )
        return BatchSummary(
            batch=written.number,
            segments=len({each.segment_id for each in batch.ranges}),
            rows=written.rows,
            stream_bytes=batch.length,
            files=len(written.files),
            seconds=time.perf_counter() - started,
        )

    def _read(self, stream: StreamMetadata, batch: PlannedBatch) -> DataFrame:
        """The events of a batch. Every other segment is named as well, with nothing to read: what is not named would
        be read to its end."""
        starts = {each.segment_id: each.end_offset for each in stream.segments}
        ends = dict(starts)
        for each in batch.ranges:
            starts[each.segment_id] = each.start
            ends[each.segment_id] = each.end
        frames = self._spark.read.format("segmentstore").options(**self._given)
        if not self._settings.fail_on_data_loss:
            frames = frames.option("failOnDataLoss", "false")
        frame = (
            frames.option("startingOffsets", Position(starts).to_json())
            .option("endingOffsets", Position(ends).to_json())
            .load()
        )
        frame = named_rows(frame, "segment_id", [each.segment_id for each in batch.ranges])
        return as_text(frame) if self._settings.text else frame


def named_rows(frame: DataFrame, column: str, ids: Iterable[int]) -> DataFrame:
    """The rows of the segments that a batch has something of, or of the partitions.

    One that came since the plan was made is named by no position of it, and so it may be read as a whole; it is of
    the next run, as no manifest names it yet.
    """
    return frame.where(f"`{column}` IN ({', '.join(str(each) for each in sorted(set(ids)))})")


def as_text(frame: DataFrame) -> DataFrame:
    """Keys and values as text."""
    for column in ("key", "value"):
        frame = frame.withColumn(column, sql.col(column).cast("string"))
    return frame


def starts_of(
    stream: StreamMetadata,
    *,
    ends: Mapping[int, int],
    finished: frozenset[int],
    fail_on_data_loss: bool,
) -> dict[int, int]:
    """Where each segment goes on. Raises DataLossError if something went before it was exported."""
    gone = [
        segment_id
        for segment_id in sorted(ends)
        if segment_id not in stream.by_id and segment_id not in finished
    ]
    for segment_id in gone:
        loss = _gone_error(stream, segment_id, ends[segment_id])
        if fail_on_data_loss:
            raise loss
        _LOG.warning("going on without what is lost: %s", loss)
    starts: dict[int, int] = {}
    for segment in stream.segments:
        known = ends.get(segment.segment_id)
        # A segment that is new since the last export has to be there from its first byte on.
        start = segment.start_offset if known is None and not ends else known or 0
        starts[segment.segment_id] = (
            start if fail_on_data_loss else max(start, segment.start_offset)
        )
    return starts


def ends_behind(
    batch: PlannedBatch, *, ends: Mapping[int, int], starts: Mapping[int, int]
) -> dict[int, int]:
    """Where every segment of the stream stands behind a batch. Those that it has nothing of stand where they begin or
    stood before, whichever lies further: a later run must not look for what was gone before the first one, or was lost
    before this one."""
    stood = {each: max(end, starts.get(each, end)) for each, end in ends.items()}
    return {**starts, **stood, **{each.segment_id: each.end for each in batch.ranges}}


def finished_at(ends: Mapping[int, int], stream: StreamMetadata) -> frozenset[int]:
    """The segments that are exported up to an end that stays their end."""
    return frozenset(
        each.segment_id
        for each in stream.segments
        if each.is_sealed and ends.get(each.segment_id, 0) >= each.end_offset
    )


def never_seen(gone: Mapping[int, SealedSegmentRecord], *, head: Sequence[int]) -> list[int]:
    """The segments of the head that follow none of the gone ones directly: what was between came and went unseen.

    `head`: segments at the stream's head that no run has seen before.
    """
    last_epoch = max((record.replacing_epoch for record in gone.values()), default=0)
    return [each for each in head if last_epoch and creation_epoch_of(each) > last_epoch]


def _gone_error(stream: StreamMetadata, segment_id: int, offset: int) -> DataLossError:
    return DataLossError(
        f"{stream.scope}/{stream.stream} segment_id={segment_id}",
        start=offset,
        end=offset,
        head=0,
        tail=0,
    )


def batches_of(ranges: Sequence[ExportedRange], batch_bytes: int) -> Iterator[PlannedBatch]:
    """Neighbouring ranges together, about so many bytes in each batch."""
    batch: list[ExportedRange] = []
    length = 0
    for each in ranges:
        if batch and length + each.end - each.start > batch_bytes:
            yield PlannedBatch(_join_ranges(batch))
            batch, length = [], 0
        batch.append(each)
        length += each.end - each.start
    if batch:
        yield PlannedBatch(_join_ranges(batch))


def _join_ranges(ranges: Sequence[ExportedRange]) -> tuple[ExportedRange, ...]:
    """Ranges of one segment that meet become one."""
    joined: list[ExportedRange] = []
    for each in ranges:
        last = joined[-1] if joined else None
        if last is not None and (last.segment_id, last.end) == (each.segment_id, each.start):
            joined[-1] = replace(last, end=each.end)
        else:
            joined.append(each)
    return tuple(joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBatch:
    """One committed batch."""

    number: int
    stream: str
    ranges: tuple[ExportedRange, ...]
    rows: int
    ends: Mapping[int, int]
    """Where each segment stands behind this batch and all before it, by segment id."""
    finished: tuple[int, ...] = ()
    """Segments that may be gone: they are sealed and wholly exported, or what was not exported may be lost."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Where each file was staged, and its place."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": _MANIFEST_VERSION,
                "number": self.number,
                "stream": self.stream,
                "rows": self.rows,
                "ranges": [
                    {
                        "segment_id": each.segment_id,
                        "segment": each.segment,
                        "start": each.start,
                        "end": each.end,
                    }
                    for each in self.ranges
                ],
                "ends": {str(segment): end for segment, end in self.ends.items()},
                "finished": list(self.finished),
                "files": dict(self.files),
            },
            indent=1,
        )

    @classmethod
    def of_json(cls, text: str, place: str) -> "ExportBatch":
        """Raises CorruptedDataError."""
        try:
            value = json.loads(text)
            if value["version"] != _MANIFEST_VERSION:
                raise ValueError(f"version={value['version']}")
            return cls(
                number=value["number"],
                stream=value["stream"],
                rows=value["rows"],
                ranges=tuple(ExportedRange(**each) for each in value["ranges"]),
                ends={int(segment): end for segment, end in value["ends"].items()},
                finished=tuple(value["finished"]),
                files=value["files"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptedDataError(f"not a manifest place={place}: {error}") from error


class ExportCommitLog:
    """The batches of one export: `open()` once, `close()` in the end."""

    def __init__(self, directory: OutputDirectory, *, stream: str) -> None:
        self._directory = directory
        self._stream = stream
        self._run = random_id(system_random()).hex()
        self._is_alone = False
        self.batches: list[ExportBatch] = []

    def open(self) -> None:
        """Read what is there, and finish what a killed run began.

        Raises JobInUseError; InvalidRequestError if another stream was exported there; CorruptedDataError.
        """
        self._is_alone = self._directory.open()
        while (text := self._directory.read_text(_manifest_place(len(self.batches)))) is not None:
            place = _manifest_place(len(self.batches))
            batch = ExportBatch.of_json(text, place)
            if batch.stream != self._stream:
                raise InvalidRequestError(
                    f"another stream was exported there stream={batch.stream} asked={self._stream}"
                    f" directory={self._directory.url}"
                )
            self.batches.append(batch)
        if self.batches:
            self._publish(self.batches[-1])
        self._remove_staging()

    def close(self) -> None:
        """The next run may begin. Idempotent."""
        self._directory.close()

    @property
    def ends(self) -> Mapping[int, int]:
        """Where every segment stands that was exported."""
        return self.batches[-1].ends if self.batches else {}

    @property
    def finished(self) -> frozenset[int]:
        return frozenset(self.batches[-1].finished if self.batches else ())

    def staging_url(self) -> str:
        """Where the next batch is written to."""
        return f"{self._directory.url}/{self._staging_place(len(self.batches))}"

    def commit(
        self,
        *,
        ranges: Sequence[ExportedRange],
        rows: int,
        ends: Mapping[int, int],
        finished: Sequence[int],
    ) -> ExportBatch:
        """The staged batch counts from now on.

        Raises JobInUseError if another run committed a batch meanwhile, StorageError if what was staged is not there:
        then nothing of it counts, and a later run exports it.
        """
        number = len(self.batches)
        staged = self._staging_place(number)
        files: dict[str, str] = {}
        for source in self._directory.files(staged):
            inside = PurePosixPath(source).relative_to(staged)
            if not any(part.startswith(("_", ".")) for part in inside.parts):
                files[source] = str(inside.with_name(f"batch-{number:06d}-{inside.name}"))
        if rows and not files:
            raise StorageError(
                f"the files of the batch are not where they were written; nothing was committed: start the export again"
                f" batch={number} rows={rows} place={self._directory.url}/{staged}"
            )
        self._directory.sync(staged)
        batch = ExportBatch(
            number=number,
            stream=self._stream,
            ranges=tuple(ranges),
            rows=rows,
            ends=dict(ends),
            finished=tuple(sorted(finished)),
            files=files,
        )
        try:
            self._directory.create_text(_manifest_place(number), batch.to_json())
        except FileExistsError as error:
            raise JobInUseError(
                f"another run of the export committed this batch meanwhile; end one of them, and start again"
                f" batch={number} directory={self._directory.url}"
            ) from error
        self.batches.append(batch)
        self._publish(batch)
        self._remove_staging()
        return batch

    def note_losses(self, *, ends: Mapping[int, int], finished: Iterable[int] = ()) -> None:
        """Of a run that has no batch to say where everything stands; a manifest is made if it stands elsewhere now.

        Raises as commit().
        """
        may_be_gone = self.finished.union(finished)
        if self.batches and (dict(ends) != dict(self.ends) or may_be_gone != self.finished):
            self.commit(ranges=(), rows=0, ends=ends, finished=sorted(may_be_gone))

    def _publish(self, batch: ExportBatch) -> None:
        """Files that are not staged any more were moved before: those that they are for may have taken them away."""
        for source, target in batch.files.items():
            self._directory.move(source, target)

    def _remove_staging(self) -> None:
        """Everything if this run is alone; else what was staged for batches that are committed, and published. What is
        staged for the next batch may be that of a run that is still at work."""
        if self._is_alone:
            self._directory.remove(_STAGING)
            return
        places = {PurePosixPath(each).parts[1] for each in self._directory.files(_STAGING)}
        for place in sorted(places):
            number = place.partition("-")[0]
            if not number.isdecimal() or int(number) < len(self.batches):
                self._directory.remove(f"{_STAGING}/{place}")

    def _staging_place(self, number: int) -> str:
        return f"{_STAGING}/{number:06d}-{self._run}"


def staged_rows(frame: DataFrame, *, ledger: ExportCommitLog, compression: str) -> int:
    """Write the rows of the next batch by day, for its commit; how many they are. Raises what Spark raises."""
    observed = Observation("export")
    counted = frame.observe(observed, sql.count(sql.lit(1)).alias("rows"))
    dated = counted.withColumn("date", sql.to_date("timestamp"))
    dated.write.mode("overwrite").partitionBy("date").option("compression", compression).parquet(
        ledger.staging_url()
    )
    return int(observed.get["rows"])


def _manifest_place(number: int) -> str:
    return f"{_BATCHES}/{number:06d}.json"
