"""Goal: a job that is killed with -9 anywhere and started again does its work once: nothing twice, nothing lost.

Method: each job is a process of its own over a running store. A seed chooses how many of the things that it leaves
behind (files, notes, staged segments, chunks) are to be seen before all of its processes are killed; then the same
words are run again, an export is killed again somewhere else, and run to the end. What came out is compared by hash.

Jobs of which only the driver leaves anything, its notes, are killed at a named point, without Spark (killed_run.py),
and run to the end on Spark.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segmentstore.cli.http_client import HttpClient
from segmentstore.spark.jobs.job_execution import LocalTaskRunner
from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings
from tests.integration.spark import killed_run
from tests.integration.spark.job_process import kill_job, run_job
from tests.integration.spark.job_store import JobStore, job_store
from tests.integration.spark.sink_runs import events_in, make_stream
from tests.integration.spark.test_batch_reads import hash_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEED = 20
FILES, ROWS = 16, 50


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobStore]:
    with job_store(tmp_path_factory.mktemp("killed"), tier2="filesystem") as live:
        yield live


def marks(kills: int, *, least: int, most: int) -> Iterator[int]:
    """How much more is to be seen before each kill."""
    random = Random(SEED)
    for _ in range(kills):
        yield random.randint(least, most)


def files_below(directory: Path, suffix: str) -> list[Path]:
    """Also while they come and go."""
    return [
        Path(parent, name)
        for parent, _, names in os.walk(directory)
        for name in names
        if name.endswith(suffix) and not name.startswith(".")
    ]


def test_a_killed_export_holds_every_event_once(live: JobStore, tmp_path: Path) -> None:
    expected = live.fill("killed/exported")
    out, log = tmp_path / "out", tmp_path / "log"
    words = ["export", str(out), "--stream=killed/exported", f"--tier2={live.place.place}"]
    words += [f"--controller={live.uri}", "--batch-bytes=60000"]

    def seen() -> int:
        """Manifests and files, in their places or on the way there."""
        return len(files_below(out, ".json")) + len(files_below(out, ".parquet"))

    for mark in marks(2, least=1, most=6):
        kill_job(words, log, progress=seen, mark=seen() + mark)
    run_job(words, log)
    rows = pq.read_table(out, columns=["segment_id", "offset", "value"])
    places = list(zip(rows["segment_id"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert len(set(places)) == len(places) == expected.total()
    assert hash_of(rows["value"].to_pylist()) == hash_of(expected.elements())
    assert files_below(out / "_staging", ".parquet") == []


def test_a_killed_import_adds_every_row_once(live: JobStore, tmp_path: Path) -> None:
    inputs, state, log = tmp_path / "in", tmp_path / "state", tmp_path / "log"
    inputs.mkdir()
    events = [b"%d" % number for number in range(FILES * ROWS)]
    for number in range(FILES):
        some = events[number * ROWS : (number + 1) * ROWS]
        pq.write_table(
            pa.table({"key": [event[:1] for event in some], "value": some}),
            inputs / f"{number:02d}.parquet",
        )
    make_stream(live.uri, "killed/imported", segments=3)
    words = ["import", str(inputs), "--stream=killed/imported", f"--controller={live.uri}"]
    words += [f"--state={state}", "--batch-files=2"]
    staged: set[str] = set()

    def seen() -> int:
        """Notes of batches, and segments into which tasks write before a batch is committed."""
        staged.update(asyncio.run(transaction_segments(live)))
        return len(staged) + len(list(state.glob("done-*")))

    # Once: how a run that goes on is killed in its turn is in test_jobs.py.
    # Not many: each of the forty-eight segments is there for a moment, and a busy machine looks seldom.
    for mark in marks(1, least=1, most=6):
        kill_job(words, log, progress=seen, mark=seen() + mark, poll_seconds=0.1)
    assert staged, "nobody was seen to stage anything"
    run_job(words, log)
    found = events_in(live.uri, "killed/imported")
    assert found.total() == len(events)
    assert hash_of(found.elements()) == hash_of(events)


async def transaction_segments(live: JobStore) -> set[str]:
    async with HttpClient(live.address) as client:
        return {
            info.name
            async for info in client.list_all("killed/imported/")
            if "#transaction" in info.name
        }


def test_h9_a_killed_compaction_changes_no_byte(live: JobStore, tmp_path: Path) -> None:
    expected = live.fill("killed/compacted")
    live.flush()
    before = VerifyJob(place=live.place, tasks=LocalTaskRunner(), settings=VerifySettings()).run()
    log = tmp_path / "log"
    words = ["compact", f"--tier2={live.place.place}", f"--server={live.address}"]
    words += ["--chunk-bytes=50000", "--min-bytes=1", "--prefix=killed/compacted"]
    chunks = {path for path in files_below(live.data_directory, "") if path.parent.name == "chunks"}

    def seen() -> int:
        """Chunks that were not there when the test began."""
        found = files_below(live.data_directory, "")
        return sum(path.parent.name == "chunks" and path not in chunks for path in found)

    for mark in marks(1, least=1, most=5):
        kill_job(words, log, progress=seen, mark=seen() + mark)
    run_job(words, log)
    after = VerifyJob(place=live.place, tasks=LocalTaskRunner(), settings=VerifySettings()).run()
    assert before.sound
    assert after.sound, after.damages
    assert sum(row.chunks for row in after.containers.values()) < sum(
        row.chunks for row in before.containers.values()
    )
    found = events_in(live.uri, "killed/compacted")
    assert hash_of(found.elements()) == hash_of(expected.elements())


def run_until_killed(job: str, live: JobStore, state: Path, prefix: str, report: Path) -> None:
    """See killed_run.py."""
    words = [job, live.place.place, str(state), prefix, str(report)]
    done = subprocess.run(
        [sys.executable, killed_run.__file__, *words], stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert list(state.glob("done-*")), "it was killed before it noted anything"
    assert not report.exists()


def test_a_killed_verification_goes_on_behind_what_it_noted(live: JobStore, tmp_path: Path) -> None:
    live.fill("killed/verified")
    live.flush()
    state, log = tmp_path / "state", tmp_path / "log"
    run_until_killed("verify", live, state, "", tmp_path / "none")
    words = ["verify", f"--tier2={live.place.place}", f"--state={state}"]
    said = run_job([*words, f"--task-bytes={killed_run.TASK_BYTES}"], log)
    assert "chunks an earlier run" in said
    assert "damage" not in said


def test_a_killed_look_at_the_sizes_goes_on_behind_what_it_noted(
    live: JobStore, tmp_path: Path
) -> None:
    prefix = "killed/counted/"
    expected = live.fill("killed/counted")
    live.flush()
    state, report, log = tmp_path / "state", tmp_path / "stats.html", tmp_path / "log"
    run_until_killed("stats", live, state, prefix, report)
    words = ["stats", f"--tier2={live.place.place}", f"--state={state}", f"--report={report}"]
    words += [f"--prefix={prefix}", f"--task-chunks={killed_run.TASK_CHUNKS}"]
    said = run_job(words, log)
    assert "known from an earlier run" in said
    assert f"{expected.total():,}" in report.read_text()
