"""Run seeds: `python -m tests.controller.random_runs --seed N [--count M] [--theme T] [--verbose]`.

Prints one block per failing seed: what was wrong and the last lines of its trace. Exits with 1 if any failed.
"""

import sys
from functools import partial

from tests.controller.random_runs.random_run import RunStory, run_random
from tests.controller.random_runs.settings import Theme, draw_themed_settings
from tests.sim.loop import SimLoop
from tests.sim.run import seed_parser, try_seeds
from tests.sim.simulation import Run, run_simulation


def run_seed(
    seed: int, *, theme: Theme | None = None, verbose: bool = False, shuffled: bool = False
) -> Run[RunStory]:
    """One world from boot to an empty store; about everything, or about one thing."""

    async def play(loop: SimLoop) -> RunStory:
        return await run_random(loop, theme and draw_themed_settings(loop.random, theme))

    return run_simulation(seed, play, verbose=verbose, shuffled=shuffled)


def main() -> int:
    """The command line."""
    program = "python -m tests.controller.random_runs"
    parser = seed_parser(program, __doc__)
    parser.add_argument("--theme", type=Theme, choices=list(Theme), help="what worlds are about")
    given = parser.parse_args()
    run = partial(run_seed, theme=given.theme, verbose=given.verbose, shuffled=given.shuffled)
    themed = f" --theme {given.theme.value}" if given.theme else ""
    return try_seeds(given, run, f"{program}{themed} --verbose --seed ")


if __name__ == "__main__":
    sys.exit(main())
