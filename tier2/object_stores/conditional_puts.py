"""Whether conditional puts of a store are what they claim: several race, exactly one may win.

Some gateways check the condition and write in two steps; two owners of a container could then both believe that they
published. Such a store is refused at start, in words.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from segmentstore.contracts.errors import InvalidRequestError, ObjectChangedError, ObjectExistsError
from segmentstore.contracts.object_store import ObjectStore

RACERS = 8


async def require_compare_and_set(store: ObjectStore, key_prefix: str, *, rounds: int) -> None:
    """Raises InvalidRequestError if a race has not exactly one winner, StorageError if the store does not answer.

    `key_prefix` makes keys that were never used before; they are deleted in the end.
    """
    for number in range(rounds):
        key = f"{key_prefix}-{number}"
        try:
            tag = await _race("put-if-absent", partial(_create, store, key))
            await _race(
                "put-if-match",
                partial(_replace, store, key, tag),
            )
        finally:
            await store.delete(key)


async def _race(verb: str, put: Callable[[int], Awaitable[str]]) -> str:
    """The winner's tag. An answer that was lost proves nothing: it is raised, and the start is tried again."""
    results = await asyncio.gather(*(put(racer) for racer in range(RACERS)), return_exceptions=True)
    winners = [result for result in results if isinstance(result, str)]
    for result in results:
        if isinstance(result, BaseException) and not isinstance(
            result, ObjectExistsError | ObjectChangedError
        ):
            raise result
    if len(winners) != 1:
        raise InvalidRequestError(
            f"this object store cannot hold Tier 2: of {RACERS} racing {verb} requests {len(winners)} won where "
            "exactly one may; two owners of a container would overwrite each other's commits. Use a server whose "
            "conditional puts are atomic"
        )
    return winners[0]


async def _create(store: ObjectStore, key: str, racer: int) -> str:
    return await store.put_if_absent(key, _content(racer))


async def _replace(store: ObjectStore, key: str, tag: str, racer: int) -> str:
    return await store.put_if_match(key, _content(racer + RACERS), tag)


def _content(racer: int) -> bytes:
    return b"racer %d" % racer
