"""What every actor has and how it lives: step by step, with thought in between and patience after errors."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.errors import ErrorKind, SegmentExistsError, SegmentStoreError
from tests.sim.client import REQUEST_ERRORS, Client, OpenSegment
from tests.sim.model import Model
from tests.sim.settings import WorkSettings

_PATIENCE_SECONDS_MAX = 2.0
_TRIES_PER_OPERATION = 6
"""Steps into a container that does not run do not count, up to this many."""


@dataclass(slots=True)
class Stage:
    """What the actors of one world share."""

    client: Client
    model: Model
    random: Random
    settings: WorkSettings
    steady: list[str]
    volatile: list[str]
    calm: bool = False
    """Faults are off: finish what you owe."""


class Actor:
    """One client. Subclasses say what a step is and what is still owed at the end."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        """The segment it cares about."""
        self.client = stage.client
        self.random = stage.random
        self._impatience = 0.0

    async def step(self) -> None:
        """One thing this actor does. May raise REQUEST_ERRORS."""
        raise NotImplementedError

    def owes(self) -> bool:
        """Something it began must still come to an end."""
        return False

    async def close(self) -> None:
        """Let go of what is open."""

    async def live(self) -> None:
        """Its operations, then what it owes."""
        most = self.stage.settings.operations_per_actor
        done = 0
        for _ in range(_TRIES_PER_OPERATION * most):
            done += await self._try_step()
            if done == most:
                break
        while self.owes():
            await self._try_step()
        await self.close()

    async def _try_step(self) -> bool:
        """Whether the step went through, or was refused for good."""
        await asyncio.sleep(self.random.expovariate(1 / self.stage.settings.think_seconds_mean))
        try:
            await self.step()
            self._impatience = 0.0
            return True
        except REQUEST_ERRORS as error:
            self.client.loop.trace(type(self).__name__, self.name, type(error).__name__)
            self._impatience = min(max(0.01, self._impatience * 2), _PATIENCE_SECONDS_MAX)
            await asyncio.sleep(self._impatience * self.random.random())
            return self.stage.calm or not is_unavailable(error)

    async def open(self, name: str) -> OpenSegment:
        """Open it, and make it first if it is a steady one that does not exist yet."""
        if name in self.stage.steady and not self.stage.model.alive(name):
            with suppress(SegmentExistsError):
                await self.client.create(name)
        return await self.client.open(name)

    def append_length(self) -> int:
        """Mostly small, sometimes up to the maximum."""
        longest = self.stage.settings.append_bytes_max
        return self.random.randint(5, longest if self.random.random() < 0.3 else 16)


def is_unavailable(error: Exception) -> bool:
    """It says nothing about the request, only that nobody answered it."""
    return not isinstance(error, SegmentStoreError) or error.kind is ErrorKind.UNAVAILABLE
