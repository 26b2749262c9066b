"""A job as users submit it: `segmentstore spark submit` with a driver, a JVM and Python workers that kill -9 can end.

Invariants:

- All of its processes are in one session, also those that Spark moves into process groups of their own; a kill ends
  every one of them, and returns when none is left.
- When to kill is decided by what the job has left to see, never by a clock.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.integration.spark.class_archive import java_options

_ROOT = Path(__file__).parents[3]
_POLL_SECONDS = 0.03
_SPARK = (
    "--master=local[2]",
    "--conf=spark.sql.shuffle.partitions=2",
    "--quiet",
)


def run_job(words: Sequence[str], log: Path) -> str:
    """Run it to its end; what it said on stderr."""
    with _job(words, log) as job:
        assert job.wait() == 0, log.read_text()[-3000:]
    return log.read_text()


def kill_job(
    words: Sequence[str],
    log: Path,
    *,
    progress: Callable[[], int],
    mark: int,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Run it until its progress has reached the mark, and then kill -9 all of it.

    `poll_seconds`: longer where looking at the progress is work, most of which is done while Spark starts.
    """
    with _job(words, log) as job:
        while progress() < mark:
            assert job.poll() is None, f"it ended before mark={mark}: {log.read_text()[-3000:]}"
            time.sleep(poll_seconds)
        assert job.poll() is None, f"it ended at mark={mark}: {log.read_text()[-3000:]}"
        _kill_session(job.pid)
        assert job.wait() == -signal.SIGKILL, "it did not end by the kill"


@contextmanager
def _job(words: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "segmentstore.cli", "spark", "submit", *words, *_SPARK]
    command.append(f"--conf=spark.driver.extraJavaOptions={java_options()}")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environment,
            start_new_session=True,
        ) as job,
    ):
        try:
            yield job
        finally:
            _kill_session(job.pid)


def _kill_session(session: int) -> None:
    """Until no process is left: one that is killed may have started another just before.

    The first one first: it would end by itself, and otherwise, when it sees that another one has ended.
    """
    while alive := sorted(_processes_of(session), key=lambda process: process != session):
        for process in alive:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_SECONDS)


def _processes_of(session: int) -> Iterator[int]:
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # State, parent, process group, session; a dead process that nobody waited for runs no more.
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(directory.name)
