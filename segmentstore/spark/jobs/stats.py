"""The `stats` job: sizes, rates and skew of every stream over time, from layouts and chunk indexes; no block is read.

    driver    layouts -> stretches of neighbouring chunks
    tasks     the indexes of a stretch -> its facts (stream_statistics.py)
    driver    stretches -> segments -> streams -> one HTML file (stats_report.py)
    driver    topics, from the attributes of their partitions (topic_statistics.py); they are not in the file

- The file is written beside its place and renamed: a reader finds the old report or the new one.
- With a directory for its state, a job that was killed goes on: chunks never change, so their facts are read once,
  by whichever run comes first; one run at a time has the directory.
- Segments whose chunks compaction moved meanwhile are looked at again; the others are as they were at first.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from segmentstore.contracts.errors import StorageError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.jobs.job_execution import JobCheckpoint, Progress, TaskRunner, waves
from segmentstore.spark.jobs.stats_report import statistics_page
from segmentstore.spark.jobs.stream_statistics import (
    ChunkSpan,
    ChunkSpanStatistics,
    SegmentStatistics,
    StreamStatistics,
    join_spans,
    read_spans,
    stream_of,
)
from segmentstore.spark.jobs.topic_statistics import TopicStatistics, add_topics
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import (
    Tier2Location,
    open_containers,
    open_for_reading,
)
from tier2.outside_access import SegmentLayout

_ROUNDS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSettings:
    """What one run does."""

    report: Path | None = None
    """Where the HTML goes."""
    prefix: str = ""
    """Only segments whose names begin so."""
    stretch_chunks: int = 64
    """Chunks of one task."""
    state_directory: Path | None = None


@dataclass(slots=True)
class StatsSummary:
    """What a run found."""

    streams: list[StreamStatistics] = field(default_factory=list)
    """Largest first."""
    topics: list[TopicStatistics] = field(default_factory=list)
    """By name."""
    containers: int = 0
    chunks_read: int = 0
    """Indexes that this run asked for."""
    chunks_known: int = 0
    """Looked at by an earlier run with the same state directory."""
    seconds: float = 0.0


class StatsJob:
    """One run."""

    def __init__(
        self,
        *,
        place: Tier2Location,
        tasks: TaskRunner,
        settings: StatsSettings,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """`progress` counts chunks that were looked at."""
        self._place = place
        self._tasks = tasks
        self._settings = settings
        self._progress = progress
        self._facts: dict[str, ChunkSpanStatistics] = {}
        self._ledger: JobCheckpoint | None = None
        self._summary = StatsSummary()

    def run(self) -> StatsSummary:
        """Raises InvalidRequestError, JobInUseError, StorageError, CorruptedDataError."""
        try:
            return self._run()
        finally:
            if self._ledger is not None:
                self._ledger.close()

    def _run(self) -> StatsSummary:
        started = time.perf_counter()
        self._resume()
        layouts = {_segment_of(layout): layout for layout in self._look()}
        self._summary.topics = self._topics()
        known = frozenset(self._facts)
        for _ in range(_ROUNDS_MAX):
            stretches = {key: self._stretches(layout) for key, layout in layouts.items()}
            missing = [
                stretch
                for some in stretches.values()
                for stretch in some
                if stretch.name not in self._facts
            ]
            if not missing:
                self._put_together(layouts, stretches)
                self._summary.chunks_known = sum(
                    len(one.entries)
                    for some in stretches.values()
                    for one in some
                    if one.name in known
                )
                break
            self._read(missing)
            moved = {
                (each.container_id, each.segment_id)
                for each in missing
                if each.name not in self._facts
            }
            if moved:
                newer = {_segment_of(layout): layout for layout in self._look()}
                for key in moved:
                    layouts.pop(key)
                    if key in newer:
                        layouts[key] = newer[key]
        else:
            raise StorageError("chunks move faster than they can be looked at")
        self._write_report()
        self._summary.seconds = time.perf_counter() - started
        return self._summary

    def _look(self) -> list[SegmentLayout]:
        with LoopRunner() as runner:

            async def look() -> list[SegmentLayout]:
                found: list[SegmentLayout] = []
                async with open_for_reading(self._place, runner.executor) as store:
                    readers = await open_containers(store, runner.executor, place=self._place.place)
                    self._summary.containers = len(readers)
                    for reader in readers:
                        async with aclosing(reader.scan_layouts()) as layouts:
                            found += [
                                layout
                                async for layout in layouts
                                if layout.record.name.startswith(self._settings.prefix)
                            ]
                return found

            return runner.run(look())

    def _topics(self) -> list[TopicStatistics]:
        with LoopRunner() as runner:

            async def look() -> dict[str, TopicStatistics]:
                found: dict[str, TopicStatistics] = {}
                async with open_for_reading(self._place, runner.executor) as store:
                    for reader in await open_containers(
                        store, runner.executor, place=self._place.place
                    ):
                        await add_topics(reader, found)
                return found

            return [each for _, each in sorted(runner.run(look()).items())]

    def _stretches(self, layout: SegmentLayout) -> list[ChunkSpan]:
        step = self._settings.stretch_chunks
        return [
            ChunkSpan(
                layout.container_id,
                layout.record.segment_id,
                tuple(layout.entries[first : first + step]),
            )
            for first in range(0, len(layout.entries), step)
        ]

    def _read(self, stretches: Sequence[ChunkSpan]) -> None:
        total = sum(len(stretch.entries) for stretch in stretches)
        done = 0
        self._progress(0, total)
        work = partial(read_spans, self._place)
        tasks = list(waves(stretches, max(1, len(stretches) // (self._tasks.wave_tasks * 4))))
        for wave in waves(tasks, self._tasks.wave_tasks):
            written: dict[str, object] = {}
            for some, found in zip(wave, self._tasks.run(work, wave), strict=True):
                for stretch, facts in zip(some, found, strict=True):
                    done += len(stretch.entries)
                    if not facts.moved:
                        self._facts[stretch.name] = facts
                        written[stretch.name] = facts.as_json()
            if self._ledger is not None:
                self._ledger.add(written)
            self._progress(done, total)
        self._summary.chunks_read += total

    def _put_together(
        self,
        layouts: Mapping[tuple[int, int], SegmentLayout],
        stretches: Mapping[tuple[int, int], Sequence[ChunkSpan]],
    ) -> None:
        streams: dict[str, StreamStatistics] = {}
        for key, layout in layouts.items():
            record, some = layout.record, stretches[key]
            segment = SegmentStatistics(
                name=record.name,
                sealed=record.sealed,
                length=record.length - record.start_offset,
                chunk_sizes=[entry.length for entry in layout.entries],
                stored_bytes=sum(entry.size for entry in layout.entries),
                facts=join_spans(record, [self._facts[one.name] for one in some]),
            )
            name = stream_of(record.name)
            streams.setdefault(name, StreamStatistics(name)).segments.append(segment)
        self._summary.streams = sorted(
            streams.values(), key=lambda stream: (-stream.length, stream.name)
        )

    def _write_report(self) -> None:
        report = self._settings.report
        if report is None:
            return
        page = statistics_page(
            self._summary.streams,
            place=self._place.place,
            made_ms=SystemWallClock().now_ms(),
            containers=self._summary.containers,
        )
        report.parent.mkdir(parents=True, exist_ok=True)
        beside = report.with_name(f".{report.name}.{os.getpid()}")
        beside.write_text(page)
        beside.replace(report)

    def _resume(self) -> None:
        directory = self._settings.state_directory
        if directory is None:
            return
        self._ledger = JobCheckpoint(
            directory,
            identity={
                "job": "stats",
                "tier2": self._place.place,
                "endpoint": self._place.endpoint,
            },
        )
        for entry in self._ledger.open():
            for name, value in entry.items():
                assert isinstance(value, dict), f"facts are an object found={value!r}"
                self._facts[name] = ChunkSpanStatistics.of_json(value)


def _segment_of(layout: SegmentLayout) -> tuple[int, int]:
    return layout.container_id, int(layout.record.segment_id)
