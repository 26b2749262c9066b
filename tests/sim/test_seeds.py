"""SIM_SEEDS seeds (500), from SIM_SEED (1) on, two processes at a time; and every seed that ever found something."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sim.run import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_PROCESSES = 2
_BATCH = 25
_REGRESSIONS = Path(__file__).with_name("regressions.txt")


def _regressions() -> list[int]:
    lines = _REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def _run_batch(first: int, count: int) -> str:
    """What a process of its own printed if it failed. A run keeps its dead for ever, so memory grows with its seeds."""
    command = [sys.executable, "-m", "tests.sim.run", "--seed", str(first), "--count", str(count)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout if done.returncode else ""


def test_no_seed_finds_a_broken_promise() -> None:
    first = int(os.environ.get("SIM_SEED", "1"))
    end = first + int(os.environ.get("SIM_SEEDS", "500"))
    batches = [(at, min(_BATCH, end - at)) for at in range(first, end, _BATCH)]
    with ThreadPoolExecutor(max_workers=_PROCESSES) as pool:
        outputs = list(pool.map(lambda batch: _run_batch(*batch), batches))
    failed = [output for output in outputs if output]
    assert not failed, "\n".join(failed)


def test_seeds_that_once_found_something_find_nothing_now() -> None:
    for seed in _regressions():
        run_seed(seed)
