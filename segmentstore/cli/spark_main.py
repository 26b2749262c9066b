"""The jobs under a spark-submit of one's own: `spark-submit [options] spark_main.py JOB [--options]`."""

import sys

import click

from segmentstore.cli.main import run


def main() -> None:
    """Run one job and exit."""
    code = run(["spark", "submit", *sys.argv[1:]])
    if code:
        click.echo(f"exit code {int(code)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
