"""One seed, one world, one run: how every simulated test begins and ends."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tests.sim.loop import SimLoop

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Run(Generic[Result]):
    """What is left of a run that went well."""

    result: Result
    fingerprint: str
    steps: int
    seconds: float
    """Virtual time at the end."""


def run_simulation(
    seed: int,
    main: Callable[[SimLoop], Coroutine[Any, Any, Result]],
    *,
    verbose: bool = False,
    shuffled: bool = False,
) -> Run[Result]:
    """Run `main` in the world of a new loop; the same seed gives the same run in every process.

    Raises whatever ended the run, with the seed and the last lines of the trace as a note.
    """
    loop = SimLoop(seed, verbose=verbose, shuffled=shuffled)
    # The collector's moments are not the program's: it runs between runs only.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=RuntimeWarning)
            result = loop.run_until_complete(main(loop))
        run = Run(result, loop.fingerprint(), loop.steps, loop.time())
        loop.end()
        _collect(loop)
        return run
    except BaseException as error:
        tail = "\n  ".join(loop.trace_tail())
        error.add_note(f"seed={seed} at t={loop.time():.6f} after {loop.steps} steps\n  {tail}")
        if not loop.is_closed():
            loop.end()
        raise
    finally:
        asyncio.set_event_loop(None)
        if collecting:
            gc.enable()


def _collect(loop: SimLoop) -> None:
    """Let abandoned futures complain now, while their seed is known; what lives on is not looked at again."""
    gc.collect()
    gc.freeze()
    loop.raise_failure()
