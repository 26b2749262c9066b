"""The node with its logs on BookKeeper: seeds that find nothing, and bugs of the log that a client of the store sees.

SIM_BOOKKEEPER_SEEDS seeds (40), from SIM_SEED (1) on. One of them alone:
`python -m tests.sim.run --machine bookkeeper --seed N`.
"""

import os
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from tests.sim.attempts import ModelBreachError
from tests.sim.bookkeeper_machine import BookKeeperMachine, busy_ledgers
from tests.sim.loop import SimLoop
from tests.sim.node import SimulationError
from tests.sim.scenario import Story, play
from tests.sim.settings import Swarm, draw_swarm
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.planted import BUGS, PlantedBug

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_BATCH = 20
_FIRST = int(os.environ.get("SIM_SEED", "1"))
_END = _FIRST + int(os.environ.get("SIM_BOOKKEEPER_SEEDS", "40"))
_SEEDS_MAX = 40
_SEEN_BY_CLIENTS = (
    "the ledger of the owner before is not fenced",
    "the epoch of a new owner is not written down",
    "two ledgers take entries",
    "a truncation deletes the newest ledger",
)


@pytest.mark.parametrize("first", range(_FIRST, _END, _BATCH))
def test_no_seed_finds_a_broken_promise_of_a_store_that_logs_to_bookkeeper(first: int) -> None:
    command = [sys.executable, "-m", "tests.sim.run", "--machine", "bookkeeper"]
    command += ["--seed", str(first), "--count", str(min(_BATCH, _END - first))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert not done.returncode, done.stdout


def _breaks(seed: int, bug: PlantedBug) -> bool:
    def make(loop: SimLoop, swarm: Swarm) -> BookKeeperMachine:
        return BookKeeperMachine(loop, swarm, rules=bug.rules)

    def main(loop: SimLoop) -> Coroutine[Any, Any, Story]:
        return play(loop, make, busy_ledgers(draw_swarm(loop.random)))

    try:
        run_simulation(seed, main)
    except (ModelBreachError, SimulationError, SegmentStoreError, AssertionError, ExceptionGroup):
        return True
    return False


@pytest.mark.parametrize("name", _SEEN_BY_CLIENTS)
def test_h81_a_bug_planted_in_the_log_is_found_by_clients_of_the_store(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS[name]
    if bug.patch is not None:
        bug.patch(monkeypatch)
    assert any(_breaks(seed, bug) for seed in range(1, _SEEDS_MAX + 1)), "never found"
