"""What one event costs the Python wheel with its default settings, which wait for each one.

The bound is what the same event costs without a disk (a log in memory), and one and a half raw syncs of this disk.
Those are asked for at the rhythm of the events: a disk that is asked without a pause answers a third sooner.
"""

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks.peers.client_runs import CaseFailedError, Figures
from benchmarks.peers.servers import OurServer
from tests.integration.pravega_clients.toolchain import wheel_python

SCRIPT = Path(__file__).parent / "wheel_latency.py"
SYNCS, SYNC_BYTES = 400, 4096
SYNCS_ALLOWED = 1.5
ROUNDS = 3


def run_wheel(directory: Path, *, seconds: float) -> dict[str, Figures]:
    """By case: with the log in files, in memory, and the bound. Medians of rounds in which they come in turn."""
    directory.mkdir(parents=True)
    rounds = [_one_round(directory / str(number), seconds) for number in range(ROUNDS)]
    return {
        case: {
            name: statistics.median([one[case][name] for one in rounds]) for name in rounds[0][case]
        }
        for case in rounds[0]
    }


def _one_round(directory: Path, seconds: float) -> dict[str, Figures]:
    directory.mkdir()
    in_files = latency(directory / "file", [], seconds)
    in_memory = latency(directory / "memory", ["--tier1=memory"], seconds)
    pause = in_memory["p50_ms"] / 1e3
    # A disk's interrupts go to one processor, and a process beside it waits a fifth longer: both count.
    syncs = [
        raw_sync_ms(directory, pause_seconds=pause, processor=one)
        for one in sorted(os.sched_getaffinity(0))
    ]
    sync = statistics.fmean(syncs)
    bound = in_memory["p50_ms"] + SYNCS_ALLOWED * sync
    return {
        "wheel, file log": {**in_files, "beside_bound": in_files["p50_ms"] / bound},
        "wheel, memory log": in_memory,
        "wheel, bound": {
            "p50_ms": bound,
            "raw_sync_p50_ms": sync,
            "raw_sync_without_pause_p50_ms": raw_sync_ms(directory, pause_seconds=0.0),
        },
    }


def latency(directory: Path, options: list[str], seconds: float) -> Figures:
    directory.mkdir(parents=True)
    server = OurServer(directory, options)
    try:
        done = subprocess.run(
            [str(wheel_python()), str(SCRIPT), f"tcp://{server.controller}", str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60 + seconds,
        )
    finally:
        server.stop()
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise CaseFailedError(f"the wheel gave no figures: exit code {done.returncode}")
    figures: Figures = json.loads(lines[-1])
    return figures


def raw_sync_ms(directory: Path, *, pause_seconds: float, processor: int | None = None) -> float:
    """Median of overwriting 4 KiB of a file that has its blocks already, and syncing it; a pause before each."""
    durations: list[float] = []
    processors = os.sched_getaffinity(0)
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    descriptor = os.open(directory / "syncs", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(descriptor, bytes(SYNCS * SYNC_BYTES), 0)
        os.fsync(descriptor)
        for number in range(SYNCS):
            if pause_seconds:
                time.sleep(pause_seconds)
            started = time.perf_counter()
            os.pwrite(descriptor, b"x" * SYNC_BYTES, number * SYNC_BYTES)
            os.fdatasync(descriptor)
            durations.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        os.sched_setaffinity(0, processors)
    return statistics.median(durations) * 1e3
