"""The root in the hands of its owner: the last published version, the view below it, and the one way to the next.

- All changes happen under `lock`; the view changes in the same stretch in which a version is known to be published.
- Identities come from one source for each claim, so that no two objects ever share one.
"""

import asyncio
from collections.abc import Iterable, Sequence
from random import Random

from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import Publication
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from tier2.storage.claim import Claim
from tier2.storage.compaction_candidates import CompactionCandidates
from tier2.storage.components import Components
from tier2.storage.garbage import GarbageWatch, OrphanSweep
from tier2.storage.identity_source import IdentitySource
from tier2.storage.object_names import ObjectIdentity
from tier2.storage.pins import Pin, read_pins
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.root import Root, Run
from tier2.storage.root_publisher import Attempt, ObjectReference, RootPublisher
from tier2.storage.run_block import Entry
from tier2.storage.run_keys import KEYSPACES, garbage_key
from tier2.storage.run_part import PartImage, RunBuilder
from tier2.storage.run_values import encode_garbage
from tier2.storage.settings import StorageSettings
from tier2.storage.upload import Uploader

_SLICE = 2_048
_THINNED_MAX = 1_024


class OwnedRoot:
    """One claim of one container's root."""

    def __init__(
        self,
        *,
        components: Components,
        segments: PublishedSegments,
        claim: Claim,
        wall_clock: WallClock,
        random: Random,
    ) -> None:
        settings = components.settings
        self._components = components
        self._segments = segments
        self._wall_clock = wall_clock
        self._random = random
        self.lock = asyncio.Lock()
        self.view = components.view(claim.root)
        self.thinned: dict[ObjectIdentity, None] = {}
        self.candidates = CompactionCandidates(settings)
        self._pins: list[Pin] | None = None
        self._pin_changes = 0
        self._landed_late: Publication | None = None
        self.publisher = RootPublisher(
            object_store=components.object_store,
            names=components.names,
            counters=components.counters,
            root=claim.root,
            tag=claim.tag,
        )
        self._identities = IdentitySource(epoch=claim.root.epoch, claim=random.getrandbits(32))
        self.garbage = GarbageWatch(
            grace_seconds=settings.garbage_grace_seconds,
            batch_max=settings.garbage_batch_max,
            watched_max=settings.garbage_watched_max,
        )
        self.sweep = OrphanSweep(
            object_store=components.object_store,
            names=components.names,
            epoch=claim.root.epoch,
            batch_max=settings.garbage_batch_max,
        )

    @property
    def root(self) -> Root:
        return self.publisher.root

    def uploader(self) -> Uploader:
        """A fresh one for each publication or merge."""
        return Uploader(
            objects=self._components.objects,
            identities=self._identities,
            settings=self._components.settings,
            counters=self._components.counters,
            wall_clock=self._wall_clock,
            executor=self._components.executor,
        )

    @property
    def garbage_count(self) -> int:
        """Objects that wait to be deleted, as far as they have been seen."""
        return self.garbage.known_count + len(self.publisher.abandoned())

    def add_thinned(self, identities: Iterable[ObjectIdentity]) -> None:
        """Objects that lost references but not the last one; beyond a bound the oldest are forgotten."""
        self.thinned.update(dict.fromkeys(identities))
        while len(self.thinned) > _THINNED_MAX:
            self.take_thinned()

    def take_thinned(self) -> ObjectIdentity:
        oldest = next(iter(self.thinned))
        del self.thinned[oldest]
        return oldest

    async def pins(self) -> list[Pin]:
        """Root versions that are kept for backups. Read once, and again after one of them changed."""
        while self._pins is None:
            changes = self._pin_changes
            found = await read_pins(self.view)
            if changes == self._pin_changes:  # else one was made or dropped while these were read
                self._pins = found
        return self._pins

    def take_identity(self) -> ObjectIdentity:
        """One that no upload of ours has or will have."""
        return self._identities.take()

    async def note_growth(self, segment_ids: Iterable[SegmentId]) -> None:
        """A chunk was added to each of them, in the order given; one may be named many times."""
        now = asyncio.get_running_loop().time()
        for number, segment_id in enumerate(segment_ids):
            self.candidates.grew(segment_id, 1, now)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Find out what became of an open attempt, if there is one. Hold the lock."""
        attempt = await self.publisher.settle()
        if attempt is not None:
            if attempt.publication is not None:
                # Until it is asked for: a merge or a pin may be settled in between.
                self._landed_late = attempt.publication
            self._landed(attempt)

    def take_landed_late(self) -> Publication | None:
        """The publication that was published although its publish() raised; asked once."""
        publication, self._landed_late = self._landed_late, None
        return publication

    async def commit(self, attempt: Attempt) -> None:
        """Publish the next version. Hold the lock."""
        await self.publisher.publish(attempt)
        self._landed(attempt)

    def _landed(self, attempt: Attempt) -> None:
        assert attempt.root is self.publisher.root, f"another root landed {attempt.root.version}"
        self.view = self._components.view(attempt.root)
        if attempt.changes_pins:
            self._pins = None
            self._pin_changes += 1
        self.garbage.recorded(attempt.garbage_count)
        if attempt.records:
            self._segments.end_change()

    def garbage_entries(self, references: Iterable[ObjectReference]) -> list[Entry]:
        """Records that make garbage of the objects in the next version."""
        value = encode_garbage(self.root.version + 1)
        return [(garbage_key(*reference), value) for reference in references]

    async def upload_run(self, changes: dict[bytes, bytes | None], uploader: Uploader) -> Run:
        images = await self._components.offload(build_run, changes, self._components.settings)
        return tuple(await uploader.upload_parts(images))

    def next_root(
        self,
        runs: Sequence[Run],
        *,
        highest_segment_id: SegmentId | None = None,
        highest_sequence_number: SequenceNumber | None = None,
    ) -> Root:
        return self.root.successor(
            nonce=random_id(self._random),
            runs=tuple(run for run in runs if run),
            highest_segment_id=highest_segment_id,
            highest_sequence_number=highest_sequence_number,
        )


def build_run(changes: dict[bytes, bytes | None], settings: StorageSettings) -> list[PartImage]:
    """Empties `changes`. O(n log n). An empty run has no part.

    Runs beside the loop in a thread: it sorts by keyspace and takes entries out in slices, because one sort or one
    release of 100,000 entries is many milliseconds in which the interpreter serves nobody else.
    """
    builder = RunBuilder(block_bytes=settings.run_block_bytes, part_bytes=settings.run_part_bytes)
    for keyspace in KEYSPACES:
        keys = [key for key in changes if key.startswith(keyspace)]
        keys.sort()
        for first in range(0, len(keys), _SLICE):
            builder.add([(key, changes.pop(key)) for key in keys[first : first + _SLICE]])
    assert not changes, f"keys outside every keyspace keys={list(changes)[:3]!r}"
    return builder.finish()
