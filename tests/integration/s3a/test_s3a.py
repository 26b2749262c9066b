"""Hadoop's S3A, as Spark uses it, over our S3 endpoint, which is killed in the middle of the job.

Two ways to commit: files are written beside the table and renamed (S3A copies them), and uploads in parts that the job
completes when all of its tasks are done (magic). What the job reads back has to be what it wrote, and nothing of what
it used on the way is left. One JVM does both, and the endpoint is killed in each.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.held_ports import bound_sockets, ports_of
from tests.integration.java_libraries import class_path, require_maven
from tests.integration.spark.class_archive import java_options
from tests.s3.conftest import KEYS, Process, client_of

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
COMMITTERS = ("file", "magic")
ROWS = 200_000
SEEN = {
    "rows": ROWS,
    "different": ROWS,
    "wrong": 0,
    "overwritten": 100,
    "renamed": True,
    "moved": ROWS,
    "removed": True,
    "left": ["table"],
}
KILLED_AT = 3
"""Keys that the job has made by then: directories and files of its first tasks, while others run."""
_POLL_SECONDS = 0.02
_OF_SPARK = ("commons-", "slf4j-")
"""Libraries that Spark has in releases of its own."""


@pytest.fixture(scope="module")
def jars() -> str:
    require_maven("Hadoop's S3A was not run")
    spark = next(Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar"))
    release = spark.stem.removeprefix("hadoop-client-api-")
    found = class_path(HERE / "pom.xml").split(":")
    wanted = f"hadoop-aws-{release}.jar"
    assert any(path.endswith(wanted) for path in found), f"pom.xml has to name {wanted}, for Spark"
    return ",".join(path for path in found if not Path(path).name.startswith(_OF_SPARK))


@pytest.fixture
def process(tmp_path: Path) -> Any:
    process = Process(tmp_path / "data")
    yield process
    if process.process is not None:
        process.kill()


def test_s3a_jobs_go_on_over_a_kill_9_of_the_endpoint(
    process: Process, jars: str, tmp_path: Path
) -> None:
    # Held over the kill, so that no client of another test is given it meanwhile.
    (holder,) = bound_sockets(1)
    (port,) = ports_of([holder])
    with holder:
        run_jobs(process, port, jars, tmp_path)


def run_jobs(process: Process, port: int, jars: str, tmp_path: Path) -> None:
    url = process.start(port=port)
    client = client_of(url)
    client.create_bucket(Bucket="lake")
    words = [url, KEYS.access_key, KEYS.secret_key, jars, "lake", str(ROWS), java_options()]
    command = [sys.executable, str(HERE / "table_job.py"), *words, *COMMITTERS]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True
        ) as job,
    ):
        assert job.stdout is not None
        try:
            for committer in COMMITTERS:
                while keys_of(client, committer) < KILLED_AT:
                    assert job.poll() is None, (tmp_path / "log").read_text()[-3000:]
                    time.sleep(_POLL_SECONDS)
                process.kill()
                process.start(port=port)
                said = job.stdout.readline()
                assert said, (tmp_path / "log").read_text()[-3000:]
                assert json.loads(said) == SEEN, committer
            assert job.wait() == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            job.kill()
    left = [row["Key"] for row in client.list_objects_v2(Bucket="lake").get("Contents", [])]
    assert not [key for key in left if "_temporary" in key or "__magic" in key], left
    assert not client.list_multipart_uploads(Bucket="lake").get("Uploads")
    client.close()
    assert process.stop() == 0


def keys_of(client: Any, committer: str) -> int:
    """That its part of the job has made."""
    count: int = client.list_objects_v2(Bucket="lake", Prefix=f"{committer}/")["KeyCount"]
    return count
