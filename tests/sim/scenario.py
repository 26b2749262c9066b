"""One seed from the first boot to the last audit."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from tests.sim.attempts import ModelBreachError
from tests.sim.checkers import audit, check_running
from tests.sim.client import REQUEST_ERRORS, Client
from tests.sim.loop import SimLoop
from tests.sim.root_audits import audit_now_and_then, audit_roots
from tests.sim.settings import Swarm, draw_swarm
from tests.sim.submission_order import submissions_watched
from tests.sim.table_keepers import TableKeeper
from tests.sim.workload import cast, make_stage
from tests.sim.world import Machine, World

MakeMachine = Callable[[SimLoop, Swarm], Machine]

_CHECK_EVERY_STEPS = 997
_DRAIN_SECONDS = 7200.0
_PATIENCE_TRIES = 100
_YOUNG_SECONDS = 20.0
"""After that an outage is waited for, and little else happens."""


@dataclass(frozen=True, slots=True)
class Story:
    """What happened, for the curious."""

    appends: int
    segments: int
    hosts: int
    seconds: float


async def play(loop: SimLoop, make_machine: MakeMachine, swarm: Swarm | None = None) -> Story:
    """Faults on, faults off, audits. Raises ModelBreachError or SimulationError for whatever is wrong."""
    with submissions_watched():
        return await _play(loop, make_machine, swarm)


async def _play(loop: SimLoop, make_machine: MakeMachine, swarm: Swarm | None) -> Story:
    swarm = swarm or draw_swarm(loop.random)
    loop.executor_delay = partial(_job_seconds, swarm.trouble.job_seconds_mean)
    machine = make_machine(loop, swarm)
    if not machine.has_tables:
        swarm = replace(swarm, work=replace(swarm.work, table_count=0))
    world = World(loop, swarm, machine)
    client = Client(loop, world.model, world)
    stage = make_stage(client, world.model, loop.random, swarm.work)
    actors = cast(stage)
    loop.trace("cast", *(f"{type(actor).__name__}:{actor.name}" for actor in actors))
    loop.watch(_CHECK_EVERY_STEPS, lambda: _check(world))
    world.boot()
    work = [loop.create_task(actor.live()) for actor in actors]
    trouble = loop.create_task(world.make_trouble())
    auditor = loop.create_task(audit_now_and_then(world))
    try:
        await _first_of(trouble, [*work, auditor])
        auditor.cancel()
        world.calm()
        stage.calm = True
        await world.wait_until_running()
        await world.within(_DRAIN_SECONDS, "clients finish", lambda: all(t.done() for t in work))
    finally:
        for task in work:
            if task.done() and not task.cancelled():
                task.result()
    keepers = [actor for actor in actors if isinstance(actor, TableKeeper)]
    await _audit_thrice(world, client, keepers)
    return Story(
        len(world.model.appends), len(world.model.incarnations), world.host_count, loop.time()
    )


async def _first_of(trouble: "asyncio.Task[None]", work: "list[asyncio.Task[None]]") -> None:
    """Trouble has its time; an actor that finds a breach ends it at once."""
    while not trouble.done():
        await asyncio.sleep(0.05 if trouble.get_loop().time() < _YOUNG_SECONDS else 1.0)
        for task in work:
            if task.done():
                task.result()
    trouble.result()


async def _audit_thrice(world: World, client: Client, keepers: list[TableKeeper]) -> None:
    """As it is, after a crash, and after a power cut right behind that: always the same (H40)."""
    await _drain(world, client)
    first = await _patiently(client, keepers)
    stored = await audit_roots(world)
    if world.machine.has_second_tier and stored != first:
        differ = sorted(name for name in first | stored if first.get(name) != stored.get(name))
        raise ModelBreachError(f"everything was flushed, yet Tier 2 has other content: {differ}")
    await world.restart()
    await world.wait_until_running()
    second = await _patiently(client, keepers)
    await world.restart(power=True)
    await world.wait_until_running()
    third = await _patiently(client, keepers)
    if not first == second == third:
        changed = [
            n for n in first | second | third if not first.get(n) == second.get(n) == third.get(n)
        ]
        raise ModelBreachError(f"a restart changed what can be read: {changed}")


async def _drain(world: World, client: Client) -> None:
    """Faults off: Tier 2 catches up, and nothing is throttled any more (H36)."""
    for _ in range(_PATIENCE_TRIES):
        try:
            await client.flush_everything()
            break
        except REQUEST_ERRORS as error:
            client.loop.trace("flush again", type(error).__name__)
            await asyncio.sleep(5)
    else:
        await client.flush_everything()
    await world.within(_DRAIN_SECONDS, "throttles end", lambda: _is_drained(world))


def _is_drained(world: World) -> bool:
    healths = [container.health() for container in world.containers()]
    return len(healths) == world.swarm.node.container_count and all(
        not health.throttle and not health.unflushed_bytes for health in healths
    )


async def _patiently(client: Client, keepers: list[TableKeeper]) -> dict[str, bytes]:
    """An audit; without faults it must go through, within a few tries of a store that still finds its feet."""
    for _ in range(_PATIENCE_TRIES):
        try:
            return await _audit(client, keepers)
        except REQUEST_ERRORS as error:
            client.loop.trace("audit again", type(error).__name__)
            await asyncio.sleep(5)
    return await _audit(client, keepers)


async def _audit(client: Client, keepers: list[TableKeeper]) -> dict[str, bytes]:
    contents = await audit(client, quiet=True)
    for keeper in keepers:
        await keeper.look()
    return contents


def _job_seconds(mean: float, random: Random) -> float:
    seconds = random.expovariate(1 / mean)
    return seconds * 20 if random.random() < 0.01 else seconds


def _check(world: World) -> None:
    world.machine.check()
    check_running(world.containers())
