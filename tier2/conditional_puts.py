"""Whether conditional puts of a store are what they claim: several race, exactly one may win.

Some gateways check the condition and write in two steps; two owners of a container could then both believe that they
published. Such a store is refused, in words, before anything is kept there.
"""

import asyncio
from collections.abc import Awaitable, Callable

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    SegmentStoreError,
    StorageError,
)
from segmentstore.contracts.object_store import ObjectStore

_CREATING, _REPLACING = 1, 2


async def require_compare_and_set(store: ObjectStore, key: str, *, racers: int) -> None:
    """Two races, whose writers create an object and replace it; the caller deletes it.

    `key` was never used before. Raises InvalidRequestError if several won, or if what won cannot be read back, and what
    the store says, a StorageError, if none is known to have won: that proves nothing, so the caller tries again.
    """
    created = await _race(
        "put-if-absent", racers, lambda racer: store.put_if_absent(key, bytes((_CREATING, racer)))
    )
    tag = next(iter(created.values()))
    replaced = await _race(
        "put-if-match",
        racers,
        lambda racer: store.put_if_match(key, bytes((_REPLACING, racer)), tag),
    )
    found = await store.get(key)
    if found.content[0] != _REPLACING or found.content[1] not in replaced:
        raise _refusal("a conditional put that won cannot be read back")


async def _race(verb: str, racers: int, put: Callable[[int], Awaitable[str]]) -> dict[int, str]:
    """The one that won, and its tag."""
    winners: dict[int, str] = {}
    unanswered: list[SegmentStoreError] = []

    async def run(racer: int) -> None:
        try:
            winners[racer] = await put(racer)
        except (ObjectExistsError, ObjectChangedError):
            pass  # Another one was before it.
        except SegmentStoreError as error:
            unanswered.append(error)

    async with asyncio.TaskGroup() as group:
        for racer in range(racers):
            group.create_task(run(racer))
    if len(winners) > 1:
        raise _refusal(
            f"of {racers} racing {verb} requests {len(winners)} won where exactly one may"
        )
    if unanswered and not winners:
        raise unanswered[-1]
    if not winners:
        raise StorageError(
            f"of {racers} racing {verb} requests each was told that another one had won"
        )
    return winners


def _refusal(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"this object store cannot hold Tier 2: {why}; two owners of a container would overwrite each other's"
        " manifests. Use a server whose conditional puts are atomic"
    )
