"""What a simulated process is to the loop: a node, which may die or stop; its threads; how a run ends badly.

Every callback carries its node in its context; code outside every node is the world.
"""

import asyncio
import heapq
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any


class SimulationError(Exception):
    """The simulated program did something that no program may do."""


class DeadlockError(SimulationError):
    """Nothing is ready and no timer is set: this world will never move again."""


class LivelockError(SimulationError):
    """More callbacks ran than a run may need, or too many without any time passing."""


class NodeDiedError(Exception):
    """The node that was to answer crashed: the caller knows nothing about the outcome."""


class Node:
    """One incarnation of one simulated process. A restart is another Node."""

    def __init__(self, name: str, birth: int) -> None:
        self.name = name
        self.birth = birth
        self.alive = True
        self.paused = False
        self.pause_count = 0
        self.main: asyncio.Task[Any] | None = None
        self.context: Context = copy_context()
        self.held: list[Any] = []
        """What should have run while it was paused."""
        self.callers: dict[asyncio.Future[Any], None] = {}
        """Who waits outside for its answers, in the order of the calls."""
        self.newest_arrival: asyncio.Future[None] | None = None
        """Done when the request that was sent to it last has arrived; of a shuffled loop."""

    def __repr__(self) -> str:
        state = "paused" if self.paused else "alive" if self.alive else "dead"
        return f"<{self.name}#{self.birth} {state}>"


CURRENT_NODE: ContextVar[Node | None] = ContextVar("simulated_node", default=None)
"""Set in the context of every callback of a node; None in the world."""


def current_node() -> Node | None:
    """The node whose code runs now, None in the world."""
    return CURRENT_NODE.get()


class SimExecutor(Executor):
    """A pool of `workers` simulated threads: give it wherever production code takes an executor.

    None in its place means as many threads as there are jobs, so that jobs overtake one another.
    """

    def __init__(self, workers: int = 1) -> None:
        self._free_at = [0.0] * workers

    def occupy(self, now: float, seconds: float) -> float:
        """The time at which a job that is submitted now is done."""
        start = max(now, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, start + seconds)
        return start + seconds

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("only loop.run_in_executor() may use it")
