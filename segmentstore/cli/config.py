"""`segmentstore config ...`: what the settings are, and where each value comes from.

`setting_options` and `resolve` are shared with `standalone`: the options that set settings, and what they come to.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.output import output_option, print_rows
from segmentstore.host.setting_sources import ResolvedSettings, resolve_settings
from segmentstore.host.settings import SettingsError

_Command = TypeVar("_Command", bound=Callable[..., Any])  # any command function: click's own bound

_SHORT_FLAGS = {
    "data": "store.data_directory",
    "containers": "store.container_count",
    "http": "http.address",
    "wire": "wire.address",
    "controller": "controller.address",
    "listen": "controller.address",
    "kafka": "kafka.address",
    "tier1": "tier1.kind",
    "cluster": "tier1.kind",
    "tier2": "tier2.place",
    "processes": "processes.count",
    "log_level": "log.level",
    "log_format": "log.format",
}


@click.group()
def config() -> None:
    """Show and check settings. Flags win over the environment, that over the file, that over defaults."""


_DATA = click.option("--data", metavar="DIR", help="Data directory: identity, Tier 1, Tier 2.")
_SCRATCH = click.option("--data", metavar="DIR", help="Data directory; may be lost with the node.")
_HTTP = click.option("--http", metavar="HOST:PORT", help="Listen here.  [default: 127.0.0.1:9091]")
_WIRE = click.option(
    "--wire",
    metavar="HOST:PORT|off",
    help="Segment store protocol.  [default: 127.0.0.1:12345]",
)
_CONTROLLER = click.option(
    "--controller",
    metavar="HOST:PORT|off",
    help="Controller, gRPC.  [default: 127.0.0.1:9090]",
)
_KAFKA = click.option(
    "--kafka", metavar="HOST:PORT|off", help="Topics, for Kafka's clients.  [default: off]"
)
_LISTEN = click.option(
    "--listen", metavar="HOST:PORT", help="gRPC, for clients.  [default: 127.0.0.1:9090]"
)
_CONTAINERS = click.option(
    "--containers", metavar="COUNT", help="Fixed at first start.  [default: 4]"
)
_PROCESSES = click.option(
    "--processes", metavar="COUNT|auto", help="Processes that share the work.  [default: 1]"
)
_TIER1 = click.option(
    "--tier1",
    metavar="file|bookkeeper://ZK1,ZK2/LEDGERS|memory",
    help="The durable log.  [default: file]",
)
_CLUSTER = click.option(
    "--cluster",
    metavar="bookkeeper://ZK1,ZK2/LEDGERS",
    help="Where the cluster is: ZooKeeper, and the ledgers below it.",
)
_TIER2 = click.option(
    "--tier2",
    metavar="volumes|filesystem|s3://BUCKET/PREFIX|memory",
    help="Long-term storage.  [default: volumes]",
)
_BUCKET = click.option(
    "--tier2", metavar="s3://BUCKET/PREFIX", help="Long-term storage, the same for all nodes."
)
_EVERYWHERE = (
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error."),
    click.option("--log-format", metavar="text|json", help="Form of the log on stderr."),
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting by its full name; see 'config show'. Repeatable.",
    ),
    click.option(
        "--config",
        "config_file",
        envvar="SEGMENTSTORE_CONFIG",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with settings.  [env: SEGMENTSTORE_CONFIG]",
    ),
)


def setting_options(command: _Command) -> _Command:
    """Add --config, --set and the short flags to a command, which passes them all on to `resolve`."""
    return _with_options(
        command, _DATA, _HTTP, _WIRE, _CONTROLLER, _KAFKA, _CONTAINERS, _PROCESSES, _TIER1, _TIER2
    )


def node_options(command: _Command) -> _Command:
    """As setting_options(), for a node of a cluster."""
    return _with_options(command, _CLUSTER, _BUCKET, _SCRATCH, _HTTP, _WIRE, _KAFKA, _CONTAINERS)


def controller_options(command: _Command) -> _Command:
    """As setting_options(), for a controller of a cluster."""
    return _with_options(command, _CLUSTER, _LISTEN, _HTTP)


def cluster_options(command: _Command) -> _Command:
    """As setting_options(), for a command that looks at a cluster."""
    return _with_options(command, _CLUSTER, _BUCKET)


def _with_options(command: _Command, *options: Callable[[Any], Any]) -> _Command:
    """`options`: click's decorators, which take any command function and give it back."""
    decorated: _Command = command
    for option in reversed((*options, *_EVERYWHERE)):
        decorated = option(decorated)
    return decorated


@config.command()
@setting_options
@click.option("--sources", is_flag=True, help="Also say which source gave each value.")
@click.option("--explain", is_flag=True, help="Also say what each setting is for.")
@output_option
def show(
    sources: bool,
    explain: bool,
    output: str,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **short_flags: str | None,
) -> None:
    """Show the value of every setting as a server started with the same options would have it."""
    resolved = resolve(config_file, assignments, **short_flags)
    rows = []
    for each in resolved.each:
        row = {"setting": each.definition.full_name, "value": each.shown}
        if sources:
            row["source"] = each.source
        if explain:
            row["environment"] = each.definition.environment_name
            row["meaning"] = each.definition.rule.sentence
        rows.append(row)
    print_rows(rows, output)


@config.command()
@setting_options
def check(config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None) -> int:
    """Check all sources: silent and 0 if they are sound, else one line a problem and 2."""
    try:
        resolve(config_file, assignments, **short_flags)
    except SettingsError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        return ExitCode.USAGE
    return ExitCode.OK


def resolve(
    config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> ResolvedSettings:
    """Settings of all sources. Raises SettingsError."""
    flags: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError([f"--set wants NAME=VALUE, not {assignment!r}"])
        flags[name.strip()] = value.strip()
    for flag, value_given in short_flags.items():
        if value_given is not None:
            flags[_SHORT_FLAGS[flag]] = value_given
    return resolve_settings(
        flags=flags,
        environment=environment(),
        toml_text=_text_of(config_file) if config_file else None,
        toml_name=str(config_file),
    )


def _text_of(config_file: Path) -> str:
    try:
        return config_file.read_bytes().decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise SettingsError(
            [f"{config_file}: not text in UTF-8: byte {byte:#04x} at {error.start}"]
        ) from error


def environment() -> Mapping[str, str]:
    """The process's environment, from which settings and keys are taken."""
    return os.environ
