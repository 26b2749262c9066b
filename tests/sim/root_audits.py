"""Audits of Tier 2 by somebody who has only the root (H13, H15): now and then while things break, and at the end."""

import asyncio
from contextlib import aclosing

from segmentstore.contracts.errors import SegmentStoreError
from tests.sim.attempts import ModelBreachError
from tests.sim.checkers import audit_storage
from tests.sim.client import judge
from tests.sim.world import StorageAtRest, World

_TRIES_MAX = 100


async def audit_now_and_then(world: World) -> None:
    """Until cancelled, ever more rarely: whatever is in Tier 2 then must be a moment of the past."""
    pause = 0.5
    while True:
        await asyncio.sleep(world.random.expovariate(1 / pause))
        pause *= 1.3
        container_id = world.random.randrange(world.swarm.node.container_count)
        await _audit_once(world, container_id)


async def audit_roots(world: World) -> dict[str, bytes]:
    """With nothing else going on: the content of every segment in Tier 2, by name."""
    contents: dict[str, bytes] = {}
    for container_id in range(world.swarm.node.container_count):
        for _ in range(_TRIES_MAX):
            found = await _audit_while_the_owner_stands_still(world, container_id)
            if found is not None:
                contents |= found
                break
            await asyncio.sleep(1)
        else:
            raise ModelBreachError(f"the root of container {container_id} never rests")
    return contents


async def _audit_while_the_owner_stands_still(
    world: World, container_id: int
) -> dict[str, bytes] | None:
    """Upkeep of Tier 2 goes on for ever, and in a slow world always comes between."""
    assert world.owner is not None, "nobody owns anything"
    node = world.owner.node
    world.loop.pause(node)
    try:
        return await _audit_once(world, container_id)
    finally:
        world.loop.resume(node)


async def _audit_once(world: World, container_id: int) -> dict[str, bytes] | None:
    """None if Tier 2 did not answer or moved on meanwhile."""
    storage: StorageAtRest | None = None
    before: object = None
    try:
        storage = await world.machine.open_storage(container_id)
        if storage is None:
            return {}
        before = await storage.refresh()
        contents = await audit_storage(storage, world.model, container_id)
        async with aclosing(storage.list_segments("", "")) as records:
            names = [record.name async for record in records]
        if await storage.refresh() is not before:
            return None
    except SegmentStoreError as error:
        if storage is not None and before is not None and await _rests(storage, before):
            judge(error)
        return None
    except ModelBreachError:
        # What was read before and after the root moved are two moments: together they need not make one.
        if storage is None or before is None or await _rests(storage, before):
            raise
        return None
    unknown = [name for name in names if name not in contents]
    world.loop.trace("root", container_id, len(contents), "segments", *unknown)
    return contents


async def _rests(storage: StorageAtRest, before: object) -> bool:
    try:
        return await storage.refresh() is before
    except SegmentStoreError:
        return False
