"""Containers whose root is lost begin anew, in the Tier 2 where they were, because a person said so.

Everything else about a recovery changes nothing in Tier 2; this writes a root.
"""

from collections.abc import Sequence

from segmentstore.cli.tier2_reading import open_objects
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.runtime.entropy import random_id, system_random
from tier2.storage.components import Components
from tier2.storage.lost_root import begin_anew
from tier2.storage.root import Root
from tier2.storage.settings import StorageSettings


async def let_begin_anew(place: str, container_ids: Sequence[int], *, of_store: Root) -> list[Root]:
    """`place`: a bucket or a data directory; `of_store`: any sound root of it. Returns the new roots, in order.

    Raises InvalidRequestError if one of them has a sound root, StorageError.
    """
    random = system_random()
    roots: list[Root] = []
    async with open_objects(place, read_only=False) as store:
        for container_id in container_ids:
            components = Components(
                object_store=store,
                container_id=ContainerId(container_id),
                settings=StorageSettings(),
                executor=None,
            )
            roots.append(
                await begin_anew(
                    components,
                    of_store=of_store,
                    nonce=random_id(random),
                    log_id=random_id(random),
                )
            )
    return roots
