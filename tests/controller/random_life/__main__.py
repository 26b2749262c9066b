"""Run seeds: `python -m tests.controller.random_life --seed N [--count M] [--theme T] [--verbose]`.

Prints one block per failing seed: what was wrong and the last lines of its trace. Exits with 1 if any failed.
"""

import sys
from functools import partial

from tests.controller.random_life.life import LifeStory, play_life
from tests.controller.random_life.settings import Theme, draw_themed_life
from tests.sim.loop import SimLoop
from tests.sim.run import seed_parser, try_seeds
from tests.sim.simulation import Run, run_simulation


def run_life(
    seed: int, *, theme: Theme | None = None, verbose: bool = False, shuffled: bool = False
) -> Run[LifeStory]:
    """One world from boot to an empty store; about everything, or about one thing."""

    async def play(loop: SimLoop) -> LifeStory:
        return await play_life(loop, theme and draw_themed_life(loop.random, theme))

    return run_simulation(seed, play, verbose=verbose, shuffled=shuffled)


def main() -> int:
    """The command line."""
    program = "python -m tests.controller.random_life"
    parser = seed_parser(program, __doc__)
    parser.add_argument("--theme", type=Theme, choices=list(Theme), help="what worlds are about")
    given = parser.parse_args()
    run = partial(run_life, theme=given.theme, verbose=given.verbose, shuffled=given.shuffled)
    themed = f" --theme {given.theme.value}" if given.theme else ""
    return try_seeds(given, run, f"{program}{themed} --verbose --seed ")


if __name__ == "__main__":
    sys.exit(main())
