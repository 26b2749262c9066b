# ruff: noqa: INP001 - a script, not a package
"""Runs every stage of `make test` in order, and says at the end what passed.

    lint, types, unit, simulation, integration

A stage that fails does not stop the later ones. The last line is `N passed, N failed`, over all tests; a lint or type
stage that fails counts as one failure. A suite that needs a tool which is not installed is named, not hidden. Whoever
ends this with SIGINT, SIGTERM or SIGHUP ends what the stage has started as well.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
_END_SECONDS = 60.0
_COUNT = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")


@dataclass(frozen=True)
class Stage:
    """One command; `tests` if its closing line counts tests."""

    name: str
    command: Sequence[str]
    tests: bool = False


@dataclass
class Outcome:
    """What a stage came to."""

    passed: int
    failed: int
    seconds: float


def pytest(*arguments: str) -> list[str]:
    """A test run in this interpreter."""
    return [sys.executable, "-m", "pytest", "-q", *arguments]


# The tests of a file share a server or a JVM and stay together. Two files at a time: half of their time they wait, for
# clients that pause after a kill, for leases, and for processes to start.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")

STAGES = (
    Stage("lint: ruff check", [str(BIN / "ruff"), "check", "--quiet", "."]),
    Stage("lint: ruff format", [str(BIN / "ruff"), "format", "--quiet", "--check", "."]),
    Stage("lint: import direction", [str(BIN / "lint-imports"), "--no-logo", "--no-cache"]),
    Stage(
        "types: mypy",
        [
            str(BIN / "mypy"),
            "segmentstore",
            "pyspark_segmentstore",
            "containers",
            "tier1",
            "tier2",
            "tests",
            "benchmarks",
        ],
    ),
    Stage("unit", pytest("-n", "auto", "-m", "not simulation and not integration"), tests=True),
    Stage("simulation", pytest("-n", "auto", "-m", "simulation"), tests=True),
    Stage("integration", pytest(*SIDE_BY_SIDE, "-m", "integration"), tests=True),
)

_DURABLE_STREAMS = "the conformance suite of Durable Streams (tests/integration/durable_streams)"
_JAVA_CLIENT = "the Java client of Pravega (tests/integration/pravega_clients)"
_BOOKKEEPER = "Tier 1 on BookKeeper (tests/integration/bookkeeper)"
TOOLS = {
    "node": _DURABLE_STREAMS,
    "npm": _DURABLE_STREAMS,
    "java": _BOOKKEEPER,
    "javac": _JAVA_CLIENT,
    "mvn": f"{_JAVA_CLIENT}, and {_BOOKKEEPER},",
    "go": "a real S3 server (tests/tier2/object_stores/s3/test_real_server.py)",
}


def run(stage: Stage) -> Outcome:
    """Its output goes through; its counts are taken from the closing line."""
    say(f"== {stage.name}")
    started = time.perf_counter()
    counts: dict[str, int] = {}
    # A group of its own, which is told once that it is to end, whoever says so.
    with subprocess.Popen(
        stage.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None, "stdout is a pipe"
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                if stage.tests and " in " in line and _COUNT.search(line):
                    counts = {word.rstrip("s"): int(each) for each, word in _COUNT.findall(line)}
            code = process.wait()
        except BaseException:
            end(process)
            raise
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if code != 0 and failed == 0:
        failed = 1
    return Outcome(counts.get("passed", 0), failed, time.perf_counter() - started)


def end(process: "subprocess.Popen[str]") -> None:
    """It and all that it started: tests put away their servers when they are interrupted, what is left is killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """The exit code: 0 if nothing failed."""
    # SIGINT too: who is started in the background inherits that it is ignored, and so would the stages.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    outcomes = [(stage, run(stage)) for stage in STAGES]
    say("== summary")
    for stage, outcome in outcomes:
        verdict = "FAILED" if outcome.failed else "passed"
        tests = f", {outcome.passed} tests" if stage.tests else ""
        say(f"{stage.name:<24} {verdict}{tests} ({outcome.seconds:.0f} s)")
    for tool, suite in TOOLS.items():
        if shutil.which(tool) is None:
            say(f"not run: {suite} needs {tool}, which is not installed")
    passed = sum(outcome.passed for _, outcome in outcomes)
    failed = sum(outcome.failed for _, outcome in outcomes)
    say(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
