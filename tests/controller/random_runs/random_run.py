"""One seed from the first boot to an empty store.

Faults on: actors use the store and the controller while things break. Faults off: everybody comes to an end. Then what
is left is compared with what was told, as it is, after a crash and after a power cut; then everything is deleted.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_runs.audit import audit
from tests.controller.random_runs.group_keeper import GroupKeeper
from tests.controller.random_runs.job_driver import JobDriver
from tests.controller.random_runs.leftovers import leftovers
from tests.controller.random_runs.lister import Lister
from tests.controller.random_runs.looker import Looker
from tests.controller.random_runs.random_world import REQUEST_ERRORS, RandomWorld
from tests.controller.random_runs.reshaper import Reshaper
from tests.controller.random_runs.scope_keeper import ScopeKeeper
from tests.controller.random_runs.settings import LifeSettings, Theme, draw_settings
from tests.controller.random_runs.stream_keeper import StreamKeeper
from tests.controller.random_runs.stream_writer import StreamWriter
from tests.controller.random_runs.table_keeper import TableKeeper
from tests.controller.random_runs.theatre import SCOPE, Actor, Theatre
from tests.controller.random_runs.transactor import Transactor
from tests.sim.attempts import ModelBreachError
from tests.sim.checkers import check_running
from tests.sim.loop import SimLoop

_CHECK_EVERY_STEPS = 997
_END_SECONDS = 300.0
"""Of virtual time, within which everything that was begun has come to its end."""


@dataclass(frozen=True, slots=True)
class RunStory:
    """What happened, for the curious."""

    hosts: int
    streams: int
    segments: int
    events: int
    transactions: int
    versions: int
    """Committed ones."""
    retained: int
    """Heads that a policy made."""
    watermarks: int
    seconds: float


async def run_random(loop: SimLoop, settings: LifeSettings | None = None) -> RunStory:
    """Raises ModelBreachError or SimulationError for whatever is wrong."""
    settings = settings or draw_settings(loop.random)
    loop.executor_delay = partial(_job_seconds, settings.swarm.trouble.job_seconds_mean)
    world = RandomWorld(loop, settings)
    theatre = Theatre(world, settings)
    actors = _cast(theatre)
    loop.watch(_CHECK_EVERY_STEPS, lambda: _check(world))
    world.boot()
    await _create_scope(theatre)
    work = [loop.create_task(actor.live()) for actor in actors]
    stops = loop.create_task(world.stop_containers())
    trouble = loop.create_task(world.make_trouble())
    try:
        await _until_over(trouble, work)
        stops.cancel()
        world.calm()
        theatre.calm = True
        await world.wait_until_running()
        await world.within(_END_SECONDS, "clients finish", lambda: all(t.done() for t in work))
    finally:
        for task in work:
            if task.done() and not task.cancelled():
                task.result()
    await _end(theatre, actors)
    return RunStory(
        hosts=world.host_count,
        streams=sum(model.incarnation for model in theatre.models.values()),
        segments=len(theatre.ledger.segments),
        events=len(theatre.ledger.events),
        transactions=len(theatre.ledger.transactions),
        versions=sum(
            each.is_committed for model in theatre.all_streams() for each in model.versions
        ),
        retained=theatre.reading.retained,
        watermarks=sum(len(model.times.watermarks) for model in theatre.all_streams()),
        seconds=loop.time(),
    )


def _cast(theatre: Theatre) -> list[Actor]:
    settings = theatre.settings
    streams = [f"stream{number}" for number in range(settings.stream_count)]
    actors: list[Actor] = []
    for stream in streams:
        actors += [StreamKeeper(theatre, stream), Reshaper(theatre, stream)]
        actors += [
            StreamWriter(theatre, stream, number) for number in range(settings.writers_per_stream)
        ]
        actors += [JobDriver(theatre, stream, number) for number in range(settings.jobs_per_stream)]
        actors += [
            Transactor(theatre, stream, number) for number in range(settings.transactors_per_stream)
        ]
    if settings.theme is not None:
        groups = [GroupKeeper(theatre, "group", streams)] if settings.theme is Theme.RESETS else []
        return [*actors, *groups, Looker(theatre, 1)]
    return [
        *actors,
        GroupKeeper(theatre, "group", streams),
        TableKeeper(theatre, "table"),
        ScopeKeeper(theatre, "elsewhere"),
        Lister(theatre),
        Looker(theatre, 1),
        Looker(theatre, 2),
    ]


async def _create_scope(theatre: Theatre) -> None:
    while True:
        try:
            await theatre.world.call(
                "createScope", api.ScopeInfo(scope=SCOPE), api.CreateScopeStatus
            )
        except REQUEST_ERRORS:
            await asyncio.sleep(0.1)
        else:
            theatre.scopes.of(SCOPE).say(True, theatre.ledger.tick())
            return


async def _until_over(trouble: "asyncio.Task[None]", work: "list[asyncio.Task[None]]") -> None:
    """Trouble has its time; an actor that finds a breach ends it at once."""
    while not trouble.done():
        await asyncio.sleep(0.05 if trouble.get_loop().time() < 20 else 1.0)
        for task in work:
            if task.done():
                task.result()
    trouble.result()


async def _end(theatre: Theatre, actors: list[Actor]) -> None:
    world = theatre.world
    await _until_clean(theatre)
    await audit(theatre)
    for power in (False, True):
        await world.restart(power=power)
        await world.wait_until_running()
        await _until_clean(theatre)
        await audit(theatre)
    await _delete_everything(theatre, actors)
    await _until_clean(theatre)


async def _until_clean(theatre: Theatre) -> None:
    """Nothing that nobody wants is left, before too long."""
    ends = theatre.world.loop.time() + _END_SECONDS
    found = ["nobody looked"]
    while theatre.world.loop.time() < ends:
        try:
            found = await leftovers(theatre)
        except REQUEST_ERRORS as error:
            found = [repr(error)]
        if not found:
            return
        # Readers learn of segments that were born meanwhile.
        for model in theatre.readable():
            try:
                await theatre.reading.learn_epochs(model)
            except REQUEST_ERRORS as error:
                found.append(repr(error))
        await asyncio.sleep(1.0)
    raise ModelBreachError("left over: " + "; ".join(found))


async def _delete_everything(theatre: Theatre, actors: list[Actor]) -> None:
    for actor in actors:
        if isinstance(actor, GroupKeeper | TableKeeper | ScopeKeeper | StreamKeeper):
            await actor.come_to_an_end()


def _job_seconds(mean: float, random: Random) -> float:
    seconds = random.expovariate(1 / mean)
    return seconds * 20 if random.random() < 0.01 else seconds


def _check(world: RandomWorld) -> None:
    check_running(world.containers())
