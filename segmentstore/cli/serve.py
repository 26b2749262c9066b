"""`segmentstore standalone`, `node`, `controller` and `s3`: servers in this process.

`standalone` is the whole store, in one process or in several that it starts; `node` and `controller` are processes of
a cluster; `s3` is an S3 endpoint over the embedded object store.
"""

import sys
from pathlib import Path

import click

from segmentstore.cli.config import (
    controller_options,
    environment,
    node_options,
    resolve,
    setting_options,
)
from segmentstore.host.settings import is_address, split_address
from segmentstore.runtime.process import collections_put_off, configure_logging


@click.command()
@setting_options
def standalone(
    config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """Serve a store until SIGTERM or SIGINT, from one process or several.

    Prints one line beginning with 'ready' when it takes requests; its log goes to stderr.
    """
    resolved = resolve(config_file, assignments, **short_flags)
    if resolved.settings.processes.is_several:
        with collections_put_off():
            from segmentstore.host.processes.supervisor import run_processes

        run_processes(resolved, _announce)
        return
    with collections_put_off():
        from segmentstore.host.standalone import run_standalone  # loads the whole service

    run_standalone(resolved, _announce)


@click.command()
@click.option(
    "--data",
    "data_directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory; the volumes are in its `tier2`.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9000",
    show_default=True,
    metavar="HOST:PORT",
    help="Listen here; port 0 lets the system choose.",
)
@click.option(
    "--region", default="us-east-1", show_default=True, help="Which one buckets say they are in."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least severe line of the log.",
)
def s3(data_directory: Path, listen: str, region: str, log_level: str) -> None:
    """Serve buckets and objects to S3 clients until SIGTERM or SIGINT.

    Prints one line beginning with 'ready' when it takes requests; its log goes to stderr. Keys are taken from
    SEGMENTSTORE_S3_ACCESS_KEY and SEGMENTSTORE_S3_SECRET_KEY; without them they are made at the first start and kept
    in the data directory, readable by you alone.
    """
    # Neither `standalone` nor `--help` needs them.
    from segmentstore.s3.authentication import (
        ACCESS_KEY_VARIABLE,
        SECRET_KEY_VARIABLE,
        given_credentials,
    )
    from segmentstore.s3.endpoint import run_endpoint
    from segmentstore.s3.settings import EndpointSettings

    if not is_address(listen):
        raise click.BadParameter(f"wants HOST:PORT, not {listen!r}", param_hint="--listen")
    host, port = split_address(listen)
    configure_logging(level=log_level)
    variables = environment()
    run_endpoint(
        data_directory.absolute(),
        credentials=given_credentials(
            variables.get(ACCESS_KEY_VARIABLE, ""), variables.get(SECRET_KEY_VARIABLE, "")
        ),
        settings=EndpointSettings(host=host, port=port, region=region),
        announce=_announce,
    )


@click.command()
@node_options
def node(config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None) -> None:
    """Serve containers of a cluster from this process until SIGTERM or SIGINT.

    Which ones, its leading controller says. Told to end, it has them moved to other nodes first. Prints one line
    beginning with 'ready' when it takes requests; its log goes to stderr.
    """
    resolved = resolve(config_file, assignments, **short_flags)
    with collections_put_off():
        from segmentstore.host.node import run_node  # loads the whole service

    run_node(resolved, _announce)


@click.command()
@controller_options
def controller(
    config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """Answer the controller's calls of a cluster until SIGTERM or SIGINT.

    One controller of a cluster leads: it assigns containers to nodes and works on streams. The others hand calls on to
    it, and one of them takes its place when it is gone. Prints one line beginning with 'ready' when it takes calls.
    """
    resolved = resolve(config_file, assignments, **short_flags)
    with collections_put_off():
        from segmentstore.host.cluster_controller import run_controller  # loads the whole service

    run_controller(resolved, _announce)


def _announce(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
