"""Runs: each system in turn, each from nothing, so that all of them see the same machine.

- `run_case`: one case of the Java client against one server, and what the server used meanwhile.
- `run_wheel`: what one event costs the Python wheel with its default settings, which wait for each one. The bound is
  what the same event costs without a disk (a log in memory), and one and a half raw syncs of this disk. Those are
  asked for at the rhythm of the events: a disk that is asked without a pause answers a third sooner.
- `run_rounds`: all cases on all systems, a number of times.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer

from benchmarks.peers.cases import (
    COLD_CASE,
    CPU_PER_GB,
    CPU_PER_MILLION,
    CPU_PER_MILLION_WITH_BOOKIES,
    KAFKA,
    ON_BOOKIES,
    OURS,
    OURS_BOOKKEEPER,
    OURS_TWO_PROCESSES,
    PRAVEGA,
    PRAVEGA_BOOKKEEPER,
    PRAVEGA_SAME_BOOKIES,
    RESIDENT,
    RESIDENT_WITH_BOOKIES,
    SERVER,
    WRITES,
    WRITES_ON_BOOKIES,
    Case,
)
from benchmarks.peers.systems import (
    KafkaBroker,
    OurServer,
    Server,
    Usage,
    java_command,
    resident_bytes,
    start,
    usage,
)
from segmentstore.contracts.errors import SegmentStoreError
from tests.integration.pravega_clients.toolchain import wheel_python

Figures = dict[str, float]
_SECONDS_MAX = 150.0


class CaseFailedError(Exception):
    """The client program gave no figures."""


def run_case(case: Case, server: Server, *, quick: bool) -> Figures:
    """Raises CaseFailedError."""
    options: Mapping[str, int | str] = {
        **case.options,
        **(WRITES_ON_BOOKIES if server.name in ON_BOOKIES else {}),
        **(case.quick if quick else {}),
    }
    command = [
        *java_command("-Xms256m", f"-Xmx{case.client_heap}"),
        "peers.Bench",
        f"tcp://{server.controller}",
        case.mode,
        *(f"{name}={value}" for name, value in options.items()),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    alarm = Timer(_SECONDS_MAX, process.kill)
    alarm.start()
    figures: Figures = {}
    usages: dict[str, Usage] = {}
    try:
        assert process.stdout is not None, "stdout is a pipe"
        for text in process.stdout:
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            if "phase" in line:
                usages[line["phase"]] = usage(server, process.pid)
            else:
                figures = line["figures"]
        process.wait()
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
    if not figures:
        raise CaseFailedError(f"{case.name} on {server.name}: exit code {process.returncode}")
    if figures.get("failed"):
        sys.stderr.write(f"{case.name} on {server.name}: {figures['failed']:.0f} events failed\n")
    if len(usages) == 2:
        figures |= _used(usages["end"] - usages["begin"], figures)
    return figures


def _used(used: Usage, figures: Figures) -> Figures:
    """For each gigabyte and million events; and what our own log was given."""
    found: Figures = {}
    if figures.get("bytes"):
        found[CPU_PER_GB] = used.cpu_seconds / (figures["bytes"] / 1e9)
    if figures.get("events"):
        millions = figures["events"] / 1e6
        found[CPU_PER_MILLION] = used.cpu_seconds / millions
        found[CPU_PER_MILLION_WITH_BOOKIES] = (
            used.cpu_seconds + used.cpu_seconds_of_bookies
        ) / millions
        found["client_cpu_seconds_per_million_events"] = used.cpu_seconds_of_client / millions
    if used.frames:
        found["log_entries_per_second"] = used.frames / used.seconds
        found["log_bytes_per_entry"] = used.frame_bytes / used.frames
    found["server_cores"] = used.cpu_seconds / used.seconds
    found["bookies_cores"] = used.cpu_seconds_of_bookies / used.seconds
    found["client_cores"] = used.cpu_seconds_of_client / used.seconds
    found["idle_cores"] = used.idle_seconds / used.seconds
    return found


WHEEL_SCRIPT = Path(__file__).parent / "wheel_latency.py"
SYNCS, SYNC_BYTES = 400, 4096
SYNCS_ALLOWED = 1.5
WHEEL_ROUNDS = 3


def run_wheel(directory: Path, *, seconds: float) -> dict[str, Figures]:
    """By case: with the log in files, in memory, and the bound. Medians of rounds in which they come in turn."""
    directory.mkdir(parents=True)
    rounds = [_one_round(directory / str(number), seconds) for number in range(WHEEL_ROUNDS)]
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
            [str(wheel_python()), str(WHEEL_SCRIPT), f"tcp://{server.controller}", str(seconds)],
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


KAFKA_CASE = "write 1 KB"
KAFKA_SIZE, KAFKA_WARM, KAFKA_COUNT = 1000, 100_000, 500_000

SYSTEMS = (PRAVEGA, OURS, KAFKA, PRAVEGA_BOOKKEEPER, OURS_BOOKKEEPER)
"""In the order of a round."""

ON_REQUEST = (OURS_TWO_PROCESSES, PRAVEGA_SAME_BOOKIES)
"""Measured when they are named."""

Results = dict[tuple[str, str, str], list[float]]
"""(system, case, figure) -> one value of each round."""


def run_rounds(
    cases: Sequence[Case], systems: Sequence[str], *, rounds: int, quick: bool, directory: Path
) -> Results:
    """A case that fails is told of and left out; the others go on."""
    results: Results = {}
    for number in range(rounds):
        for system in systems:
            place = directory / f"{system}-{number}"
            say(f"round {number + 1} of {rounds}: {system}")
            try:
                if system == KAFKA:
                    outcome = kafka_round(place, quick=quick)
                else:
                    outcome = pravega_round(system, cases, place, quick=quick)
            except (
                CaseFailedError,
                SegmentStoreError,
                OSError,
                subprocess.SubprocessError,
                TimeoutError,
            ) as error:
                say(f"  {system} failed: {error!r}")
                continue
            finally:
                # What a system leaves behind slows down the next one: pages to write back, files to delete.
                shutil.rmtree(place, ignore_errors=True)
            for case, figures in outcome.items():
                for figure, value in figures.items():
                    results.setdefault((system, case, figure), []).append(value)
    return results


def pravega_round(
    system: str, cases: Sequence[Case], directory: Path, *, quick: bool
) -> dict[str, Figures]:
    """Every case on one server that begins empty."""
    server, seconds_to_ready = start(system, directory)
    outcome: dict[str, Figures] = {SERVER: {"seconds_to_ready": seconds_to_ready}}
    try:
        for case in cases:
            if system in ON_BOOKIES and case.name not in WRITES:
                continue
            measure(case, server, outcome, quick=quick)
        own = resident_bytes(server.process_id) / 1e6
        of_bookies = sum(map(resident_bytes, server.bookie_process_ids)) / 1e6
        outcome[SERVER] |= {RESIDENT: own, RESIDENT_WITH_BOOKIES: own + of_bookies}
        say(f"  {SERVER}: {RESIDENT}={own:.0f}, {RESIDENT_WITH_BOOKIES}={own + of_bookies:.0f}")
        if (
            isinstance(server, OurServer)
            and system == OURS
            and any(case.name == "catch-up 1 KB" for case in cases)
        ):
            server.restart()
            measure(COLD_CASE, server, outcome, quick=quick)
    finally:
        server.stop()
    if system == OURS and any(case.name == "one in flight" for case in cases):
        outcome |= run_wheel(directory / "wheel", seconds=2 if quick else 6)
    return outcome


def measure(case: Case, server: Server, outcome: dict[str, Figures], *, quick: bool) -> None:
    try:
        outcome[case.name] = run_case(case, server, quick=quick)
    except CaseFailedError as error:
        say(f"  {error}")
    else:
        shown = ", ".join(f"{name}={value:.4g}" for name, value in outcome[case.name].items())
        say(f"  {case.name}: {shown}")


def kafka_round(directory: Path, *, quick: bool) -> dict[str, Figures]:
    broker = KafkaBroker(directory)
    try:
        broker.write(size=KAFKA_SIZE, count=KAFKA_WARM)
        figures = broker.write(size=KAFKA_SIZE, count=KAFKA_COUNT // (5 if quick else 1))
    finally:
        broker.stop()
    say(f"  {KAFKA_CASE}: {figures}")
    return {KAFKA_CASE: figures}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
