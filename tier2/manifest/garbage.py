"""Objects that nothing refers to any more: which a change sets free, when they may go, which have no garbage record.

- References are derived from the layout entries that are live under one manifest, not counted.
- Garbage is recorded under the manifest in the same version that drops the last reference. An object that loses some
  references and keeps others is thinned: its living part may be worth a copy
  (tier2/maintenance/garbage_collection.py).
- The grace (`garbage_grace_seconds` in settings.py) runs on the loop's clock from when this process first saw the
  record; a restart begins it anew. No clock of the store is ever looked at.
- What a snapshot needs stays while the snapshot does, and so does its garbage record (tier2/manifest/snapshots.py).
- An orphan is an object of an epoch below ours that neither the manifest nor a garbage record names. Objects of our own
  epoch are never orphans: a task of this process may be about to publish them. What was an orphan is recorded as
  garbage, and waits as all garbage does: readers that began with an older manifest may be on their way to it.
- What is left of a race of conditional puts (tier2/manifest/claim.py) goes when a grace is over that begins when this
  process saw it: another process may be racing still.
"""

from asyncio import get_running_loop, sleep
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice

from segmentstore.contracts.errors import ServiceHaltError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.object_store import ObjectStore
from tier2.container_objects import (
    ObjectIdentity,
    ObjectKind,
    ObjectNames,
    ObjectReference,
)
from tier2.layout_entry import LayoutEntry
from tier2.manifest.snapshots import Snapshot, is_in_a_snapshot
from tier2.manifest.view import ManifestView
from tier2.sst.keyspace import (
    GARBAGE,
    garbage_key,
    garbage_of,
    group_of,
    range_of,
    reference_key,
    reference_range,
)

_SCANS_PER_TURN = 32
_ENTRIES_PER_TURN = 512
_REFERENCE_PAGE = 256
_SWEPT_PER_STEP = 16
"""Objects of earlier owners, each looked up in some 80 us."""
_SWEPT_KEYS_FIRST = 8_192
_SWEPT_KEYS_MAX = 131_072
"""So many are held at a time: some 30 MB, for a container with millions of objects."""


@dataclass(frozen=True, slots=True)
class FreedObjects:
    """What becomes of the objects that entries were dropped of, in the order of their identities."""

    unreferenced: Sequence[ObjectReference]
    thinned: Sequence[ObjectIdentity]


async def freed_objects(
    dropped: Iterable[tuple[SegmentId, LayoutEntry]],
    still_named: AbstractSet[ObjectIdentity],
    view: ManifestView,
) -> FreedObjects:
    """`still_named`: objects that the same change names anew. Raises ServiceHaltError if layouts and references
    contradict each other.

    In slices: a segment that is deleted may have very many chunks.
    """
    # By the bytes of their identities, which have the same order and cost a twentieth to sort.
    by_object: dict[bytes, tuple[ObjectIdentity, set[bytes]]] = {}
    for number, (segment_id, entry) in enumerate(dropped, 1):
        key = reference_key(entry.identity, segment_id, entry.end_offset)
        by_object.setdefault(group_of(key), (entry.identity, set()))[1].add(key)
        if number % _ENTRIES_PER_TURN == 0:
            await sleep(0)
    unreferenced: list[ObjectReference] = []
    thinned: list[ObjectIdentity] = []
    for number, group in enumerate(sorted(by_object)):
        identity, keys = by_object[group]
        if identity not in still_named and await _all_dropped(view, identity, keys):
            unreferenced.append((ObjectKind.CHUNKS, identity))
        else:
            thinned.append(identity)
        if number % _SCANS_PER_TURN == _SCANS_PER_TURN - 1:
            await sleep(0)
    return FreedObjects(unreferenced, thinned)


async def _all_dropped(view: ManifestView, identity: ObjectIdentity, dropped: set[bytes]) -> bool:
    start, end = reference_range(identity)
    found = 0
    async with aclosing(view.pages(start, end, limit=_REFERENCE_PAGE, group=start)) as pages:
        async for page in pages:
            if any(key not in dropped for key, _ in page):
                return False
            found += len(page)
    if found != len(dropped):
        raise ServiceHaltError(
            f"layouts and references disagree object={identity} found={found} dropped={len(dropped)}"
        )
    return True


async def is_named(view: ManifestView, reference: ObjectReference) -> bool:
    """Whether anything under this manifest refers to the object."""
    kind, identity = reference
    if kind is ObjectKind.SST:
        return any(part.identity == identity for sst in view.manifest.ssts for part in sst)
    start, end = reference_range(identity)
    return await view.first(start, end, group=start) is not None


async def is_known(view: ManifestView, reference: ObjectReference) -> bool:
    """Whether the object is referred to, or waits as garbage."""
    return await is_named(view, reference) or await view.get(garbage_key(*reference)) is not None


class GarbageWatch:
    """Remembers since when each garbage record is known here.

    It watches `watched_max` records at most: the grace of the others begins when some of these are gone.
    """

    def __init__(self, *, grace_seconds: float, batch_max: int, watched_max: int) -> None:
        self._grace_seconds = grace_seconds
        self._batch_max = batch_max
        self._watched_max = max(batch_max, watched_max)
        self._seen_since: dict[ObjectReference, float] = {}
        self._not_looked_at = 0

    @property
    def known_count(self) -> int:
        """Records found at the last look and written since. If there were too many to watch, a lower bound above 0."""
        return len(self._seen_since) + self._not_looked_at

    def recorded(self, count: int) -> None:
        """Another version recorded so much garbage."""
        self._not_looked_at += count

    async def due(
        self, view: ManifestView, snapshots: Sequence[Snapshot] = ()
    ) -> list[ObjectReference]:
        """Recorded garbage whose grace is over and that no snapshot needs: up to a batch, oldest identities first."""
        now = get_running_loop().time()
        recorded: list[ObjectReference] = []
        start, end = range_of(GARBAGE)
        following: bytes | None = start
        while following is not None and len(recorded) < self._watched_max:
            page, following = await view.scan(following, end, limit=self._batch_max)
            recorded += [
                garbage_of(key)
                for key, value in page
                if value is not None and not is_in_a_snapshot(snapshots, garbage_of(key)[1], value)
            ]
        self._seen_since = {
            reference: self._seen_since.get(reference, now)
            for reference in recorded[: self._watched_max]
        }
        self._not_looked_at = max(0, len(recorded) - self._watched_max) + (following is not None)
        due = (
            reference
            for reference, since in self._seen_since.items()
            if now - since >= self._grace_seconds
        )
        return list(islice(due, self._batch_max))

    def removed(self, references: list[ObjectReference]) -> None:
        for reference in references:
            self._seen_since.pop(reference, None)


class OrphanSweep:
    """Looks once for each claim for what earlier owners left behind, in the order of keys, a few objects in a step.

    The keys that it is about to look at are held, a bounded number of them: a listing never stays open between steps,
    and those that are needed for very many objects begin anew and pass over what was looked at. So each holds twice as
    many as the one before it.
    """

    def __init__(self, *, object_store: ObjectStore, names: ObjectNames, epoch: int) -> None:
        self._store = object_store
        self._names = names
        self._epoch = epoch
        self._ahead: deque[ObjectReference] = deque()
        self._held_max = _SWEPT_KEYS_FIRST
        self._behind: ObjectReference | None = None
        """The last one that was looked at."""
        self._is_listed = False
        """What is held are the last ones."""
        self.runs_beside = False
        """A task looks beside publications, so garbage collection need not."""
        self.done = False

    async def step(self, view: ManifestView) -> list[ObjectReference]:
        """Of the next few those that are orphans; `done` behind the last. What is held of the listing may be stale:
        deleting is idempotent.

        Raises StorageError; the next step looks at the same objects again.
        """
        if not self._ahead and not self._is_listed:
            await self._list()
        found: list[ObjectReference] = []
        looked_at = list(islice(self._ahead, _SWEPT_PER_STEP))
        for reference in looked_at:
            await sleep(0)
            if not await is_known(view, reference):
                found.append(reference)
        for _ in looked_at:
            self._behind = self._ahead.popleft()
        self.done = self._is_listed and not self._ahead
        return found

    async def _list(self) -> None:
        """Hold the next ones of epochs below ours, of SSTs first."""
        ahead: deque[ObjectReference] = deque()
        held_max = min(self._held_max, _SWEPT_KEYS_MAX)
        self._held_max = 2 * held_max
        for kind in ObjectKind:
            async with aclosing(self._store.list(self._names.folder(kind))) as listing:
                async for info in listing:
                    identity = self._names.identity(kind, info.key)
                    if identity is None:
                        continue
                    if identity.epoch >= self._epoch:
                        break
                    if self._behind is not None and (kind, identity) <= self._behind:
                        continue
                    if len(ahead) == held_max:
                        self._ahead = ahead
                        return
                    ahead.append((kind, identity))
        self._ahead, self._is_listed = ahead, True


class ProbeSweep:
    """Deletes, once for each claim, what races of conditional puts left behind whose answers were lost."""

    def __init__(
        self, *, object_store: ObjectStore, names: ObjectNames, grace_seconds: float
    ) -> None:
        self._store = object_store
        self._names = names
        self._grace_seconds = grace_seconds
        self._seen: list[str] | None = None
        self._not_before = 0.0

    async def step(self) -> None:
        """Look at first, and delete in a later step. Raises StorageError."""
        now = get_running_loop().time()
        if self._seen is None:
            async with aclosing(self._store.list(self._names.probes)) as listing:
                self._seen = [info.key async for info in listing]
            self._not_before = now + self._grace_seconds
        while self._seen and now >= self._not_before:
            await self._store.delete(self._seen[-1])
            self._seen.pop()
