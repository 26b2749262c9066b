"""`segmentstore spark submit export` and `import`: streams to files and back."""

from pathlib import Path

import click

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.cli.quantity_types import BYTES
from segmentstore.cli.spark_session import open_spark, pairs_of, progress_bar, spark_options


@click.command()
@click.argument("destination", metavar="OUT")
@click.option("--stream", required=True, metavar="SCOPE/STREAM")
@click.option("--tier2", "place", default="", metavar="DIR|s3://BUCKET/PREFIX")
@click.option(
    "--controller", default="", metavar="tcp://HOST:PORT", help="For what is not in Tier 2 yet."
)
@click.option("--endpoint", default="", metavar="URL", help="Of the bucket.")
@click.option("--region", default="us-east-1", show_default=True, help="Of the bucket.")
@click.option("--text", is_flag=True, help="Keys and values as text instead of bytes.")
@click.option("--batch-bytes", type=BYTES, default=1 << 30, help="Of the stream, in one batch.")
@click.option("--allow-data-loss", is_flag=True, help="Go on without what retention took away.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
@spark_options
def export(
    *,
    destination: str,
    stream: str,
    place: str,
    controller: str,
    endpoint: str,
    region: str,
    text: bool,
    batch_bytes: int,
    allow_data_loss: bool,
    quiet: bool,
    output: str,
    master: str,
    configuration: tuple[str, ...],
) -> int:
    """Write the events of a stream to OUT as Parquet files by day; a later run adds what is new.

    OUT/_batches tells which ranges of which segments each batch holds: every event is there once.
    """
    given = {"stream": stream, "tier2": place, "controller": controller, "endpoint": endpoint}
    with open_spark("export", master=master, configuration=configuration) as session:
        from segmentstore.spark.jobs.export import ExportJob, ExportSettings
        from segmentstore.spark.jobs.output_directory import open_output

        with progress_bar("export", "B", quiet=quiet) as progress:
            summary = ExportJob(
                spark=session,
                source_options={**{k: v for k, v in given.items() if v}, "region": region},
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
    print_rows(rows, output)
    click.echo(
        f"exported {summary.rows} events; {summary.earlier_rows} were there before", err=True
    )
    return ExitCode.OK


@click.command("import")
@click.argument("inputs", nargs=-1, required=True)
@click.option("--stream", required=True, metavar="SCOPE/STREAM")
@click.option("--controller", required=True, metavar="tcp://HOST:PORT")
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
    type=click.Choice(["parquet", "json", "csv", "text"]),
)
@click.option("--key", "key_column", default="", metavar="COLUMN", help="Routing key.")
@click.option("--value", "value_column", default="", metavar="COLUMN", help="Else the row as JSON.")
@click.option("--batch-files", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--segments", type=click.IntRange(min=1), help="Create the stream, if it is missing.")
@click.option("--records", is_flag=True, help="Write records: with key, headers and time.")
@click.option("--read-option", multiple=True, metavar="KEY=VALUE", help="Of Spark's reader.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
@spark_options
def import_files(
    *,
    inputs: tuple[str, ...],
    stream: str,
    controller: str,
    state_directory: Path,
    file_format: str,
    key_column: str,
    value_column: str,
    batch_files: int,
    segments: int | None,
    records: bool,
    read_option: tuple[str, ...],
    quiet: bool,
    output: str,
    master: str,
    configuration: tuple[str, ...],
) -> int:
    """Write the rows of files to a stream, each once; a later run adds the files that are new."""
    sink = {"stream": stream, "controller": controller}
    if segments is not None:
        sink |= {"createIfMissing": "true", "segments": str(segments)}
    if records:
        sink["content"] = "record"
    with open_spark("import", master=master, configuration=configuration) as session:
        from segmentstore.spark.jobs.file_import import ImportJob, ImportSettings

        with progress_bar("import", " files", quiet=quiet) as progress:
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
    print_rows(rows, output)
    click.echo(
        f"imported {summary.rows} rows; {summary.earlier_batches} batches were there before",
        err=True,
    )
    return ExitCode.OK
