"""One case against one server: the client's figures, and what the server used meanwhile."""

import json
import subprocess
import sys
from collections.abc import Mapping
from threading import Timer

from benchmarks.peers.cases import CPU_PER_GB, CPU_PER_MILLION, Case
from benchmarks.peers.processes import cpu_seconds
from benchmarks.peers.servers import Server, java_command

Figures = dict[str, float]
_SECONDS_MAX = 150.0


class CaseFailedError(Exception):
    """The client program gave no figures."""


def run_case(case: Case, server: Server, *, quick: bool) -> Figures:
    """Raises CaseFailedError."""
    options: Mapping[str, int | str] = {**case.options, **(case.quick if quick else {})}
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
    cpu = {"begin": 0.0, "end": 0.0}
    try:
        assert process.stdout is not None, "stdout is a pipe"
        for text in process.stdout:
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            if "phase" in line:
                cpu[line["phase"]] = cpu_seconds(server.process_id)
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
    used = cpu["end"] - cpu["begin"]
    if figures.get("bytes"):
        figures[CPU_PER_GB] = used / (figures["bytes"] / 1e9)
    if figures.get("events"):
        figures[CPU_PER_MILLION] = used / (figures["events"] / 1e6)
    return figures
