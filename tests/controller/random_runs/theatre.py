"""What the actors of one world share, and what each of them does: step by step, until the world is calm."""

import asyncio
from random import Random

from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_runs.known_names import KnownNames
from tests.controller.random_runs.ledger import Ledger
from tests.controller.random_runs.listing import Listing
from tests.controller.random_runs.random_world import REQUEST_ERRORS, RandomWorld, says_nothing
from tests.controller.random_runs.reading import Reading
from tests.controller.random_runs.settings import LifeSettings
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.sim.attempts import ModelBreachError

SCOPE = "s"
"""Where the streams of the keepers are; it is there as long as the world."""

_PATIENCE_SECONDS_MAX = 2.0


class Theatre:
    """The world, what is known of it, and whether faults are off."""

    def __init__(self, world: RandomWorld, settings: LifeSettings) -> None:
        self.world = world
        self.settings = settings
        self.random: Random = world.random
        self.ledger = Ledger(now=world.loop.time)
        self.models: dict[str, StreamModel] = {}
        """The newest incarnation of each name."""
        self.past: list[StreamModel] = []
        self.groups = KnownNames()
        self.tables = KnownNames()
        self.scopes = KnownNames()
        self.reading = Reading(world, self.ledger)
        self.listing = Listing(world)
        self.calm = False

    def all_streams(self) -> list[StreamModel]:
        return [*self.past, *self.models.values()]

    def readable(self) -> list[StreamModel]:
        """Streams that surely exist."""
        stages = (Stage.ACTIVE, Stage.SEALING, Stage.SEALED)
        return [model for model in self.models.values() if model.stage in stages]


class Actor:
    """One client. A step may raise REQUEST_ERRORS that say nothing; others are breaches."""

    def __init__(self, theatre: Theatre, name: str) -> None:
        self.theatre = theatre
        self.world = theatre.world
        self.ledger = theatre.ledger
        self.random = theatre.random
        self.name = name
        self._impatience = 0.0

    async def step(self) -> None:
        """One thing that this actor does."""
        raise NotImplementedError

    def owes(self) -> bool:
        """Whether something must still come to its end when the world is calm."""
        return False

    async def live(self) -> None:
        """Until the world is calm, and nothing is owed."""
        steps = 0
        while not self.theatre.calm or self.owes():
            await self.think()
            steps += 1
            if steps > self.theatre.settings.steps_max and not self.theatre.calm:
                # Worlds that are quick come to rest before their troubles do.
                await asyncio.sleep(1.0)
                if not self.owes():
                    continue
            try:
                await self.step()
                self._impatience = 0.0
            except REQUEST_ERRORS as error:
                self.trace("step", type(error).__name__, error)
                if not says_nothing(error):
                    raise ModelBreachError(f"{self.name}: unexpected refusal {error!r}") from error
                await self.be_patient()

    async def think(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / self.theatre.settings.think_seconds_mean))

    async def be_patient(self) -> None:
        self._impatience = min(max(0.01, self._impatience * 2), _PATIENCE_SECONDS_MAX)
        await asyncio.sleep(self._impatience * self.random.random())

    def trace(self, *words: object) -> None:
        self.world.loop.trace(f"[{self.name}]", *words)

    def breach(self, why: str, error: SegmentStoreError | None = None) -> ModelBreachError:
        found = ModelBreachError(f"{self.name}: {why}")
        found.__cause__ = error
        return found
