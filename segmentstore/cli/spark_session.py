"""The Spark that a job runs on: the one that spark-submit started, or one in this process."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from segmentstore.contracts.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Command = TypeVar("_Command", bound=Callable[..., Any])  # click's own bound for what it decorates

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",
}
"""What a job in this process has unless --conf says otherwise."""


def spark_options(command: _Command) -> _Command:
    """Where Spark is."""
    options = (
        click.option(
            "--master", default="", metavar="URL", help="Spark's master; local[*] if none."
        ),
        click.option(
            "--conf", "configuration", multiple=True, metavar="KEY=VALUE", help="Of Spark."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def pairs_of(words: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE, each. Raises InvalidRequestError."""
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidRequestError(f"{option} takes KEY=VALUE given={word!r}")
        pairs[key] = value
    return pairs


def require_spark() -> None:
    """Raises InvalidRequestError, with what to do, if Spark or Java is not there."""
    try:
        import pyspark  # noqa: F401 (only whether it is there)
    except ImportError as error:
        raise InvalidRequestError(
            "Spark is not installed: pip install 'segmentstore[spark]'"
        ) from error
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise InvalidRequestError(
            "Spark needs Java 17 or newer and there is no `java` on the PATH: install one"
            " (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )


@contextmanager
def open_spark(
    name: str, *, master: str = "", configuration: Sequence[str] = ()
) -> Iterator["SparkSession"]:
    """A session; one that spark-submit began is used as it is. Raises InvalidRequestError."""
    require_spark()
    from pyspark.sql import SparkSession

    given = pairs_of(configuration, "--conf")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"segmentstore {name}")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(master or "local[*]")
        given = {**_DEFAULTS, **given}
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    # Found by its name as well where the package is installed; this works wherever it can be imported.
    from segmentstore.spark.data_source import SegmentStoreDataSource

    spark.dataSource.register(SegmentStoreDataSource)
    try:
        yield spark
    finally:
        spark.stop()
