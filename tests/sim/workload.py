"""What clients do to a store: seeded actors, each with a habit, all at once on a few segments.

*Steady* segments are never sealed or deleted; *volatile* names are sealed, deleted and created again in a loop;
*small* segments are many. Transactions have names that put them into the container of their target (H60).

An actor expects every request to fail, waits a little and goes on. It works until its operations are used up; what it
owes (a writer's events, a merge begun) it finishes once the faults are over.
"""

from random import Random

from tests.sim.actor import Actor, Stage
from tests.sim.caretakers import (
    AttributeKeeper,
    Deleter,
    Flusher,
    Merger,
    Sealer,
    SmallCrowd,
    Truncator,
)
from tests.sim.client import Client
from tests.sim.model import Model
from tests.sim.readers import RandomReader, TailReader
from tests.sim.settings import WorkSettings
from tests.sim.table_keepers import TableKeeper
from tests.sim.writers import Appender, EventWriter


def make_stage(client: Client, model: Model, random: Random, settings: WorkSettings) -> Stage:
    """Names for the actors of one world."""
    steady = [f"steady/{number}" for number in range(settings.segment_count)]
    volatile = [f"volatile/{number}" for number in range((settings.segment_count + 1) // 2)]
    return Stage(client, model, random, settings, steady, volatile)


def cast(stage: Stage) -> list[Actor]:
    """The actors of one world: at least one writer and one reader, the rest by the seed."""
    actors: list[Actor] = [
        EventWriter(stage, stage.random.choice(stage.steady), 0),
        TailReader(stage, stage.random.choice(stage.steady)),
    ]
    actors += [_draw_actor(stage, number) for number in range(1, stage.settings.actor_count)]
    return [*actors, *(TableKeeper(stage, number) for number in range(stage.settings.table_count))]


def _draw_actor(stage: Stage, number: int) -> Actor:
    random = stage.random
    steady = random.choice(stage.steady)
    volatile = random.choice(stage.volatile)
    either = random.choice((steady, volatile))
    match random.choices(range(12), (4, 4, 2, 2, 1, 2, 3, 2, 2, 1, 2, 1))[0]:
        case 0:
            return Appender(stage, either)
        case 1:
            return EventWriter(stage, steady, number)
        case 2:
            return RandomReader(stage, either)
        case 3:
            return TailReader(stage, either)
        case 4:
            return Sealer(stage, volatile)
        case 5:
            return Truncator(stage, either)
        case 6:
            return Merger(stage, steady, number)
        case 7:
            return Deleter(stage, volatile)
        case 8:
            return AttributeKeeper(stage, steady, number)
        case 9:
            return Flusher(stage, steady)
        case 10:
            return SmallCrowd(stage, "small", number)
        case _:
            return Appender(stage, steady)
