"""Run seeds from the command line: `python -m tests.controller.random_life --seed N [--count M] [--verbose]`.

Prints one block per failing seed: what was wrong and the last lines of its trace. Exits with 1 if any failed.
"""

import argparse
import logging
import sys
import time
import traceback

from tests.controller.random_life.life import LifeStory, play_life
from tests.sim.simulation import Run, run_simulation


def run_life(seed: int, *, verbose: bool = False, shuffled: bool = False) -> Run[LifeStory]:
    """One world from boot to an empty store."""
    return run_simulation(seed, play_life, verbose=verbose, shuffled=shuffled)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.controller.random_life", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--shuffled", action="store_true", help="ready callbacks in random order")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many")
    parser.add_argument("--verbose", action="store_true", help="print the whole trace")
    arguments = parser.parse_args()
    if not arguments.verbose:
        logging.disable(logging.CRITICAL)
    failures = 0
    began = time.process_time()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    for seed in seeds:
        try:
            run = run_life(seed, verbose=arguments.verbose, shuffled=arguments.shuffled)
        except Exception as error:  # noqa: BLE001 - whatever a seed ran into is reported
            _say(f"\nseed {seed} failed")
            traceback.print_exception(error, file=sys.stdout)
            failures += 1
        else:
            if arguments.count == 1 or arguments.verbose:
                _say(f"seed {seed}: {run}")
        if failures >= arguments.failures:
            break
    _say(f"{len(seeds)} seeds, {failures} failed, {time.process_time() - began:.1f} CPU seconds")
    return 1 if failures else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
