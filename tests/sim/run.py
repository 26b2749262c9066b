"""Run seeds from the command line: `python -m tests.sim.run --seed N [--count M] [--verbose]`.

Prints one block per failing seed: what was wrong, the last lines of its trace, and the command that replays it. Exits
with 1 if any failed.
"""

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from tests.sim.bookkeeper_machine import BookKeeperMachine
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine
from tests.sim.reference_machine import ReferenceMachine
from tests.sim.scenario import MakeMachine, Story, play
from tests.sim.settings import Swarm
from tests.sim.simulation import Run, run_simulation


def _reference(loop: SimLoop, swarm: Swarm) -> ReferenceMachine:
    return ReferenceMachine(loop, swarm)


def _node(loop: SimLoop, swarm: Swarm) -> NodeMachine:
    return NodeMachine(loop, swarm)


def _bookkeeper(loop: SimLoop, swarm: Swarm) -> BookKeeperMachine:
    return BookKeeperMachine(loop, swarm)


MACHINES: dict[str, MakeMachine] = {
    "node": _node,
    "bookkeeper": _bookkeeper,
    "reference": _reference,
}
"""What a world can be made of, by name."""

DEFAULT_MACHINE = "node"


def run_seed(
    seed: int, *, machine: str = DEFAULT_MACHINE, verbose: bool = False, shuffled: bool = False
) -> Run[Story]:
    """One world from boot to audit."""
    make = MACHINES[machine]
    return run_simulation(seed, lambda loop: play(loop, make), verbose=verbose, shuffled=shuffled)


def seed_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """What every command line that runs seeds takes."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--step", type=int, default=1, help="distance between two seeds")
    parser.add_argument("--shuffled", action="store_true", help="ready callbacks in random order")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many")
    parser.add_argument("--verbose", action="store_true", help="print the whole trace")
    return parser


def try_seeds(arguments: argparse.Namespace, run: Callable[[int], object], replay: str) -> int:
    """The exit code. `replay`: the command that plays a seed again, in front of its number."""
    if not arguments.verbose:
        logging.disable(logging.CRITICAL)
    failures = 0
    began = time.process_time()
    seeds = range(arguments.seed, arguments.seed + arguments.count * arguments.step, arguments.step)
    for seed in seeds:
        try:
            found = run(seed)
        except Exception as error:
            print(f"\nseed {seed} failed, replay with: {replay}{seed}")
            traceback.print_exception(error, file=sys.stdout)
            failures += 1
        else:
            if arguments.count == 1:
                print(f"seed {seed}: {found}")
        if failures >= arguments.failures:
            break
    print(f"{len(seeds)} seeds, {failures} failed, {time.process_time() - began:.1f} CPU seconds")
    return 1 if failures else 0


def main() -> int:
    """The command line."""
    parser = seed_parser("python -m tests.sim.run", __doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES), default=DEFAULT_MACHINE)
    given = parser.parse_args()
    run = partial(run_seed, machine=given.machine, verbose=given.verbose, shuffled=given.shuffled)
    return try_seeds(given, run, "make replay SEED=")


if __name__ == "__main__":
    sys.exit(main())
