"""Verifies the files of topics' records in a whole Tier 2: which are registered, and that each is there, and sound.

    1  every partition: its files follow one another, and its batches follow them (files_of_partition())
    2  every registered file: its object is there and has its size; and, if the look is deep, is proved
       (tier2/offline/record_file_proof.py)
    3  the same of every manifest that a backup keeps, as far as the newest one does not name the same files
    4  every object that is named like a file: it is registered, or is told as one that nothing refers to

A file that is missing, or damaged, counts only if the newest manifest still registers it: retention and compaction may
come by. What nothing refers to is no damage: its owner deletes it. Memory: O(files), and one object.
"""

from collections.abc import Callable
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
from tier2.manifest.snapshots import read_snapshots
from tier2.manifest.view import with_view
from tier2.offline.record_file_proof import damages_of_registered_file
from tier2.store_reader import ContainerReader, SnapshotReader

_FINDINGS_MAX = 1_000


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
    reader: ContainerReader
    segment_id: SegmentId
    segment_name: str
    published: PublishedFile
    of: str
    """Which backup needs it; empty: the newest manifest does."""


async def verify_record_files(
    tier2: Tier2, *, deep: bool, progress: Callable[[int, int], object] = lambda _done, _total: None
) -> RecordFilesReport:
    """`progress` is called with bytes that were proved, and how many there are in all. Raises StorageError."""
    report = RecordFilesReport()
    if not tier2.containers:
        return report
    store = tier2.containers[0].components.objects.store
    listed = await _listed(store)
    places: dict[str, _Place] = {}
    for reader in tier2.containers:
        for place in await _places(reader, report):
            places.setdefault(place.published.key, place)
    for reader in tier2.containers:
        for snapshot in await with_view(reader, read_snapshots):
            kept = SnapshotReader(reader, snapshot.manifest)
            for place in await _places(kept, report, of=f" backup={snapshot.name!r}"):
                places.setdefault(place.published.key, place)
    total = sum(each.published.file.size for each in places.values())
    for key, place in places.items():
        report.files += 1
        report.byte_count += place.published.file.size
        for sentence in await _damages(store, place, listed.get(key), deep=deep):
            report.add_damage(f"{sentence} segment={place.segment_name!r}{place.of}")
        if deep:
            progress(report.byte_count, total)
    unregistered = sorted(listed.keys() - places.keys())
    report.unregistered = unregistered[:_FINDINGS_MAX]
    report.unregistered_count = len(unregistered)
    return report


async def _listed(store: ObjectStore) -> dict[str, int]:
    """Keys of objects that are named like files, and their sizes; a listing may be stale."""
    found: dict[str, int] = {}
    async with aclosing(store.list(TOPICS_PREFIX)) as objects:
        async for info in objects:
            if RecordFileName.parsed(info.key) is not None:
                found[info.key] = info.size
    return found


async def _places(
    reader: ContainerReader, report: RecordFilesReport, *, of: str = ""
) -> list[_Place]:
    """Of one container. A damaged one is told of by others; here its files are not found."""
    places: list[_Place] = []
    try:
        async with aclosing(reader.scan_layouts()) as layouts:
            async for layout in layouts:
                record = layout.record
                partition = parse_partition_segment(record.name)
                if partition is None:
                    continue
                try:
                    files, damages = await files_of_partition(reader, record, *partition)
                except (CorruptedDataError, ObjectNotFoundError) as error:
                    files, damages = (
                        [],
                        [f"a partition does not read name={record.name!r}: {error}"],
                    )
                for sentence in damages:
                    report.add_damage(f"{sentence}{of}")
                places += [
                    _Place(reader, record.segment_id, record.name, each, of) for each in files
                ]
    except (CorruptedDataError, ObjectNotFoundError) as error:
        report.add_damage(
            f"files of topics are not all found container={reader.container_id}{of}: {error}"
        )
    return places


async def _damages(
    store: ObjectStore, place: _Place, listed_size: int | None, *, deep: bool
) -> list[str]:
    if not deep and listed_size == place.published.file.size:
        return []
    damages: list[str] = []
    for _ in range(2):
        # Twice: a bit may have flipped on the way here.
        damages = await _looked_at(store, place.published, deep=deep)
        if not damages:
            return []
    return damages if await _is_registered(place) else []


async def _looked_at(store: ObjectStore, published: PublishedFile, *, deep: bool) -> list[str]:
    file, key = published.file, published.key
    try:
        if not deep:
            size = await store.size(key)
            wrong = f"a file has another size key={key} registered={file.size} size={size}"
            return [] if size == file.size else [wrong]
        content = await store.get_range(key, 0, file.size + 1)
    except ObjectNotFoundError:
        return [f"a registered file is missing key={key}"]
    # The executor of the tools is none: they do one thing at a time.
    return damages_of_registered_file(content, file, key=key)


async def _is_registered(place: _Place) -> bool:
    """As the newest manifest has it."""
    await place.reader.refresh()
    key = file_key(place.published.number)
    value = (await place.reader.load_attributes(place.segment_id, [key])).get(key)
    return value is not None and decode_file(value) == place.published.file
