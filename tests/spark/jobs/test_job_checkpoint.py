"""What a job writes down: by one run at a time, each entry once, and whole whenever its process is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.files import SystemFile, SystemFileSystem
from segmentstore.spark.jobs.job_execution import Entry, JobCheckpoint
from segmentstore.spark.jobs.run_lock import JobInUseError

IDENTITY: Entry = {"job": "one", "tier2": "here"}


class FileWithoutLocks(SystemFile):
    """As on a file system that lets every process have a lock."""

    def lock_exclusive(self) -> bool:
        return True


class FilesWithoutLocks(SystemFileSystem):
    """Files that anybody locks."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        return FileWithoutLocks(super().open(path, create=create, exclusive=exclusive).release())


HOLDER = """
import sys
from pathlib import Path
from segmentstore.spark.jobs.job_execution import JobCheckpoint
checkpoint = JobCheckpoint(Path(sys.argv[1]), identity={"job": "one", "tier2": "here"})
checkpoint.open()
checkpoint.add({"wave": 0})
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """It has the directory open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def test_a_second_run_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    first = JobCheckpoint(tmp_path, identity=IDENTITY)
    assert first.open() == []
    first.add({"wave": 0})
    second = JobCheckpoint(tmp_path, identity=IDENTITY)
    with pytest.raises(JobInUseError, match=f"process_id={os.getpid()}"):
        second.open()
    first.add({"wave": 1})
    first.close()
    assert second.open() == [{"wave": 0}, {"wave": 1}]
    second.close()


def test_a_stopped_process_keeps_the_directory_and_a_killed_one_gives_it_back(
    tmp_path: Path,
) -> None:
    run = JobCheckpoint(tmp_path, identity=IDENTITY)
    with another_process(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(JobInUseError, match=f"process_id={process.pid}"):
            run.open()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert run.open() == [{"wave": 0}]
    run.close()


def test_an_entry_is_never_replaced_where_locks_do_not_hold(tmp_path: Path) -> None:
    first = JobCheckpoint(tmp_path, identity=IDENTITY, files=FilesWithoutLocks())
    second = JobCheckpoint(tmp_path, identity=IDENTITY, files=FilesWithoutLocks())
    assert first.open() == second.open() == []
    first.add({"plan": "first"})
    with pytest.raises(JobInUseError, match="done-00000000"):
        second.add({"plan": "second"})
    first.add({"wave": 1})
    first.close()
    second.close()
    again = JobCheckpoint(tmp_path, identity=IDENTITY)
    assert again.open() == [{"plan": "first"}, {"wave": 1}]
    again.close()


def test_the_directory_of_another_job_is_refused_and_not_kept(tmp_path: Path) -> None:
    checkpoint = JobCheckpoint(tmp_path, identity=IDENTITY)
    checkpoint.open()
    checkpoint.close()
    for other in ({"job": "two", "tier2": "here"}, {"job": "one", "tier2": "there"}):
        with pytest.raises(InvalidRequestError, match="another job"):
            JobCheckpoint(tmp_path, identity=other).open()
    checkpoint.open()
    checkpoint.close()


def test_a_directory_whose_job_said_less_of_itself_goes_on(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"job": "one"}))
    (tmp_path / "done-00000000").write_text(json.dumps({"wave": 0}))
    checkpoint = JobCheckpoint(tmp_path, identity=IDENTITY)
    assert checkpoint.open() == [{"wave": 0}]
    checkpoint.close()


def test_what_a_kill_left_half_written_is_no_entry_and_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".done-00000000-0123456789abcdef.unfinished"
    left.write_text('{"wa')
    checkpoint = JobCheckpoint(tmp_path, identity=IDENTITY)
    assert checkpoint.open() == []
    assert not left.exists()
    checkpoint.close()
