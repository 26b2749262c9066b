"""SIM_SEEDS seeds (500), from SIM_SEED (1) on, over two processes; and every seed that ever found something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.run import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_PROCESSES = 2
_REGRESSIONS = Path(__file__).with_name("regressions.txt")


def _regressions() -> list[int]:
    lines = _REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def test_no_seed_finds_a_broken_promise() -> None:
    first = int(os.environ.get("SIM_SEED", "1"))
    count = int(os.environ.get("SIM_SEEDS", "500"))
    processes = []
    for place in range(min(_PROCESSES, count)):
        share = len(range(place, count, _PROCESSES))
        command = [sys.executable, "-m", "tests.sim.run", "--seed", str(first + place)]
        command += ["--count", str(share), "--step", str(_PROCESSES)]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate()[0] for process in processes]
    failed = [o for o, process in zip(outputs, processes, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)


def test_seeds_that_once_found_something_find_nothing_now() -> None:
    for seed in _regressions():
        run_seed(seed)
