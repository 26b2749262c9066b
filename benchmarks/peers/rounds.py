"""Rounds: each system in turn, each from nothing, so that all of them see the same machine."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.cases import COLD_CASE, KAFKA, OURS, PRAVEGA, SERVER, Case
from benchmarks.peers.client_runs import CaseFailedError, Figures, run_case
from benchmarks.peers.kafka_peer import KafkaBroker
from benchmarks.peers.processes import resident_bytes
from benchmarks.peers.servers import OurServer, Server, start
from benchmarks.peers.wheel_runs import run_wheel

KAFKA_CASE = "write 1 KB"
KAFKA_SIZE, KAFKA_WARM, KAFKA_COUNT = 1000, 100_000, 500_000

SYSTEMS = (PRAVEGA, OURS, KAFKA)
"""In the order of a round."""

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
            except (CaseFailedError, OSError, subprocess.SubprocessError, TimeoutError) as error:
                say(f"  {system} failed: {error!r}")
                continue
            finally:
                # Left over data slows down whoever comes next: pages to write back, files to delete.
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
            measure(case, server, outcome, quick=quick)
        outcome[SERVER]["resident_megabytes"] = resident_bytes(server.process_id) / 1e6
        if isinstance(server, OurServer) and any(case.name == "catch-up 1 KB" for case in cases):
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
