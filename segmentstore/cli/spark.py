"""`segmentstore spark submit JOB`: the data pipeline on Spark.

The jobs prove, compact and describe a Tier 2, and export streams to files and import files into streams. The same jobs
run under a spark-submit of one's own: `spark-submit segmentstore/cli/spark_main.py JOB ...`.

Each command imports its job behind `open_spark`, which says what to do where Spark or Java is not installed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from segmentstore.cli.config import resolve
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.options import BYTES, SOME_BYTES
from segmentstore.cli.output import Progress, Row, output_option, print_rows, progress_bar
from segmentstore.cli.spark_session import open_spark, pairs_of, spark_options
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.tier2_access import Tier2Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Job: TypeAlias = Callable[..., int]

_SHOWN_MAX = 50
"""Findings that are printed; all of them are counted."""

state_option = click.option(
    "--state",
    "state_directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that remembers what was done, for a run that is killed.",
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What every job is told: where Tier 2 is, where Spark is, and how results are shown."""

    place: str
    endpoint: str
    region: str
    quiet: bool
    output: str
    master: str
    configuration: tuple[str, ...]

    @property
    def tier2(self) -> Tier2Location:
        """As the jobs take it; a bucket's endpoint may also be in SEGMENTSTORE_S3_ENDPOINT_URL."""
        endpoint = self.endpoint
        if self.place.startswith("s3://") and not endpoint:
            endpoint = resolve(None, ()).settings.s3.endpoint_url
        return Tier2Location(place=self.place, endpoint=endpoint, region=self.region)

    def open_spark(self, name: str) -> "AbstractContextManager[SparkSession]":
        """Raises InvalidRequestError."""
        return open_spark(name, master=self.master, configuration=self.configuration)

    def progress_bar(self, label: str, unit: str) -> AbstractContextManager[Progress]:
        return progress_bar(label, unit, quiet=self.quiet)


def job_options(*, tier2: bool = True, tier2_required: bool = True) -> Callable[[_Job], _Job]:
    """The options of every job, gathered: the job is called with JobOptions and the options of its own."""
    tier2_option = partial(
        click.option,
        "--tier2",
        "place",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="A data directory, a file:// URL of one, or a bucket.",
    )
    place = (
        tier2_option(required=True) if tier2_required else tier2_option(default=""),
        click.option("--endpoint", default="", metavar="URL", help="Of the bucket."),
        click.option("--region", default="us-east-1", show_default=True, help="Of the bucket."),
    )
    options = (
        *(place if tier2 else ()),
        click.option("--quiet", is_flag=True, help="No progress bar."),
        output_option,
        spark_options,
    )

    def decorated(job: _Job) -> _Job:
        @wraps(job)
        def command(
            *,
            quiet: bool,
            output: str,
            master: str,
            configuration: tuple[str, ...],
            place: str = "",
            endpoint: str = "",
            region: str = "",
            **own: object,
        ) -> int:
            given = JobOptions(place, endpoint, region, quiet, output, master, configuration)
            return job(given, **own)

        found: _Job = command
        for option in reversed(options):
            found = option(found)
        return found

    return decorated


@click.group()
def spark() -> None:
    """Run the data pipeline on Spark."""


@spark.group()
def submit() -> None:
    """Submit a job. A job that was killed is started again with the same words, and goes on."""


@submit.command()
@click.option(
    "--task-bytes",
    type=SOME_BYTES,
    default="64MiB",
    show_default=True,
    help="Stored bytes of one task.",
)
@click.option("--no-framing", is_flag=True, help="Do not walk through the events.")
@state_option
@job_options()
def verify(
    options: JobOptions,
    *,
    task_bytes: int,
    no_framing: bool,
    state_directory: Path | None,
) -> int:
    """Prove every byte of a Tier 2: checksums, layouts, references, event framing, orphans.

    Ends with 7 if anything is damaged. The service may be at work meanwhile.
    """
    with options.open_spark("verify") as session:
        from segmentstore.spark.jobs.job_execution import SparkTaskRunner
        from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings

        with options.progress_bar("verify", "B") as progress:
            summary = VerifyJob(
                place=options.tier2,
                tasks=SparkTaskRunner(session),
                settings=VerifySettings(
                    task_bytes=task_bytes,
                    framing=not no_framing,
                    state_directory=state_directory,
                ),
                progress=progress,
            ).run()
    rows: list[Row] = [
        {
            "container": row.container,
            "root": row.root_version,
            "segments": row.segments,
            "segment_bytes": row.segment_bytes,
            "chunks": row.chunks,
            "stored_bytes": row.stored_bytes,
            "events": row.events,
            "files": row.files,
            "orphans": row.orphans,
            "damages": row.damages,
        }
        for row in summary.containers.values()
    ]
    print_rows(rows, options.output)
    say_findings("orphan", summary.orphans)
    say_findings("damage", summary.damages, error=True)
    resumed = f", {summary.resumed_chunks} chunks an earlier run" if summary.resumed_chunks else ""
    click.echo(
        f"proved {summary.scrubbed_bytes / 1e6:.1f} MB in {summary.seconds:.1f} s,"
        f" {summary.scrubbed_bytes / 1e6 / summary.seconds:.0f} MB/s{resumed}",
        err=True,
    )
    return ExitCode.OK if summary.sound else ExitCode.CORRUPT


@submit.command()
@click.option("--server", default="", metavar="URL", help="HTTP address of the running store.")
@click.option(
    "--data",
    "data_directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data directory of a store that is off: its next epoch is claimed.",
)
@click.option(
    "--chunk-bytes",
    type=SOME_BYTES,
    default="64MiB",
    show_default=True,
    help="Of the chunks that come out.",
)
@click.option(
    "--min-bytes",
    type=BYTES,
    default="1MiB",
    show_default=True,
    help="Leave shorter stretches alone.",
)
@click.option("--prefix", default="", help="Only segments whose names begin so.")
@click.option("--dry-run", is_flag=True, help="Say what would be looked at.")
@job_options()
def compact(
    options: JobOptions,
    *,
    server: str,
    data_directory: Path | None,
    chunk_bytes: int,
    min_bytes: int,
    prefix: str,
    dry_run: bool,
) -> int:
    """Rewrite small or LZ4 chunks into large zstd ones, and propose the swaps to the owner.

    The owner checks every byte before it publishes. Running it again finds nothing to do.
    """
    is_named_twice = bool(server) and data_directory is not None
    is_named = bool(server) or data_directory is not None
    if is_named_twice or not (is_named or dry_run):
        raise InvalidRequestError(
            "name the owner: --server URL of the running store, or --data DIR of one that is off"
        )
    with options.open_spark("compact") as session:
        from segmentstore.spark.jobs.compact import CompactJob, CompactSettings
        from segmentstore.spark.jobs.job_execution import SparkTaskRunner
        from segmentstore.spark.jobs.swap_owners import open_owner

        tier2 = options.tier2
        open_owners = None
        if data_directory is not None:
            from segmentstore.host.offline_owner import OfflineOwner

            open_owners = partial(OfflineOwner, data_directory=data_directory)
        with (
            open_owner(tier2, server=server, open_owners=open_owners) as owner,
            options.progress_bar("compact", "B") as progress,
        ):
            summary = CompactJob(
                place=tier2,
                tasks=SparkTaskRunner(session),
                owner=owner,
                settings=CompactSettings(
                    chunk_bytes=chunk_bytes,
                    window_bytes_min=min_bytes,
                    prefix=prefix,
                    dry_run=dry_run,
                ),
                progress=progress,
            ).run()
    rows: list[Row] = [
        {
            "segment": row.segment,
            "windows": row.windows,
            "swapped": row.swapped,
            "kept": row.kept,
            "refused": row.refused,
            "chunks": f"{row.chunks_before} -> {row.chunks_after}",
            "stored_bytes": f"{row.stored_bytes_before} -> {row.stored_bytes_after}",
        }
        for row in summary.segments.values()
    ]
    print_rows(rows, options.output)
    say_findings("refused", summary.refusals)
    click.echo(
        f"swapped {summary.swapped} windows in {summary.seconds:.1f} s,"
        f" {summary.read_bytes / 1e6:.1f} MB looked at",
        err=True,
    )
    return ExitCode.OK


@submit.command()
@click.option(
    "--report",
    default="stats.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The HTML file to write.",
)
@click.option("--prefix", default="", help="Only segments whose names begin so.")
@click.option(
    "--task-chunks",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Neighbouring chunks of one task.",
)
@state_option
@job_options()
def stats(
    options: JobOptions,
    *,
    report: Path,
    prefix: str,
    task_chunks: int,
    state_directory: Path | None,
) -> int:
    """Sizes, rates and skew of every stream over time, as a table and an HTML report with charts.

    Of a topic the table has its partitions, records and files: bytes are those of batches that are in no file yet.
    """
    with options.open_spark("stats") as session:
        from segmentstore.spark.jobs.job_execution import SparkTaskRunner
        from segmentstore.spark.jobs.stats import StatsJob, StatsSettings

        with options.progress_bar("stats", " chunks") as progress:
            summary = StatsJob(
                place=options.tier2,
                tasks=SparkTaskRunner(session),
                settings=StatsSettings(
                    report=report,
                    prefix=prefix,
                    stretch_chunks=task_chunks,
                    state_directory=state_directory,
                ),
                progress=progress,
            ).run()
    rows: list[Row] = [
        {
            "stream": stream.name,
            "segments": len(stream.segments),
            "bytes": stream.length,
            "stored_bytes": stream.stored_bytes,
            "ratio": round(stream.length / stream.stored_bytes, 2) if stream.stored_bytes else None,
            "events": stream.events,
            "chunks": stream.chunks,
            "skew": round(stream.skew, 2),
        }
        for stream in summary.streams
    ]
    rows += [
        {
            "stream": f"topic {topic.name}",
            "segments": len(topic.partitions),
            "bytes": topic.batch_bytes,
            "stored_bytes": topic.file_bytes,
            "ratio": None,
            "events": topic.offsets,
            "chunks": topic.files,
            "skew": round(topic.skew, 2),
        }
        for topic in summary.topics
    ]
    print_rows(rows, options.output)
    resumed = f", {summary.chunks_known} known from an earlier run" if summary.chunks_known else ""
    click.echo(
        f"looked at {summary.chunks_read} chunks in {summary.seconds:.1f} s{resumed}", err=True
    )
    click.echo(f"report: {report}", err=True)
    return ExitCode.OK


@submit.command()
@click.argument("destination", metavar="OUT")
@click.option("--stream", default="", metavar="SCOPE/STREAM", help="The stream to write out.")
@click.option("--topic", default="", metavar="NAME", help="A topic of records instead of a stream.")
@click.option(
    "--controller", default="", metavar="tcp://HOST:PORT", help="For what is not in Tier 2 yet."
)
@click.option(
    "--kafka",
    default="",
    metavar="HOST:PORT",
    help="The same of a topic: where the service has --kafka.",
)
@click.option("--text", is_flag=True, help="Keys and values as text instead of bytes.")
@click.option(
    "--batch-bytes",
    type=SOME_BYTES,
    default="1GiB",
    show_default=True,
    help="Of the stream, in one batch.",
)
@click.option("--allow-data-loss", is_flag=True, help="Go on without what retention took away.")
@job_options(tier2_required=False)
def export(
    options: JobOptions,
    *,
    destination: str,
    stream: str,
    topic: str,
    controller: str,
    kafka: str,
    text: bool,
    batch_bytes: int,
    allow_data_loss: bool,
) -> int:
    """Write the events of a stream, or the records of a topic, to OUT as Parquet files by day; a later run adds what
    is new.

    OUT/_batches tells which ranges of which segments each batch holds: every event is there once.
    """
    if bool(stream) == bool(topic):
        raise InvalidRequestError("an export is of a stream or of a topic: --stream or --topic")
    if stream and kafka:
        raise InvalidRequestError("--kafka is for topics; --controller has the rest of a stream")
    if topic and controller:
        raise InvalidRequestError("--controller is for streams; --kafka has the rest of a topic")
    given = {
        "stream": stream,
        "topic": topic,
        "tier2": options.place,
        "controller": controller,
        "kafka": kafka,
        "endpoint": options.endpoint,
    }
    with options.open_spark("export") as session:
        from segmentstore.spark.jobs.export import ExportJob, ExportSettings
        from segmentstore.spark.jobs.output_directory import open_output
        from segmentstore.spark.jobs.topic_export import TopicExportJob

        job = TopicExportJob if topic else ExportJob
        with options.progress_bar("export", "offsets" if topic else "B") as progress:
            summary = job(
                spark=session,
                source_options={**{k: v for k, v in given.items() if v}, "region": options.region},
                directory=open_output(session, destination),
                settings=ExportSettings(
                    batch_bytes=batch_bytes, text=text, fail_on_data_loss=not allow_data_loss
                ),
                progress=progress,
            ).run()
    rows: list[Row] = [
        {
            "batch": each.batch,
            "segments": each.segments,
            "events": each.rows,
            "stream_bytes": each.stream_bytes,
            "files": each.files,
            "seconds": round(each.seconds, 1),
        }
        for each in summary.batches
    ]
    print_rows(rows, options.output)
    click.echo(
        f"exported {summary.rows} events; {summary.earlier_rows} were there before", err=True
    )
    return ExitCode.OK


@submit.command("import")
@click.argument("inputs", nargs=-1, required=True)
@click.option("--stream", default="", metavar="SCOPE/STREAM", help="Where the rows go.")
@click.option("--topic", default="", metavar="NAME", help="A topic of records, with --kafka.")
@click.option(
    "--controller", required=True, metavar="tcp://HOST:PORT", help="Address of the controller."
)
@click.option("--kafka", default="", metavar="HOST:PORT", help="Where the service has --kafka.")
@click.option(
    "--state",
    "state_directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that remembers which files were imported; it belongs to this import.",
)
@click.option(
    "--format",
    "file_format",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "json", "csv", "text"]),
    help="Of the files.",
)
@click.option(
    "--key", "key_column", default="", metavar="COLUMN", help="Else `key`, if it is there."
)
@click.option(
    "--value",
    "value_column",
    default="",
    metavar="COLUMN",
    help="Else `value`, if it is there, without the other columns; else the row as JSON.",
)
@click.option(
    "--batch-files",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Files that are written together.",
)
@click.option("--segments", type=click.IntRange(min=1), help="Create the stream, if it is missing.")
@click.option("--records", is_flag=True, help="Write records: with key, headers and time.")
@click.option("--skip-missing", is_flag=True, help="Pass over planned files that are gone.")
@click.option("--read-option", multiple=True, metavar="KEY=VALUE", help="Of Spark's reader.")
@job_options(tier2=False)
def import_files(
    options: JobOptions,
    *,
    inputs: tuple[str, ...],
    stream: str,
    topic: str,
    controller: str,
    kafka: str,
    state_directory: Path,
    file_format: str,
    key_column: str,
    value_column: str,
    batch_files: int,
    segments: int | None,
    records: bool,
    skip_missing: bool,
    read_option: tuple[str, ...],
) -> int:
    """Write the rows of files to a stream or a topic, each once; a later run adds the files that are new."""
    if bool(stream) == bool(topic):
        raise InvalidRequestError("an import is into a stream or a topic: --stream or --topic")
    if topic and (segments is not None or records):
        raise InvalidRequestError("--segments and --records are for streams")
    if stream and kafka:
        raise InvalidRequestError("--kafka is for topics")
    sink = {"controller": controller}
    sink |= {"topic": topic, "kafka": kafka} if topic else {"stream": stream}
    if segments is not None:
        sink |= {"createIfMissing": "true", "segments": str(segments)}
    if records:
        sink["content"] = "record"
    with options.open_spark("import") as session:
        from segmentstore.spark.jobs.file_import import ImportJob, ImportSettings

        with options.progress_bar("import", " files") as progress:
            summary = ImportJob(
                spark=session,
                sink_options=sink,
                settings=ImportSettings(
                    state_directory=state_directory,
                    inputs=inputs,
                    format=file_format,
                    read_options=pairs_of(read_option, "--read-option"),
                    key_column=key_column,
                    value_column=value_column,
                    batch_files=batch_files,
                    skip_missing=skip_missing,
                ),
                progress=progress,
            ).run()
    rows: list[Row] = [
        {
            "version": each.version,
            "files": each.files,
            "rows": each.rows,
            "seconds": round(each.seconds, 1),
        }
        for each in summary.batches
    ]
    print_rows(rows, options.output)
    click.echo(
        f"imported {summary.rows} rows; {summary.earlier_batches} batches were there before",
        err=True,
    )
    return ExitCode.OK


def say_findings(what: str, findings: list[str], *, error: bool = False) -> None:
    """Each on a line of stderr, up to a bound."""
    for finding in findings[:_SHOWN_MAX]:
        click.echo(f"error: {finding}" if error else f"{what}: {finding}", err=True)
    if len(findings) > _SHOWN_MAX:
        click.echo(f"{what}: and {len(findings) - _SHOWN_MAX} more", err=True)
