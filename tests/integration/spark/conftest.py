"""One Spark for all tests of this folder: starting it is what costs."""

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.java_libraries import missing
from tests.integration.spark.class_archive import java_options

_ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, no console, nothing left behind; the data source is found by its name."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        missing("java is missing: Spark was not run; install a JDK of release 17 or later")
    directory = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Of the S3 server of the tests: Python processes of Spark inherit what was said when the JVM started.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "testkey")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testsecret1")
    # Spark's Python processes import the project from the checkout.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("segmentstore-tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", java_options())
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.local.dir", str(directory / "local"))
            .getOrCreate()
        )
    yield session
    session.stop()
