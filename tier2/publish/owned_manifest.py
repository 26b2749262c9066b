"""The manifest of a container as its owner holds it: the last published version, the view below it, and the one way to
the next.

- All changes happen under `lock`. When a version is known to be published, the view changes before the next await.
- Identities come from one source for each claim, so that no two objects ever share one.
- A snapshot is made, proved or dropped by one version of the manifest, published like every other change.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from segmentstore.contracts.errors import InvalidRequestError, StorageError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import Publication
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from tier2.container_objects import IdentitySource, ObjectIdentity, ObjectReference
from tier2.manifest.claim import Claim
from tier2.manifest.commit import ManifestCommitter, ManifestUpdate
from tier2.manifest.garbage import GarbageWatch, OrphanSweep, ProbeSweep
from tier2.manifest.manifest import Manifest
from tier2.manifest.snapshots import Snapshot, read_snapshots
from tier2.publish.chunk_upload import Uploader
from tier2.read.components import Components
from tier2.read.published_segments import PublishedSegments
from tier2.settings import StorageSettings
from tier2.sst.keyspace import KEYSPACES, encode_garbage, garbage_key, snapshot_key
from tier2.sst.sst_format import Entry, Sst, SstBuilder, SstPartImage

_LOG = logging.getLogger(__name__)
_KEYS_PER_SLICE = 2_048
_THINNED_MAX = 1_024
SNAPSHOTS_MAX = 64
_SNAPSHOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class OwnedManifest:
    """One claim of one container's manifest."""

    def __init__(
        self,
        *,
        components: Components,
        segments: PublishedSegments,
        claim: Claim,
        wall_clock: WallClock,
        random: Random,
        grew: Callable[[SegmentId, int, float], None],
    ) -> None:
        """`grew` is told of each segment that gets chunks: how many, and the loop's time."""
        settings = components.settings
        self._components = components
        self._segments = segments
        self._wall_clock = wall_clock
        self._random = random
        self.lock = asyncio.Lock()
        self.view = components.view(claim.manifest)
        self.thinned: dict[ObjectIdentity, None] = {}
        self.unreadable: set[Sst] = set()
        """SSTs that a merge could not read: none goes beyond them, until the next claim."""
        self._grew = grew
        self._snapshots: list[Snapshot] | None = None
        self._pin_changes = 0
        self._landed_late: Publication | None = None
        self.publisher = ManifestCommitter(
            object_store=components.object_store,
            names=components.names,
            counters=components.counters,
            manifest=claim.manifest,
            tag=claim.tag,
        )
        self._identities = IdentitySource(epoch=claim.manifest.epoch, claim=random.getrandbits(32))
        self.garbage = GarbageWatch(
            grace_seconds=settings.garbage_grace_seconds,
            batch_max=settings.garbage_batch_max,
            watched_max=settings.garbage_watched_max,
        )
        self.sweep = OrphanSweep(
            object_store=components.object_store,
            names=components.names,
            epoch=claim.manifest.epoch,
        )
        self.probes = ProbeSweep(
            object_store=components.object_store,
            names=components.names,
            grace_seconds=settings.garbage_grace_seconds,
        )

    @property
    def manifest(self) -> Manifest:
        return self.publisher.manifest

    @contextmanager
    def uploading(self) -> Iterator[Uploader]:
        """A fresh one for each update. What was uploaded and not handed to a commit is garbage in the end."""
        uploader = Uploader(
            objects=self._components.objects,
            identities=self._identities,
            settings=self._components.settings,
            counters=self._components.counters,
            wall_clock=self._wall_clock,
            executor=self._components.executor,
        )
        try:
            yield uploader
        finally:
            if not uploader.handed_over:
                self.publisher.abandon(uploader.uploaded)

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

    async def snapshots(self) -> list[Snapshot]:
        """Manifest versions that are kept for backups. Read once, and again after one of them changed."""
        while self._snapshots is None:
            changes = self._pin_changes
            found = await read_snapshots(self.view)
            if changes == self._pin_changes:  # else one was made or dropped while these were read
                self._snapshots = found
        return self._snapshots

    def take_identity(self) -> ObjectIdentity:
        """One that no upload of ours has or will have."""
        return self._identities.take()

    async def note_growth(self, segment_ids: Iterable[SegmentId]) -> None:
        """A chunk was added to each of them, in the order given; one may be named many times."""
        now = asyncio.get_running_loop().time()
        for number, segment_id in enumerate(segment_ids):
            self._grew(segment_id, 1, now)
            if number % _KEYS_PER_SLICE == _KEYS_PER_SLICE - 1:
                await asyncio.sleep(0)

    async def note_unreadable_sst(self, what_is_left: str, error: StorageError) -> None:
        """Care for which no caller waits has met an SST that is damaged or gone, and leaves something as it is.

        That ends no owner: a caller that needs what is in it is told so. Raises StorageNotPrimaryError in a fenced one.
        """
        await self.publisher.require_owner()
        _LOG.error("%s, an SST cannot be read: %s", what_is_left, error)

    async def settle(self) -> None:
        """Find out what became of an open attempt, if there is one. Hold the lock."""
        attempt = await self.publisher.settle()
        if attempt is not None:
            if attempt.publication is not None:
                # Until it is asked for: a merge or a snapshot may be settled in between.
                self._landed_late = attempt.publication
            self._landed(attempt)

    def take_landed_late(self) -> Publication | None:
        """The publication that was published although its publish() raised; asked once."""
        publication, self._landed_late = self._landed_late, None
        return publication

    async def commit(self, attempt: ManifestUpdate, uploader: Uploader) -> None:
        """Publish the next version. Hold the lock. What was uploaded for it belongs to the attempt, however it ends."""
        uploader.handed_over = True
        await self.publisher.publish(attempt)
        self._landed(attempt)

    def _landed(self, attempt: ManifestUpdate) -> None:
        assert attempt.manifest is self.publisher.manifest, (
            f"another manifest landed {attempt.manifest.version}"
        )
        self.view = self._components.view(attempt.manifest)
        if attempt.changes_snapshots:
            self._snapshots = None
            self._pin_changes += 1
        self.garbage.recorded(attempt.garbage_count)
        if attempt.records:
            self._segments.end_change()

    def garbage_entries(self, references: Iterable[ObjectReference]) -> list[Entry]:
        """Records that make garbage of the objects in the next version."""
        value = encode_garbage(self.manifest.version + 1)
        return [(garbage_key(*reference), value) for reference in references]

    async def upload_sst(self, changes: dict[bytes, bytes | None], uploader: Uploader) -> Sst:
        images = await self._components.offload(build_sst, changes, self._components.settings)
        return tuple(await uploader.upload_parts(images))

    def next_manifest(
        self,
        ssts: Sequence[Sst],
        *,
        highest_segment_id: SegmentId | None = None,
        highest_sequence_number: SequenceNumber | None = None,
    ) -> Manifest:
        return self.manifest.successor(
            nonce=random_id(self._random),
            ssts=tuple(sst for sst in ssts if sst),
            highest_segment_id=highest_segment_id,
            highest_sequence_number=highest_sequence_number,
        )


def build_sst(changes: dict[bytes, bytes | None], settings: StorageSettings) -> list[SstPartImage]:
    """Empties `changes`. O(n log n). An empty SST has no part.

    Runs beside the loop in a thread: it sorts by keyspace and takes entries out in slices, because one sort or one
    release of 100,000 entries is many milliseconds in which the interpreter serves no other thread.
    """
    builder = SstBuilder(block_bytes=settings.sst_block_bytes, part_bytes=settings.sst_part_bytes)
    for keyspace in KEYSPACES:
        keys = [key for key in changes if key.startswith(keyspace)]
        keys.sort()
        for first in range(0, len(keys), _KEYS_PER_SLICE):
            builder.add([(key, changes.pop(key)) for key in keys[first : first + _KEYS_PER_SLICE]])
    assert not changes, f"keys outside every keyspace keys={list(changes)[:3]!r}"
    return builder.finish()


async def take_snapshot(
    name: str, *, owned: OwnedManifest, now_ms: int, is_proved: bool
) -> Snapshot:
    """Keep the manifest as it is. Under a name that is taken it gives the snapshot that has the name already.

    Raises InvalidRequestError, and what Storage.publish() raises.
    """
    if _SNAPSHOT_NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"a backup is named with 1 to 100 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    async with owned.lock:
        await owned.settle()
        snapshots = await owned.snapshots()
        for snapshot in snapshots:
            if snapshot.name == name:
                return snapshot
        if len(snapshots) >= SNAPSHOTS_MAX:
            raise InvalidRequestError(f"there are {SNAPSHOTS_MAX} backups already: drop one first")
        mark = owned.take_identity()
        snapshot = Snapshot(
            name, now_ms, mark.epoch, mark.serial, owned.manifest, is_proved=is_proved
        )
        await _publish_snapshot_record(name, snapshot.encode(), owned)
        return snapshot


async def prove_snapshot(name: str, version: int, *, owned: OwnedManifest) -> bool:
    """False if there is no such snapshot, or one of another version. Raises what Storage.publish() raises."""
    async with owned.lock:
        await owned.settle()
        for snapshot in await owned.snapshots():
            if snapshot.name == name and snapshot.manifest.version == version:
                if not snapshot.is_proved:
                    proved = replace(snapshot, is_proved=True)
                    await _publish_snapshot_record(name, proved.encode(), owned)
                return True
        return False


async def drop_snapshot(name: str, *, owned: OwnedManifest) -> bool:
    """False if there is no such snapshot. Raises what Storage.publish() raises."""
    async with owned.lock:
        await owned.settle()
        if all(snapshot.name != name for snapshot in await owned.snapshots()):
            return False
        await _publish_snapshot_record(name, None, owned)
        return True


async def _publish_snapshot_record(name: str, value: bytes | None, owned: OwnedManifest) -> None:
    with owned.uploading() as uploader:
        sst = await owned.upload_sst({snapshot_key(name): value}, uploader)
        manifest = owned.next_manifest((sst, *owned.manifest.ssts))
        await owned.commit(ManifestUpdate(manifest=manifest, changes_snapshots=True), uploader)
