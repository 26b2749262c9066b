"""What of a container is lost, as a listing shows; what is left without a manifest; an empty manifest to begin anew.

Lost chunks: which bytes of which segments a manifest names and nothing holds.

    one listing of the container's objects -> the SSTs once, in key order -> each layout entry has its object, and the
    object reaches to the end of the image

What the listing shows and nothing names tells something too. Objects of the manifest's epoch were uploaded and not yet
published when the owner ended. Objects of a higher epoch cannot be there before a manifest has that epoch: the
manifest is an older version of itself, brought back by a person or by a disk.

- No request for each chunk. What is inside of a chunk is not looked at: that is a deep verification (verify.py).
- A listing may be stale: an object that it does not show is asked for by name. Behind LOOKS_MAX objects that are
  really gone the listing is believed, since it is known by then that this store has lost objects.
- Something is lost only if the manifest, read again, is still the one that names it.
- Memory: two entries for each object, and RANGES_MAX findings; further ones are only counted.

A lost manifest: it is gone or damaged, and nothing else says which objects belong together. So what is found then is an
offer, and nothing else: the container is refused (tier2/manifest/claim.py) until a person brings its manifest back, or
says that it begins anew.

- A snapshot holds a manifest as a whole (tier2/manifest/snapshots.py), and lies in an SST. So snapshots are found by
  looking through the SSTs that a listing shows.
- Which of those SSTs are newer only the manifest told: a merge gives old entries a new identity. So snapshots are
  compared by the identities that are in them.
- SSTs that were merged may lie there for their grace, so a snapshot may be found that was dropped lately, and miss
  objects: a caller that goes on with it looks for lost chunks first.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
)
from segmentstore.contracts.identifiers import NO_SEGMENT, NO_SEQUENCE_NUMBER, ContainerId, Epoch
from segmentstore.contracts.storage import SegmentRecord
from tier2.container_objects import ObjectIdentity, ObjectKind
from tier2.layout_entry import LayoutEntry
from tier2.manifest.manifest import Manifest, decode_manifest
from tier2.manifest.snapshots import Snapshot
from tier2.manifest.view import ManifestView
from tier2.read.components import Components
from tier2.read.layout_walk import LayoutWalk
from tier2.sst.keyspace import (
    GARBAGE,
    SNAPSHOT,
    decode_record,
    garbage_of,
    range_of,
    snapshot_name_of,
)
from tier2.sst.sst_format import FOOTER_BYTES, describe_part
from tier2.store_reader import ContainerReader

RANGES_MAX = 1_000
LOOKS_MAX = 100
_PAGE_ENTRIES = 1_024
_ATTEMPTS_MAX = 4


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes of a segment that a layout places where nothing is."""

    segment: str
    start_offset: int
    end_offset: int
    """Exclusive."""
    object_key: str

    def __str__(self) -> str:
        return f"{self.segment} [{self.start_offset}, {self.end_offset}) in {self.object_key}"


@dataclass(slots=True)
class LostChunks:
    """Of one manifest version."""

    ranges: list[LostRange] = field(default_factory=list)
    range_count: int = 0
    segment_count: int = 0
    byte_count: int = 0
    newer_count: int = 0
    """Objects of a higher epoch than the manifest's: versions of the manifest are lost, and what they published."""
    highest_epoch: int = 0
    """Of the manifest and all objects."""
    unpublished_count: int = 0
    """Objects of the manifest's epoch that nothing names."""
    unpublished_bytes: int = 0
    last_segment: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether everything is there that should be."""
        return not self.range_count and not self.newer_count

    def add(self, lost: LostRange) -> None:
        self.range_count += 1
        self.byte_count += lost.end_offset - lost.start_offset
        self.segment_count += lost.segment != self.last_segment
        self.last_segment = lost.segment
        if len(self.ranges) < RANGES_MAX:
            self.ranges.append(lost)


async def find_lost_chunks(
    reader: ContainerReader, *, progress: Callable[[int], object] = lambda _: None
) -> LostChunks:
    """Under the newest manifest. `progress` is called with the number of segments gone through since the last call.

    O(objects + layout entries). Raises CorruptedDataError if an SST is lost or damaged, StorageError.
    """
    for _ in range(_ATTEMPTS_MAX):
        view = reader.view
        missing_sst = ""
        found = LostChunks()
        try:
            found = await _compare_with_listing(view, reader.components, progress)
        except ObjectNotFoundError as error:
            missing_sst = str(error)
        if not missing_sst and found.is_sound:
            return found
        newer = await reader.refresh()
        if newer.manifest.version != view.manifest.version:
            continue
        if missing_sst:
            raise CorruptedDataError(
                f"an SST that the current manifest names is missing container={reader.container_id}: {missing_sst}"
            )
        return found
    raise StorageError(
        f"the owner replaces objects faster than they can be listed container={reader.container_id}"
    )


async def find_lost_chunks_of_snapshot(
    manifest: Manifest,
    components: Components,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> LostChunks:
    """Under a manifest that a snapshot keeps: no owner may delete what it names. As find_lost_chunks()."""
    try:
        return await _compare_with_listing(components.view(manifest), components, progress)
    except ObjectNotFoundError as error:
        raise CorruptedDataError(
            f"an SST that the manifest of a backup names is missing container={manifest.container_id}: {error}"
        ) from error


async def _compare_with_listing(
    view: ManifestView, components: Components, progress: Callable[[int], object]
) -> LostChunks:
    """Under one manifest version. Raises ObjectNotFoundError if an SST is missing."""
    comparison = _ListingComparison(components, *await _listed_sizes(components))
    record: SegmentRecord | None = None
    walk = LayoutWalk()
    while walk.has_next_page():
        segments = 0
        for segment_id, found in await walk.next_page(view, limit=_PAGE_ENTRIES):
            if isinstance(found, bytes):
                record = decode_record(segment_id, found)
                segments += 1
            else:
                assert record is not None, "an entry comes behind its record"
                await comparison.look_at(record, found)
        progress(segments)
        await asyncio.sleep(0)
    await comparison.look_at_the_rest(view)
    return comparison.lost


async def _listed_sizes(components: Components) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Sizes of chunk objects and of parts of SSTs, by identity."""
    chunks: dict[bytes, int] = {}
    ssts: dict[bytes, int] = {}
    names = components.names
    async with aclosing(components.object_store.list(names.prefix)) as listing:
        async for info in listing:
            for kind, sizes in ((ObjectKind.CHUNKS, chunks), (ObjectKind.SST, ssts)):
                identity = names.identity(kind, info.key)
                if identity is not None:
                    sizes[identity.encode()] = info.size
    return chunks, ssts


class _ListingComparison:
    """Sizes of objects as they are listed, or known from a second look; and what is lost."""

    def __init__(
        self, components: Components, sizes: dict[bytes, int], ssts: dict[bytes, int]
    ) -> None:
        self._components = components
        self._sizes = sizes
        self._ssts = ssts
        self._named: set[bytes] = set()
        self._gone = 0
        self.lost = LostChunks()

    async def look_at(self, record: SegmentRecord, entry: LayoutEntry) -> None:
        """One layout entry: is its image there?"""
        if await self._size(entry.identity) >= entry.position + entry.size:
            return
        key = self._components.names.key(ObjectKind.CHUNKS, entry.identity)
        first = max(entry.start_offset, record.start_offset)
        if first < entry.end_offset:
            self.lost.add(LostRange(record.name, first, entry.end_offset, key))

    async def _size(self, identity: ObjectIdentity) -> int:
        """0 for an object that is not there: no image is that short."""
        encoded = identity.encode()
        self._named.add(encoded)
        size = self._sizes.get(encoded)
        if size is None:
            size = 0
            if self._gone < LOOKS_MAX:
                try:
                    size = await self._components.objects.size(ObjectKind.CHUNKS, identity)
                except ObjectNotFoundError:
                    self._gone += 1
            self._sizes[encoded] = size
        return size

    async def look_at_the_rest(self, view: ManifestView) -> None:
        """Behind the last entry: objects that no entry named."""
        epoch = view.manifest.epoch
        self._named.update(part.identity.encode() for sst in view.manifest.ssts for part in sst)
        start, end = range_of(GARBAGE)
        async with aclosing(view.pages(start, end, limit=_PAGE_ENTRIES)) as pages:
            async for page in pages:
                self._named.update(garbage_of(key)[1].encode() for key, _ in page)
        self.lost.highest_epoch = epoch
        for sizes in (self._sizes, self._ssts):
            for encoded, size in sizes.items():
                identity = ObjectIdentity.decode(encoded)
                if identity.epoch > epoch:
                    self.lost.newer_count += 1
                    self.lost.highest_epoch = max(self.lost.highest_epoch, identity.epoch)
                elif identity.epoch == epoch and encoded not in self._named:
                    self.lost.unpublished_count += 1
                    self.lost.unpublished_bytes += size


@dataclass(frozen=True, slots=True)
class Remains:
    """Objects of a container without a manifest."""

    object_count: int
    byte_count: int
    highest_epoch: int
    """In the names of the objects; 0 without any."""


async def find_remains(components: Components) -> Remains:
    """O(objects). Raises StorageError."""
    count = size = epoch = 0
    names = components.names
    async with aclosing(components.object_store.list(names.prefix)) as listing:
        async for info in listing:
            for kind in ObjectKind:
                identity = names.identity(kind, info.key)
                if identity is not None:
                    count, size = count + 1, size + info.size
                    epoch = max(epoch, identity.epoch)
    return Remains(count, size, epoch)


async def find_snapshots_without_manifest(components: Components) -> list[Snapshot]:
    """Snapshots that the SSTs speak of, by name; a damaged SST is passed over. O(SSTs). Raises StorageError."""
    ssts: list[tuple[ObjectIdentity, int]] = []
    names = components.names
    folder = names.folder(ObjectKind.SST)
    async with aclosing(components.object_store.list(folder)) as listing:
        async for info in listing:
            identity = names.identity(ObjectKind.SST, info.key)
            if identity is not None:
                ssts.append((identity, info.size))
    snapshots: dict[str, Snapshot] = {}
    removals: list[_SnapshotRemoval] = []
    for identity, size in ssts:
        try:
            entries, is_alone = await _snapshot_entries(components, identity, size)
        except (CorruptedDataError, ObjectNotFoundError):
            continue
        for key, value in entries:
            name = snapshot_name_of(key)
            if value is None:
                removals.append(_SnapshotRemoval(name, identity, is_alone))
                continue
            try:
                snapshot = Snapshot.decode(name, value)
            except CorruptedDataError:
                continue
            known = snapshots.get(name)
            if known is None or _record_order(known) < _record_order(snapshot):
                snapshots[name] = snapshot
    listed = {identity for identity, _ in ssts}
    for removal in removals:
        pin_or_none = snapshots.get(removal.name)
        if pin_or_none is not None and removal.takes(pin_or_none, listed):
            del snapshots[removal.name]
    return [snapshots[name] for name in sorted(snapshots)]


@dataclass(frozen=True, slots=True)
class _SnapshotRemoval:
    """An SST that says that there is no snapshot of that name, or was none when what it was merged from was written."""

    name: str
    sst: ObjectIdentity
    is_alone: bool
    """The SST says nothing else: that is how a snapshot is dropped. So it is as old as its identity says."""

    def takes(self, snapshot: Snapshot, listed: AbstractSet[ObjectIdentity]) -> bool:
        """Whether it came behind the snapshot; of a merged SST that shows by what the snapshot misses."""
        if (self.sst.epoch, self.sst.serial) < _snapshot_order(snapshot):
            return False
        return self.is_alone or any(
            part.identity not in listed for sst in snapshot.manifest.ssts for part in sst
        )


def _snapshot_order(snapshot: Snapshot) -> tuple[int, int]:
    """Grows from snapshot to snapshot."""
    return snapshot.epoch, snapshot.serial


def _record_order(snapshot: Snapshot) -> tuple[int, int, bool]:
    """Of two records of one snapshot the one that proves it is the newer."""
    return *_snapshot_order(snapshot), snapshot.is_proved


async def _snapshot_entries(
    components: Components, identity: ObjectIdentity, size: int
) -> tuple[list[tuple[bytes, bytes | None]], bool]:
    """What one part of an SST says of snapshots, and whether it is a single entry in all."""
    start, end = range_of(SNAPSHOT)
    footer = await components.objects.get_range(
        ObjectKind.SST, identity, max(0, size - FOOTER_BYTES), FOOTER_BYTES
    )
    part = describe_part(identity, size, footer)
    index = await components.files.index(part)
    entries: list[tuple[bytes, bytes | None]] = []
    number = index.block_at(start)
    is_alone = False
    while number < index.block_count:
        (block,) = await components.files.blocks(part, index, (number,))
        is_alone = index.block_count == block.count == 1
        last = block.lower_bound(end)
        entries += block.slice(block.lower_bound(start), last)
        if last < block.count:
            break
        number += 1
    return entries, is_alone


async def begin_anew(
    components: Components, *, of_store: Manifest, nonce: bytes, log_id: bytes
) -> Manifest:
    """Give a container without a sound manifest an empty one, below which nothing of the old one is; returns it.

    A damaged manifest is kept beside it. Everything else that is left of the old container is swept as orphans by the
    next owner: the new manifest has its highest epoch, the owner a higher one. `of_store`: any manifest of the same
    store.

    Raises InvalidRequestError if the manifest is sound, ObjectExistsError or ObjectChangedError if another process
    brings one, StorageError.
    """
    names, store = components.names, components.object_store
    manifest = Manifest(
        store_id=of_store.store_id,
        log_id=log_id,
        container_id=components.container_id,
        container_count=of_store.container_count,
        epoch=Epoch((await find_remains(components)).highest_epoch),
        version=1,
        nonce=nonce,
        highest_segment_id=NO_SEGMENT,
        highest_sequence_number=NO_SEQUENCE_NUMBER,
    )
    manifest.check()
    try:
        damaged = await store.get(names.manifest)
    except ObjectNotFoundError:
        await store.put_if_absent(names.manifest, manifest.encode())
        return manifest
    except CorruptedDataError:
        # The store itself has lost its bytes: there is no tag to replace it by, and nothing to keep.
        await store.delete(names.manifest)
        await store.put_if_absent(names.manifest, manifest.encode())
        return manifest
    if _is_sound_manifest(damaged.content, components.container_id):
        raise InvalidRequestError(
            f"the manifest of this container is sound: it does not begin anew container={components.container_id}"
        )
    await store.put(names.lost_root(nonce), [damaged.content])
    await store.put_if_match(names.manifest, manifest.encode(), damaged.tag)
    return manifest


def _is_sound_manifest(content: bytes, container_id: ContainerId) -> bool:
    try:
        return decode_manifest(content).container_id == container_id
    except CorruptedDataError:
        return False
