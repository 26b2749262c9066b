"""Which files run in one process, where several share the integration tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_servers import group_of

ROOT = Path(__file__).parents[1]
SPARK = "tests/integration/spark"
NOTE_THE_PROCESS = """
import os, pathlib

def pytest_runtest_setup(item):
    (pathlib.Path(__file__).parent / os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def test_files_are_grouped_by_the_server_that_they_share() -> None:
    assert group_of(f"{SPARK}/test_batch_reads.py") == "spark"
    assert group_of("tests/integration/cluster/test_clients.py") == "cluster"
    assert group_of("tests/integration/bookkeeper/test_log.py") == "bookkeeper"
    alone = ("test_killed_jobs.py", "test_sink_writers.py")
    assert [group_of(f"{SPARK}/{name}") for name in alone] == [f"{SPARK}/{name}" for name in alone]


@pytest.mark.slow
def test_two_files_that_share_a_spark_run_in_one_process(tmp_path: Path) -> None:
    """Planned only: nothing is started."""
    (tmp_path / "note_the_process.py").write_text(NOTE_THE_PROCESS)
    files = [f"{SPARK}/test_input_files.py", f"{SPARK}/test_output_directory.py"]
    options = ["-n", "2", "--dist", "loadfile", "--setup-plan", "-m", "integration"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "note_the_process", *options, *files],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert len(list(tmp_path.glob("gw*"))) == 1, done.stdout


ITS_OWN_SCHEDULER = """
from tests.shared_servers import LoadBySharedServer

def pytest_xdist_make_scheduler(config, log):
    return LoadBySharedServer(config, log)
"""
ENDS_ITS_PROCESS = """
import os

def test_before() -> None: ...

def test_that_ends_its_process() -> None:
    os._exit(1)

def test_behind() -> None: ...
"""


@pytest.mark.slow
def test_a_test_that_ends_its_process_fails_once_and_the_next_ones_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(ITS_OWN_SCHEDULER)
    (tmp_path / "test_some.py").write_text(ENDS_ITS_PROCESS)
    options = ["-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout
