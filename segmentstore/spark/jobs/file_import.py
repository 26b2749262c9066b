"""The `import` job: rows of Parquet, JSON, CSV or text files as events of a stream, each row once.

    plan    the input files that were not planned yet -> batches of files, with their schema (job_execution.py)
    batch   spark.read of its files -> key and value -> the exactly-once sink, as one version of this import

- A batch is one write with txnAppId and txnVersion: the store itself remembers it, so a run that was killed between
  the commit and its own note of it writes the batch again, and nothing is added.
- The plan is written down before its first batch: a later run has the same files under the same version, whatever was
  put beside them. Files that are new then are planned behind them. So the directory of the state belongs to the
  import; with another one everything is imported again.
- One run at a time has that directory: two that plan side by side would give one file two versions, or none.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.spark.jobs.job_execution import Entry, JobCheckpoint

Progress = Callable[[int, int], None]
"""Called with files imported so far and files to import in all."""

FORMATS: Final = ("parquet", "json", "csv", "text")
_READ_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {"header": "true", "inferSchema": "true"}
}
_PASSED: Final = ("timestamp", "headers")


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

    def as_entry(self) -> Entry:
        return {
            "plan": [list(batch) for batch in self.batches],
            "application": self.application,
            "schema": self.schema,
        }

    @classmethod
    def of_entry(cls, entry: Entry) -> "ImportPlan":
        batches = entry["plan"]
        assert isinstance(batches, list), f"a plan is a list of batches found={batches!r}"
        return cls(
            str(entry["application"]),
            str(entry["schema"]),
            tuple(tuple(str(file) for file in batch) for batch in batches),
        )


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
        """`sink_options`: which stream, and whose: options of a write without txnAppId and txnVersion."""
        if settings.format not in FORMATS:
            raise InvalidRequestError(
                f"a format is one of {', '.join(FORMATS)} given={settings.format}"
            )
        self._spark = spark
        self._sink_options = dict(sink_options)
        self._settings = settings
        self._progress = progress
        stream = self._sink_options.get("stream", "")
        self._ledger = JobCheckpoint(
            settings.state_directory,
            identity={
                "job": "import",
                "stream": stream,
                "format": settings.format,
                "key": settings.key_column,
                "value": settings.value_column,
            },
        )

    def run(self) -> ImportSummary:
        """Raises InvalidRequestError, JobInUseError, and what Spark and the sink raise."""
        entries = self._ledger.open()
        try:
            return self._run(entries)
        finally:
            self._ledger.close()

    def _run(self, entries: Sequence[Entry]) -> ImportSummary:
        plans = [ImportPlan.of_entry(entry) for entry in entries if "plan" in entry]
        done = {entry["version"] for entry in entries if "version" in entry}
        new = self._plan(plans)
        if new is not None:
            self._ledger.add(new.as_entry())
            plans.append(new)
        summary = ImportSummary(earlier_batches=len(done))
        waiting = [each for each in versions_of(plans) if each[0] not in done]
        total = sum(len(files) for _, _, files in waiting)
        files_done = 0
        self._progress(0, total)
        for version, plan, files in waiting:
            summary.batches.append(self._import(version, plan, files))
            files_done += len(files)
            self._progress(files_done, total)
        return summary

    def _plan(self, plans: Sequence[ImportPlan]) -> ImportPlan | None:
        """Of the files that no plan has; None if there are none."""
        frame = self._reader().load(list(self._settings.inputs))
        planned = {file for plan in plans for batch in plan.batches for file in batch}
        files = sorted(file for file in frame.inputFiles() if file not in planned)
        if not files:
            return None
        application = (
            plans[0].application if plans else f"import-{random_id(system_random()).hex()}"
        )
        step = self._settings.batch_files
        batches = [tuple(files[first : first + step]) for first in range(0, len(files), step)]
        return ImportPlan(application, frame.schema.json(), tuple(batches))

    def _reader(self) -> DataFrameReader:
        options = {**_READ_OPTIONS.get(self._settings.format, {}), **self._settings.read_options}
        return self._spark.read.format(self._settings.format).options(**options)

    def _import(self, version: int, plan: ImportPlan, files: Sequence[str]) -> ImportedBatch:
        started = time.perf_counter()
        schema = StructType.fromJson(json.loads(plan.schema))
        frame = self._reader().schema(schema).load(list(files))
        observed = Observation("import")
        events = events_of(
            frame, key_column=self._settings.key_column, value_column=self._settings.value_column
        ).observe(observed, sql.count(sql.lit(1)).alias("rows"))
        events.write.format("segmentstore").mode("append").options(
            **self._sink_options, txnAppId=plan.application, txnVersion=str(version)
        ).save()
        rows = int(observed.get["rows"])
        self._ledger.add({"version": version, "rows": rows, "files": len(files)})
        return ImportedBatch(version, len(files), rows, time.perf_counter() - started)


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


def _bytes_of(frame: DataFrame, column: str, name: str) -> Column:
    """Bytes and text as they are, anything else as Spark writes it."""
    kind = frame.schema[column].dataType.simpleString()
    found = sql.col(f"`{column}`")
    return (found if kind in ("binary", "string") else found.cast("string")).alias(name)


def _row_as_json(frame: DataFrame) -> Column:
    columns = [sql.col(f"`{name}`") for name in frame.columns]
    return sql.to_json(sql.struct(*columns)).alias("value")
