# ruff: noqa: INP001 - a script, not a package
"""Runs every stage of `make test` in order, and says at the end what passed.

    lint, types, unit, simulation, integration

A stage that fails does not stop the later ones. The last line is `N passed, N failed`, over all tests; a lint or type
stage that fails counts as one failure. A suite that needs a tool which is not installed is named, not hidden.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
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


STAGES = (
    Stage("lint: ruff check", [str(BIN / "ruff"), "check", "--quiet", "."]),
    Stage("lint: ruff format", [str(BIN / "ruff"), "format", "--quiet", "--check", "."]),
    Stage("lint: import direction", [str(BIN / "lint-imports"), "--no-logo"]),
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
    Stage("integration", pytest("-m", "integration"), tests=True),
)

_DURABLE_STREAMS = "the conformance suite of Durable Streams (tests/integration/durable_streams)"
_JAVA_CLIENT = "the Java client of Pravega (tests/integration/pravega_clients)"
TOOLS = {
    "node": _DURABLE_STREAMS,
    "npm": _DURABLE_STREAMS,
    "javac": _JAVA_CLIENT,
    "mvn": _JAVA_CLIENT,
    "go": "a real S3 server (tests/tier2/object_stores/s3/test_real_server.py)",
}


def run(stage: Stage) -> Outcome:
    """Its output goes through; its counts are taken from the closing line."""
    say(f"== {stage.name}")
    started = time.perf_counter()
    process = subprocess.Popen(
        stage.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None, "stdout is a pipe"
    counts: dict[str, int] = {}
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if stage.tests and " in " in line and _COUNT.search(line):
            counts = {word.rstrip("s"): int(number) for number, word in _COUNT.findall(line)}
    code = process.wait()
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if code != 0 and failed == 0:
        failed = 1
    return Outcome(counts.get("passed", 0), failed, time.perf_counter() - started)


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """The exit code: 0 if nothing failed."""
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
