"""`python killed_run.py JOB TIER2 STATE PREFIX REPORT`: `verify` or `stats`, which kill -9 ends at a named point.

The point is behind the note of the first wave of tasks, while others are left. The tasks run in this process: what a
run leaves behind is what its driver has written, wherever its tasks ran. How Spark's processes end with their driver
is seen by jobs whose tasks leave something behind themselves (job_process.py).
"""

import os
import signal
import sys
from pathlib import Path

from segmentstore.spark.jobs.job_execution import LocalTaskRunner
from segmentstore.spark.jobs.stats import StatsJob, StatsSettings
from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings
from segmentstore.spark.tier2_access import Tier2Location

TASK_BYTES = 20_000
TASK_CHUNKS = 1


def kill_when_some_is_done(done: int, total: int) -> None:
    """A job's progress, which is called behind each note."""
    if 0 < done < total:
        os.kill(os.getpid(), signal.SIGKILL)


def main(job: str, tier2: str, state: str, prefix: str, report: str) -> None:
    """It ends by the signal, or else there was nothing to kill."""
    place, tasks = Tier2Location(place=tier2), LocalTaskRunner()
    if job == "verify":
        VerifyJob(
            place=place,
            tasks=tasks,
            settings=VerifySettings(task_bytes=TASK_BYTES, state_directory=Path(state)),
            progress=kill_when_some_is_done,
        ).run()
    else:
        assert job == "stats", job
        settings = StatsSettings(
            report=Path(report),
            prefix=prefix,
            stretch_chunks=TASK_CHUNKS,
            state_directory=Path(state),
        )
        StatsJob(place=place, tasks=tasks, settings=settings, progress=kill_when_some_is_done).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
