# ruff: noqa: INP001 - a script, not a package
"""Runs every stage of `make test`, and says at the end what passed.

    lint, types, unit, unit: computed, simulation, integration, clusters

What the stages print comes in this order, each stage as a whole. They run in two lanes: in the first one after the
other, with the machine as if they were alone; in the second those that only compute, with a lower priority, so that
they take the time in which the first lane waits. No result of theirs depends on how long they take. Of the unit tests
these are what COMPUTED names; the others have sockets, processes and clocks. `clusters` begins when both lanes have
nothing else. Unit tests and simulations keep their files in memory, where there is enough: a third of their time they
waited for a disk, which is not what they try. Integration tests, whose processes are killed, keep theirs on the disk.

A stage that fails does not stop the later ones. The last line is `N passed, N failed`, over all tests; a lint or type
stage that fails counts as one failure. A suite that needs a tool which is not installed is named, not hidden. Whoever
ends this with SIGINT, SIGTERM or SIGHUP ends what the stages have started as well.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
_END_SECONDS = 60.0
_POLL_SECONDS = 0.05
_COUNT = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")
_BEHIND = ("nice", "-n", "10")
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4 << 30
"""The stages together were never seen to hold a tenth of it; a container of Docker has 64 MB there."""


@dataclass(frozen=True)
class Stage:
    """One command.

    `tests` if its closing line counts tests, `in_memory` if its temporary files are there, where there is enough,
    `behind` if it runs in the second lane, `alone` if it begins when all others have ended; such stages come last.
    """

    name: str
    command: Sequence[str]
    tests: bool = False
    in_memory: bool = False
    behind: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a stage came to."""

    passed: int
    failed: int
    seconds: float


def pytest(*arguments: str) -> list[str]:
    """A test run in this interpreter."""
    return [sys.executable, "-m", "pytest", "-q", *arguments]


# Each process begins with a half of its own, and starts what that half shares; at the end it takes from the other.
BY_HALVES = ("-n", "auto", "--dist", "worksteal")
# What shares a server stays together (tests/shared_servers.py). Two groups at a time: a part of
# their time they wait, for clients that pause after a kill, for leases, and for processes to start.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
CLUSTERS = [f"tests/integration/{name}" for name in ("cluster", "bookkeeper", "kafka")]
"""Many processes each, most of them Java's: a stage of their own."""
UNIT = "not simulation and not integration"


def all_but_sockets(folder: str) -> list[str]:
    """What is in a folder of tests, without `api`, which has the servers of its room."""
    found = sorted((ROOT / folder).iterdir())
    return [
        f"{folder}/{each.name}"
        for each in found
        if each.match("test_*.py") or (each.is_dir() and each.name not in ("api", "__pycache__"))
    ]


COMPUTED = [
    "tests/codec",
    "tests/containers",
    *all_but_sockets("tests/controller"),
    "tests/linearizability",
    "tests/sim",
    "tests/tier2/format",
    "tests/tier2/storage",
    "tests/tier2/volumes",
    *all_but_sockets("tests/topics"),
]
"""Unit tests that hold the machine's time against nothing but a hang."""


def ignoring(paths: Sequence[str]) -> list[str]:
    """The words that leave them out of a test run."""
    return [f"--ignore={path}" for path in paths]


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
        behind=True,
    ),
    Stage("unit", pytest(*BY_HALVES, "-m", UNIT, *ignoring(COMPUTED)), tests=True, in_memory=True),
    Stage(
        "unit: computed",
        pytest(*BY_HALVES, "-m", UNIT, *COMPUTED),
        tests=True,
        in_memory=True,
        behind=True,
    ),
    Stage(
        "simulation",
        pytest(*BY_HALVES, "-m", "simulation"),
        tests=True,
        in_memory=True,
        behind=True,
    ),
    Stage(
        "integration",
        pytest(*SIDE_BY_SIDE, "-m", "integration", *ignoring(CLUSTERS)),
        tests=True,
    ),
    Stage(
        "clusters", pytest(*SIDE_BY_SIDE, "-m", "integration", *CLUSTERS), tests=True, alone=True
    ),
)

_DURABLE_STREAMS = "the conformance suite of Durable Streams (tests/integration/durable_streams)"
_JAVA_CLIENT = "the Java client of Pravega (tests/integration/pravega_clients)"
_BOOKKEEPER = "Tier 1 on BookKeeper (tests/integration/bookkeeper)"
_KAFKA_TOOLS = "the tools of Kafka (tests/integration/kafka)"
TOOLS = {
    "node": _DURABLE_STREAMS,
    "npm": _DURABLE_STREAMS,
    "java": f"{_BOOKKEEPER}, and {_KAFKA_TOOLS},",
    "javac": _JAVA_CLIENT,
    "mvn": f"{_JAVA_CLIENT}, {_BOOKKEEPER}, and {_KAFKA_TOOLS},",
    "go": "a real S3 server (tests/tier2/object_stores/s3/test_real_server.py), "
    "the schema of Compose (tests/demo/test_deployment_checks.py), "
    "porcupine beside our checker of histories (tests/linearizability/test_porcupine.py), "
    "and franz-go, a Kafka client (tests/integration/kafka/test_franz_go.py),",
    "kcat": "kcat, a Kafka client that decides by exact versions (tests/integration/kafka/test_kcat.py),",
    "systemd-analyze": "systemd's own check of its units (tests/demo/test_deployment_checks.py)",
}


class RunningStage:
    """A stage whose command was started. Its output goes to a file, from which it is shown when its turn comes."""

    def __init__(self, stage: Stage, output: IO[bytes], memory: Path | None = None) -> None:
        self.stage = stage
        self._output = output
        self._shown = 0
        self._ended = 0.0
        self._started = time.perf_counter()
        # A group of its own, which is told once that it is to end, whoever says so.
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [*(_BEHIND if stage.behind else ()), *stage.command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(memory if stage.in_memory else None),
            process_group=0,
        )

    def has_ended(self, *, within: float = 0.0) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
            self._ended = self._ended or time.perf_counter()
        return self._process.returncode is not None

    def show(self) -> None:
        """What came since the last call."""
        more = os.pread(self._output.fileno(), 1 << 30, self._shown)
        self._shown += len(more)
        sys.stdout.write(more.decode(errors="replace"))
        sys.stdout.flush()

    def outcome(self) -> Outcome:
        """Of a stage that has ended; its counts are taken from the closing line."""
        counts: dict[str, int] = {}
        if self.stage.tests:
            text = os.pread(self._output.fileno(), 1 << 30, 0).decode(errors="replace")
            for line in text.splitlines():
                if " in " in line and _COUNT.search(line):
                    counts = {word.rstrip("s"): int(each) for each, word in _COUNT.findall(line)}
        failed = counts.get("failed", 0) + counts.get("error", 0)
        if self._process.returncode != 0 and failed == 0:
            failed = 1
        return Outcome(counts.get("passed", 0), failed, self._ended - self._started)

    def end(self) -> None:
        """It and all that it started: interrupted tests put away their servers, and what is left is killed."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def environment(memory: Path | None = None) -> Mapping[str, str]:
    """Of every stage; its temporary files are in `memory`, if that is given.

    Where nothing compiled may be left beside the sources, each process of each stage would compile a thousand modules
    again. So what is compiled is left among what tests leave.
    """
    given = dict(os.environ)
    if given.pop("PYTHONDONTWRITEBYTECODE", ""):
        given.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / ".pytest_cache" / "bytecode"))
    if memory is not None:
        given["TMPDIR"] = str(memory)
    return given


def made_in_memory() -> Path | None:
    """A new directory; None where there is too little memory for it."""
    with suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
            # A short name: the paths of sockets have room for a hundred letters.
            return Path(tempfile.mkdtemp(prefix="test-", dir=_MEMORY))
    return None


def run(stages: Sequence[Stage], memory: Path | None = None) -> list[Outcome]:
    """The outcome of each."""
    waiting = {behind: [s for s in stages if s.behind is behind] for behind in (False, True)}
    started: dict[str, RunningStage] = {}
    lanes: dict[bool, RunningStage | None] = dict.fromkeys(waiting)
    with ExitStack() as files:
        try:
            for stage in stages:
                say(f"== {stage.name}")
                done = False
                while not done:
                    for behind in lanes:
                        if may_begin(waiting, lanes, behind):
                            following = waiting[behind].pop(0)
                            output = files.enter_context(tempfile.TemporaryFile())
                            started[following.name] = RunningStage(following, output, memory)
                            lanes[behind] = started[following.name]
                    # Where it is not begun yet, the stage in front of it in the lane still runs.
                    looked_at = started.get(stage.name) or lanes[stage.behind]
                    assert looked_at is not None, "each lane has begun"
                    done = looked_at.has_ended(within=_POLL_SECONDS) and looked_at.stage is stage
                    if looked_at.stage is stage:
                        looked_at.show()
        except BaseException:
            for each in lanes.values():
                if each is not None:
                    each.end()
                    say(f"== {each.stage.name}: ended early")
                    each.show()
            raise
        return [started[stage.name].outcome() for stage in stages]


def may_begin(
    waiting: Mapping[bool, Sequence[Stage]], lanes: Mapping[bool, RunningStage | None], behind: bool
) -> bool:
    """Whether the lane has a next stage, and that need not wait any more."""

    def has_ended(lane: bool) -> bool:
        current = lanes[lane]
        return current is None or current.has_ended()

    if not waiting[behind] or not has_ended(behind):
        return False
    other = not behind
    return not waiting[behind][0].alone or (not waiting[other] and has_ended(other))


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """The exit code: 0 if nothing failed."""
    # SIGINT too: who is started in the background inherits that it is ignored, and so would the stages.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    memory = made_in_memory()
    outcomes: list[tuple[Stage, Outcome]] = []
    try:
        outcomes += zip(STAGES, run(STAGES, memory), strict=True)
    finally:
        if memory is not None and any(
            outcome.failed for stage, outcome in outcomes if stage.in_memory
        ):
            say(f"what failed tests left is in memory, to be removed by you: {memory}")
        elif memory is not None:
            shutil.rmtree(memory, ignore_errors=True)
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
