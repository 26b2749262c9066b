"""SIM_SEEDS seeds (500), from SIM_SEED (1) on; and every seed that ever found something.

A batch of seeds is a test, so that the workers of pytest share them. Each runs in a process of its own: a run keeps its
dead for ever, so memory grows with its seeds.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.run import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_BATCH = 50
_SHUFFLED = 25
_FIRST = int(os.environ.get("SIM_SEED", "1"))
_END = _FIRST + int(os.environ.get("SIM_SEEDS", "500"))
_REGRESSIONS = Path(__file__).with_name("regressions.txt")


def _regressions() -> list[int]:
    lines = _REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("first", range(_FIRST, _END, _BATCH))
def test_no_seed_finds_a_broken_promise(first: int) -> None:
    _play(first, min(_BATCH, _END - first))


def test_no_seed_finds_a_broken_promise_in_a_shuffled_loop() -> None:
    _play(_FIRST, _SHUFFLED, "--shuffled")


def _play(first: int, count: int, *options: str) -> None:
    command = [sys.executable, "-m", "tests.sim.run", "--seed", str(first), "--count", str(count)]
    command += options
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert not done.returncode, done.stdout


def test_seeds_that_once_found_something_find_nothing_now() -> None:
    for seed in _regressions():
        run_seed(seed)
