"""The `segmentstore` command: noun, verb, arguments.

Invariants:

- Results go to stdout, everything else to stderr; an error is one sentence.
- The exit code says what to do (see `exit_codes`).
- `--help` is quick: a noun's module is imported when the noun is named, and never for the list of nouns.
"""

import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

import click

from segmentstore.cli.exit_codes import ExitCode, exit_code_of
from segmentstore.contracts.errors import SegmentStoreError

_PROGRAMS = ("segmentstore", "streamctl")
"""The same program by either name."""

_NOUNS = {
    "backup": ("backup", "Keep the store as it is now, and get it back as it was."),
    "bench": ("bench", "Measure durable appends and reads over HTTP."),
    "cluster": ("cluster", "Look at a cluster, and say where its containers shall be."),
    "config": ("config", "Show and check settings."),
    "controller": ("serve", "Answer the controller's calls of a cluster until SIGTERM or SIGINT."),
    "group": ("group", "List, inspect and delete consumer groups of topics."),
    "load": ("load", "Load files and trees, each file into a segment of its own."),
    "log": ("log", "Look into the durable logs of a store."),
    "node": (
        "serve",
        "Serve containers of a cluster from this process until SIGTERM or SIGINT.",
    ),
    "reader-group": (
        "reader_group",
        "Create, list, inspect and delete reader groups (SCOPE/GROUP).",
    ),
    "recover": (
        "recover",
        "Make a store usable again whose Tier 1 (or everything but Tier 2) was lost.",
    ),
    "s3": ("serve", "Serve buckets and objects to S3 clients until SIGTERM or SIGINT."),
    "scope": ("scope", "Create, list and delete scopes."),
    "segment": ("segment", "Create, append to, read and administer segments."),
    "spark": ("spark", "Run the data pipeline on Spark."),
    "standalone": ("serve", "Serve a store until SIGTERM or SIGINT, from one process or several."),
    "stream": ("stream", "Create, write, read and administer streams (SCOPE/STREAM)."),
    "table": ("table", "Create, fill, read and delete key-value tables (SCOPE/TABLE)."),
    "tier2": ("tier2", "List, read and verify Tier 2 without the service."),
    "topic": (
        "topic",
        "Create, change, write, read and delete topics of records, by Kafka's protocol.",
    ),
    "txn": ("txn", "Begin, write, commit, abort and list transactions of a stream."),
}
"""By noun: the module below segmentstore.cli that has its command, and the first sentence of the command's help."""


class _NounGroup(click.Group):
    """A group whose `commands` have a name and a sentence only; the command itself is imported by get_command()."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        if cmd_name not in _NOUNS:
            return None
        module, _ = _NOUNS[cmd_name]
        command = getattr(import_module(f"segmentstore.cli.{module}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command), f"not a command noun={cmd_name}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the nouns as click lists any commands, without an import."""
        click.Group(commands=self.commands).format_commands(ctx, formatter)


@click.group(
    cls=_NounGroup,
    commands=[click.Command(noun, help=sentence) for noun, (_, sentence) in _NOUNS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="segmentstore")
def cli() -> None:
    """A tiered segment store: append-only segments, durable at once, cheap in the long run.

    \b
    Exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict,
                5 unavailable, 6 full, 7 corrupt, 130 interrupted.
    """


def main() -> None:
    """Run the command line and exit."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        # A letter that this terminal does not have is shown as an escape; it ends no listing.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:], program=_program()))


def _program() -> str:
    """The name that help shows: that of the script which was started, if it is one of ours."""
    name = Path(sys.argv[0]).name
    return name if name in _PROGRAMS else _PROGRAMS[0]


def run(arguments: list[str], *, program: str = "segmentstore") -> int:
    """The exit code of one command line."""
    try:
        result = cli.main(arguments, prog_name=program, standalone_mode=False)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SegmentStoreError as error:
        click.echo(f"error: {error}", err=True)
        return exit_code_of(error)
    except SystemExit:
        # Only one thing makes click exit here: the reader of our output has seen enough, as `head` has.
        return ExitCode.OK
    except UnicodeEncodeError as error:
        # A byte of the command line that is not UTF-8 is a lone surrogate here, and nothing has a name with one.
        click.echo(f"error: a name is text in UTF-8 given={error.object!r}", err=True)
        return ExitCode.USAGE
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        return ExitCode.ERROR
    return result if isinstance(result, int) else ExitCode.OK
