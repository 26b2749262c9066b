"""Which objects a change of layouts sets free (H12): references are derived from what is live under one root.

- An object that loses its last reference is garbage of the version that takes it.
- One that loses some and keeps others is thinned: its living part may be worth a copy (tier2/storage/repacking.py).
"""

from asyncio import sleep
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from segmentstore.contracts.errors import ServiceHaltError
from segmentstore.contracts.identifiers import SegmentId
from tier2.storage.object_names import ObjectIdentity, ObjectKind
from tier2.storage.root_publisher import ObjectReference
from tier2.storage.run_keys import reference_key, reference_range
from tier2.storage.run_values import LayoutEntry
from tier2.storage.run_view import RunView

_SCANS_PER_TURN = 32
_REFERENCE_PAGE = 256


@dataclass(frozen=True, slots=True)
class FreedObjects:
    """What becomes of the objects that entries were dropped of, in the order of their identities."""

    unreferenced: Sequence[ObjectReference]
    thinned: Sequence[ObjectIdentity]


async def freed_objects(
    dropped: Iterable[tuple[SegmentId, LayoutEntry]],
    still_named: AbstractSet[ObjectIdentity],
    view: RunView,
) -> FreedObjects:
    """`still_named`: objects that the same change names anew. Raises ServiceHaltError if layouts and references
    contradict each other."""
    by_object: dict[ObjectIdentity, set[bytes]] = {}
    for segment_id, entry in dropped:
        key = reference_key(entry.identity, segment_id, entry.end_offset)
        by_object.setdefault(entry.identity, set()).add(key)
    unreferenced: list[ObjectReference] = []
    thinned: list[ObjectIdentity] = []
    for number, (identity, keys) in enumerate(sorted(by_object.items())):
        if identity not in still_named and await _all_dropped(view, identity, keys):
            unreferenced.append((ObjectKind.CHUNKS, identity))
        else:
            thinned.append(identity)
        if number % _SCANS_PER_TURN == _SCANS_PER_TURN - 1:
            await sleep(0)
    return FreedObjects(unreferenced, thinned)


async def _all_dropped(view: RunView, identity: ObjectIdentity, dropped: set[bytes]) -> bool:
    start, end = reference_range(identity)
    found = 0
    following: bytes | None = start
    while following is not None:
        page, following = await view.scan(following, end, limit=_REFERENCE_PAGE, group=start)
        if any(key not in dropped for key, _ in page):
            return False
        found += len(page)
    if found != len(dropped):
        raise ServiceHaltError(
            f"layouts and references disagree object={identity} found={found} dropped={len(dropped)}"
        )
    return True
