"""The `import` job: rows of Parquet, JSON, CSV or text files as events of a stream or records of a topic, each once.

    plan    the input files that were not planned yet -> batches of files, with their schema (job_execution.py)
    batch   spark.read of its files (input_files.py) -> key and value -> the exactly-once sink, as one version

- A batch is one write with txnAppId and txnVersion: the store itself remembers it, so a run that was killed between
  the commit and its own note of it writes the batch again, and nothing is added.
- The plan is written down before its first batch: a later run has the same files under the same version, whatever was
  put beside them. Files that are new then are planned behind them. So the directory of the state belongs to the
  import; with another one everything is imported again.
- One run at a time has that directory: two that plan side by side would give one file two versions, or none.
- The stream has to know of every version that the directory calls imported: else it is the stream of another store, or
  one that was made again under its name, and the rows are not in it. The address of the controller may change.
- A file that was planned and is gone ends the run, unless the caller passes over it; then it is written down as not
  imported, and planned anew when it is back. What a batch passes over is written down before its rows are: a run that
  dies behind the commit leaves no batch of which it is unknown which files it had.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import FileSystem
from segmentstore.spark.jobs.input_files import FORMATS, InputFiles
from segmentstore.spark.jobs.job_execution import Entry, JobCheckpoint, Progress
from segmentstore.spark.sink.sink_options import parse_sink_options
from segmentstore.spark.sink.writer import last_version_of
from segmentstore.spark.topics.topic_options import writes_topics
from segmentstore.spark.topics.topic_sink_options import parse_topic_sink_options
from segmentstore.spark.topics.topic_writer import settled_version_of

_PASSED: Final = ("timestamp", "headers")
_NAMED_MAX = 5
_PASSING: Final = "passes_over"
"""In an entry that says, with the version, what a batch is going to pass over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSettings:
    """What one import does."""

    state_directory: Path
    inputs: tuple[str, ...]
    """Files, directories or patterns, as Spark takes them."""
    format: str = "parquet"
    read_options: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's reader."""
    key_column: str = ""
    """Routing key; empty: the column `key` if there is one, else none."""
    value_column: str = ""
    """What is written; empty: the column `value` if there is one, else the whole row as JSON."""
    batch_files: int = 16
    skip_missing: bool = False
    """Go on without files that were planned and are gone."""


@dataclass(slots=True)
class ImportedBatch:
    """One row of the report."""

    version: int
    files: int
    rows: int
    seconds: float


@dataclass(slots=True)
class ImportSummary:
    """What a run did."""

    batches: list[ImportedBatch] = field(default_factory=list)
    earlier_batches: int = 0

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.batches)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """Batches that were written down together."""

    application: str
    schema: str
    """JSON of Spark."""
    batches: tuple[tuple[str, ...], ...]
    base: str | None = None
    """Below which directories name partitions; None in plans of older versions, which did not know it."""

    def as_entry(self) -> Entry:
        entry: dict[str, object] = {
            "plan": [list(batch) for batch in self.batches],
            "application": self.application,
            "schema": self.schema,
        }
        return entry if self.base is None else {**entry, "base": self.base}

    @classmethod
    def of_entry(cls, entry: Entry) -> "ImportPlan":
        batches = entry["plan"]
        assert isinstance(batches, list), f"a plan is a list of batches found={batches!r}"
        base = entry.get("base")
        return cls(
            str(entry["application"]),
            str(entry["schema"]),
            tuple(tuple(str(file) for file in batch) for batch in batches),
            None if base is None else str(base),
        )


class ImportSteps(Protocol):
    """What an import does besides writing down what it does."""

    def found(self) -> Sequence[str]:
        """All input files that there are, in order."""

    def planned(self, files: Sequence[str], application: str) -> Sequence[ImportPlan]:
        """Batches of these files."""

    def missing(self, files: Sequence[str]) -> Sequence[str]:
        """Those that are gone."""

    def last_version(self, application: str) -> int | None:
        """What the stream knows to be committed."""

    def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
        """Commit the rows of the files as a version, unless the stream has it; how many rows they have."""


class SparkImport:
    """The steps on Spark, into a stream."""

    def __init__(
        self, spark: SparkSession, sink_options: Mapping[str, str], settings: ImportSettings
    ) -> None:
        self._sink_options = sink_options
        self._settings = settings
        self._files = InputFiles(
            spark,
            inputs=settings.inputs,
            file_format=settings.format,
            read_options=settings.read_options,
        )

    def found(self) -> Sequence[str]:
        return self._files.found()

    def planned(self, files: Sequence[str], application: str) -> Sequence[ImportPlan]:
        step = self._settings.batch_files
        plans: list[ImportPlan] = []
        for base, some in self._files.alike(files):
            schema = self._files.schema_of(some, base=base).json()
            batches = tuple(tuple(some[at : at + step]) for at in range(0, len(some), step))
            plans.append(ImportPlan(application, schema, batches, base))
        return plans

    def missing(self, files: Sequence[str]) -> Sequence[str]:
        return self._files.missing(files)

    def last_version(self, application: str) -> int | None:
        if writes_topics(self._sink_options):
            return settled_version_of(self._sink_options, application)
        return last_version_of(self._sink_options, application)

    def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
        schema = StructType.fromJson(json.loads(plan.schema))
        settings = self._settings
        events = events_of(
            self._files.read(files, schema, base=plan.base),
            key_column=settings.key_column,
            value_column=settings.value_column,
        )
        if writes_topics(self._sink_options):
            events = as_topic_headers(events)
        observed = Observation("import") if files else None
        if observed is not None:
            events = events.observe(observed, sql.count(sql.lit(1)).alias("rows"))
        events.write.format("segmentstore").mode("append").options(
            **self._sink_options, txnAppId=plan.application, txnVersion=str(version)
        ).save()
        return 0 if observed is None else int(observed.get["rows"])


class ImportJob:
    """One run."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        sink_options: Mapping[str, str],
        settings: ImportSettings,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """`progress` counts files.

        `sink_options`: which stream or topic, and whose: options of a write without txnAppId and txnVersion.
        """
        if settings.format not in FORMATS:
            raise InvalidRequestError(
                f"a format is one of {', '.join(FORMATS)} given={settings.format}"
            )
        self._run = ImportRun(
            steps=SparkImport(spark, dict(sink_options), settings),
            sink_options=sink_options,
            settings=settings,
            progress=progress,
        )

    def run(self) -> ImportSummary:
        """Raises InvalidRequestError, JobInUseError, and what Spark and the sink raise."""
        return self._run.run()


class ImportRun:
    """What is planned, written and written down, in which order. Knows no Spark."""

    def __init__(
        self,
        *,
        steps: ImportSteps,
        sink_options: Mapping[str, str],
        settings: ImportSettings,
        progress: Progress = lambda _done, _total: None,
        files: FileSystem | None = None,
    ) -> None:
        """`files`: those of the state directory."""
        self._steps = steps
        self._settings = settings
        self._progress = progress
        self._stream = _target_of(sink_options)
        self._ledger = JobCheckpoint(
            settings.state_directory,
            identity={
                "job": "import",
                "stream": sink_options.get("stream", "") or self._stream,
                "scope": self._stream.partition("/")[0],
                "format": settings.format,
                "key": settings.key_column,
                "value": settings.value_column,
            },
            files=files,
        )

    def run(self) -> ImportSummary:
        """Raises as ImportJob.run()."""
        entries = self._ledger.open()
        try:
            return self._run(entries)
        finally:
            self._ledger.close()

    def _run(self, entries: Sequence[Entry]) -> ImportSummary:
        plans = [ImportPlan.of_entry(entry) for entry in entries if "plan" in entry]
        notes = {_version_of(entry): entry for entry in entries if "version" in entry}
        # The last one holds: each was written down when the stream did not have the version.
        passed_over = {
            _version_of(entry, _PASSING): _missing_of(entry)
            for entry in entries
            if _PASSING in entry
        }
        known = self._steps.last_version(plans[0].application) if plans else None
        self._require_known(max(notes, default=0), known)
        # Of batches that are written: a note has what was passed over; without one, what was to be.
        left_out = {
            version: each for version, each in passed_over.items() if version <= (known or 0)
        }
        left_out |= {version: _missing_of(note) for version, note in notes.items()}
        for new in self._new_plans(plans, left_out):
            self._ledger.add(new.as_entry())
            plans.append(new)
        summary = ImportSummary(earlier_batches=len(notes))
        waiting = [each for each in versions_of(plans) if each[0] not in notes]
        total = sum(len(files) for _, _, files in waiting)
        files_done = 0
        self._progress(0, total)
        for version, plan, files in waiting:
            is_known = known is not None and version <= known
            missing = passed_over.get(version, ())
            if not is_known:
                missing = self._pass_over(version, files, before=missing)
            summary.batches.append(self._import(version, plan, files, missing, is_known=is_known))
            files_done += len(files)
            self._progress(files_done, total)
        return summary

    def _require_known(self, noted: int, known: int | None) -> None:
        if noted > (known or 0):
            raise InvalidRequestError(
                "the stream does not know of rows that were imported into it: it is that of another store, was made"
                " again, or came back from an older copy; with another state directory everything is imported anew"
                f" stream={self._stream} imported={noted} known={known or 0} state={self._settings.state_directory}"
            )

    def _new_plans(
        self, plans: Sequence[ImportPlan], left_out: Mapping[int, Sequence[str]]
    ) -> Sequence[ImportPlan]:
        """Of the files that no plan has. One that was passed over, and is back, no plan has either, from then on."""
        planned: set[str] = set()
        for version, _, files in versions_of(plans):
            passed_over = left_out.get(version, ())
            planned.difference_update(passed_over)
            planned.update(each for each in files if each not in passed_over)
        new = [each for each in self._steps.found() if each not in planned]
        if not new:
            return ()
        application = (
            plans[0].application if plans else f"import-{random_id(system_random()).hex()}"
        )
        return self._steps.planned(new, application)

    def _pass_over(
        self, version: int, files: Sequence[str], *, before: Sequence[str]
    ) -> Sequence[str]:
        """Files of the batch that are gone; written down if the batch was to pass over others so far."""
        missing = tuple(self._steps.missing(files))
        if missing:
            self._require_skipping(missing)
        if missing != tuple(before):
            self._ledger.add({_PASSING: version, "missing": list(missing)})
        return missing

    def _import(
        self,
        version: int,
        plan: ImportPlan,
        files: Sequence[str],
        missing: Sequence[str],
        *,
        is_known: bool,
    ) -> ImportedBatch:
        """Write the batch without the files that it passes over, and note it; of a known one only note it."""
        started = time.perf_counter()
        written = [each for each in files if each not in missing]
        rows = 0
        # Of a batch that the stream has, rows are read to be counted alone.
        if not is_known or not self._steps.missing(written):
            rows = self._steps.write(version, plan, written)
        note: dict[str, object] = {"version": version, "rows": rows, "files": len(written)}
        if missing:
            note["missing"] = list(missing)
        self._ledger.add(note)
        return ImportedBatch(version, len(files), rows, time.perf_counter() - started)

    def _require_skipping(self, missing: Sequence[str]) -> None:
        if not self._settings.skip_missing:
            named = ", ".join(missing[:_NAMED_MAX])
            more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
            raise InvalidRequestError(
                "files that were planned for the import are gone; bring them back, or pass over them with"
                f" --skip-missing files={named}{more}"
            )


def _target_of(sink_options: Mapping[str, str]) -> str:
    """What rows are written to, for messages. Raises InvalidRequestError."""
    if not writes_topics(sink_options):
        return parse_sink_options(sink_options).stream_name
    topic = parse_topic_sink_options(sink_options).topic
    if not topic:
        raise InvalidRequestError("an import is into one topic")
    return f"topic {topic}"


def _version_of(entry: Entry, field: str = "version") -> int:
    version = entry[field]
    assert isinstance(version, int), f"a version is a number {entry!r}"
    return version


def _missing_of(entry: Entry) -> Sequence[str]:
    """Files that a batch passed over, or is to pass over."""
    missing = entry.get("missing", ())
    assert isinstance(missing, list | tuple), f"a list of files {missing!r}"
    return tuple(str(each) for each in missing)


def versions_of(plans: Sequence[ImportPlan]) -> Iterator[tuple[int, ImportPlan, tuple[str, ...]]]:
    """Every batch of every plan with its version: 1, 2, 3 and so on in the order in which they were planned."""
    version = 0
    for plan in plans:
        for files in plan.batches:
            version += 1
            yield version, plan, files


def events_of(frame: DataFrame, *, key_column: str, value_column: str) -> DataFrame:
    """What the sink takes: value, and key, timestamp and headers where they are. Raises InvalidRequestError."""
    for column in (key_column, value_column):
        if column and column not in frame.columns:
            raise InvalidRequestError(
                f"the files have no column {column}; they have {', '.join(frame.columns)}"
            )
    key = key_column or ("key" if "key" in frame.columns else "")
    value = value_column or ("value" if "value" in frame.columns else "")
    selected = [_bytes_of(frame, value, "value") if value else _row_as_json(frame)]
    if key:
        selected.append(_bytes_of(frame, key, "key"))
    if value == "value":
        # Files that an export wrote bring what records have besides.
        selected += [sql.col(name) for name in _PASSED if name in frame.columns]
    return frame.select(*selected)


def as_topic_headers(frame: DataFrame) -> DataFrame:
    """Headers of streams' records have names where those of topics have keys."""
    if "headers" not in frame.columns:
        return frame
    kind = "array<struct<key:string,value:binary>>"
    return frame.withColumn("headers", sql.col("headers").cast(kind))


def _bytes_of(frame: DataFrame, column: str, name: str) -> Column:
    """Bytes and text as they are, anything else as Spark writes it."""
    kind = frame.schema[column].dataType.simpleString()
    found = sql.col(f"`{column}`")
    return (found if kind in ("binary", "string") else found.cast("string")).alias(name)


def _row_as_json(frame: DataFrame) -> Column:
    columns = [sql.col(f"`{name}`") for name in frame.columns]
    return sql.to_json(sql.struct(*columns)).alias("value")
