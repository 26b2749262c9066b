"""Verifies the files of topics' records in a whole Tier 2: which are registered, and that each is there, and sound.

    1  every partition: its files follow one another, and its batches follow them (files_of_partition())
    2  every registered file: its object is there and has its size; and, if the look is deep, is proved
       (tier2/offline/record_file_proof.py)
    3  the same of every manifest that a backup keeps, as far as the newest one does not name the same files
    4  every object that is named like a file: it is registered, or is told as one that nothing refers to

- The owner may be at work meanwhile. A file that is missing, or damaged, counts only if the newest manifest still
  registers it, or one that a backup still keeps: retention and compaction may come by, and backups be dropped.
- Each walk is under one manifest. If something that it names is gone, and the owner has published since, the walk
  begins again under the newest.
- A file of a topic that is being deleted may be gone, in a backup as well. What nothing refers to is no damage: its
  owner deletes it.

Memory: O(files), and one object.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.codec.topic_files import (
    TOPICS_PREFIX,
    RecordFileName,
    decode_file,
    file_key,
)
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.recovery.tier2_access import Tier2
from segmentstore.topics.record_files.published_files import PublishedFile, files_of_partition
from segmentstore.topics.topic_records import parse_partition_segment
from tier2.manifest.manifest import Manifest
from tier2.manifest.snapshots import Snapshot, read_snapshots
from tier2.manifest.view import with_view
from tier2.offline.record_file_proof import damages_of_registered_file
from tier2.store_reader import ContainerReader, SnapshotReader

_FINDINGS_MAX = 1_000
_ATTEMPTS_MAX = 4


@dataclass(slots=True)
class RecordFilesReport:
    """What was looked at, and found."""

    files: int = 0
    byte_count: int = 0
    unregistered: list[str] = field(default_factory=list)
    """The first of these keys, in order."""
    unregistered_count: int = 0
    damages: list[str] = field(default_factory=list)
    """The first of these."""
    damage_count: int = 0

    def add_damage(self, sentence: str) -> None:
        self.damage_count += 1
        if len(self.damages) < _FINDINGS_MAX:
            self.damages.append(sentence)


@dataclass(frozen=True, slots=True)
class _Place:
    segment_id: SegmentId
    segment_name: str
    published: PublishedFile


@dataclass(frozen=True, slots=True)
class _Registry:
    """What registers files: the newest manifest of a container, or one that a backup keeps."""

    container: ContainerReader
    snapshot: Snapshot | None = None
    """None: the newest."""

    @property
    def of(self) -> str:
        """Ends a sentence about what is registered here."""
        return "" if self.snapshot is None else f" backup={self.snapshot.name!r}"

    async def places(self) -> tuple[list[_Place], list[str]]:
        """Every registered file, and what contradicts itself or does not read; nothing of a backup that was dropped."""
        places: list[_Place] = []
        damages: list[str] = []
        for _ in range(_ATTEMPTS_MAX):
            newest = self.container.manifest
            kept = newest if self.snapshot is None else self.snapshot.manifest
            places, damages = await _places(SnapshotReader(self.container, kept))
            if not damages:
                break
            if self.snapshot is not None:
                return (places, damages) if await self._is_kept(self.snapshot) else ([], [])
            if (await self.container.refresh()).manifest.version == newest.version:
                break
        return places, damages

    async def still_registers(self, place: _Place) -> bool:
        """As the newest manifest has it."""
        if self.snapshot is not None:
            return await self._is_kept(self.snapshot)
        await self.container.refresh()
        key = file_key(place.published.number)
        value = (await self.container.load_attributes(place.segment_id, [key])).get(key)
        return value is not None and decode_file(value) == place.published.file

    async def _is_kept(self, snapshot: Snapshot) -> bool:
        await self.container.refresh()
        return snapshot in await with_view(self.container, read_snapshots)


async def verify_record_files(
    tier2: Tier2, *, deep: bool, progress: Callable[[int, int], object] = lambda _done, _total: None
) -> RecordFilesReport:
    """`progress` is called with bytes that were proved, and how many a listing shows in all. Raises StorageError."""
    report = RecordFilesReport()
    if not tier2.containers:
        return report
    store = tier2.containers[0].components.objects.store
    listed = await _listed(store)
    total = sum(listed.values())
    registered: set[str] = set()
    settled: set[str] = set()
    for registry in await _registries(tier2, report):
        places, damages = await registry.places()
        for sentence in damages:
            report.add_damage(f"{sentence}{registry.of}")
        for place in places:
            file, key = place.published.file, place.published.key
            if key not in registered:
                registered.add(key)
                report.files += 1
                report.byte_count += file.size
            if key in settled:
                continue
            found = await _damages(store, place, listed.get(key), deep=deep)
            if deep:
                progress(report.byte_count, max(total, report.byte_count))
            if found and not await registry.still_registers(place):
                continue  # a backup may need it
            settled.add(key)
            for sentence in found:
                report.add_damage(f"{sentence} segment={place.segment_name!r}{registry.of}")
    unregistered = sorted(listed.keys() - registered)
    report.unregistered = unregistered[:_FINDINGS_MAX]
    report.unregistered_count = len(unregistered)
    return report


async def find_lost_record_files(kept: Sequence[tuple[ContainerReader, Manifest]]) -> list[str]:
    """Sentences about files that these manifests, which a backup keeps, register and that are not there as they should
    be. O(files), and a listing. Raises StorageError."""
    damages: list[str] = []
    store = kept[0][0].components.objects.store
    listed = await _listed(store)
    for container, manifest in kept:
        places, found = await _places(SnapshotReader(container, manifest))
        damages += found
        for place in places:
            found = await _damages(store, place, listed.get(place.published.key), deep=False)
            damages += [f"{sentence} segment={place.segment_name!r}" for sentence in found]
    return damages


async def _listed(store: ObjectStore) -> dict[str, int]:
    """Keys of objects that are named like files, and their sizes; a listing may be stale."""
    found: dict[str, int] = {}
    async with aclosing(store.list(TOPICS_PREFIX)) as objects:
        async for info in objects:
            if RecordFileName.parsed(info.key) is not None:
                found[info.key] = info.size
    return found


async def _registries(tier2: Tier2, report: RecordFilesReport) -> list[_Registry]:
    """The newest manifests, then those of backups."""
    kept: list[_Registry] = []
    for reader in tier2.containers:
        try:
            snapshots = await with_view(reader, read_snapshots)
        except CorruptedDataError as error:
            report.add_damage(f"backups are not found container={reader.container_id}: {error}")
            continue
        kept += [_Registry(reader, snapshot) for snapshot in snapshots]
    return [*map(_Registry, tier2.containers), *kept]


async def _places(reader: ContainerReader) -> tuple[list[_Place], list[str]]:
    """Of one manifest. A damaged container is told of by others; here its files are not found."""
    places: list[_Place] = []
    damages: list[str] = []
    try:
        async with aclosing(reader.scan_layouts()) as layouts:
            async for layout in layouts:
                record = layout.record
                partition = parse_partition_segment(record.name)
                if partition is None:
                    continue
                try:
                    files, found = await files_of_partition(reader, record, *partition)
                except (CorruptedDataError, ObjectNotFoundError) as error:
                    damages.append(f"a partition does not read name={record.name!r}: {error}")
                    continue
                damages += found
                places += [_Place(record.segment_id, record.name, each) for each in files]
    except (CorruptedDataError, ObjectNotFoundError) as error:
        damages.append(
            f"files of topics are not all found container={reader.container_id}: {error}"
        )
    return places, damages


async def _damages(
    store: ObjectStore, place: _Place, listed_size: int | None, *, deep: bool
) -> list[str]:
    if not deep and listed_size == place.published.file.size:
        return []
    # Twice: a bit may have flipped on the way here.
    return await _looked_at(store, place.published, deep=deep) and await _looked_at(
        store, place.published, deep=deep
    )


async def _looked_at(store: ObjectStore, published: PublishedFile, *, deep: bool) -> list[str]:
    file, key = published.file, published.key
    try:
        if not deep:
            size = await store.size(key)
            wrong = f"a file has another size key={key} registered={file.size} size={size}"
            return [] if size == file.size else [wrong]
        content = await store.get_range(key, 0, file.size + 1)
    except ObjectNotFoundError:
        return [] if published.may_be_gone else [f"a registered file is missing key={key}"]
    # The executor of the tools is none: they do one thing at a time.
    return damages_of_registered_file(content, file, key=key)
