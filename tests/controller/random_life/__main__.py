"""Run seeds from the command line: `python -m tests.controller.random_life --seed N [--count M] [--verbose]`.

Prints one block per failing seed: what was wrong and the last lines of its trace. Exits with 1 if any failed.
"""

import sys
from functools import partial

from tests.controller.random_life.life import LifeStory, play_life
from tests.sim.run import seed_parser, try_seeds
from tests.sim.simulation import Run, run_simulation


def run_life(seed: int, *, verbose: bool = False, shuffled: bool = False) -> Run[LifeStory]:
    """One world from boot to an empty store."""
    return run_simulation(seed, play_life, verbose=verbose, shuffled=shuffled)


def main() -> int:
    """The command line."""
    program = "python -m tests.controller.random_life"
    given = seed_parser(program, __doc__).parse_args()
    run = partial(run_life, verbose=given.verbose, shuffled=given.shuffled)
    return try_seeds(given, run, f"{program} --verbose --seed ")


if __name__ == "__main__":
    sys.exit(main())
