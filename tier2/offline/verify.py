"""Proves one container's Tier 2 without its owner: SSTs, chunks, and that they tell one story. Changes nothing.

    1  every part of every SST: each byte under its checksums, entries in order, filters complete
    2  every segment: its record readable and named by the catalog, its layout without a hole from start offset to
       length, each entry with its reference, each chunk's object there and long enough; and, if the look is deep,
       each chunk image sound, block by block, and the one that the entry means
    3  every catalog name leads to a record, every reference to a layout entry, no garbage record names what is
       referred to, and no key outlives the removal of its segment
    4  every object in the listing is named by the manifest, or is garbage, or is reported as an orphan (and left
       alone); none has an epoch above the manifest's, or the manifest is an old version of itself
    5  every manifest that a backup keeps: 1 to 3 without garbage, as far as the newest manifest does not share it

An object that is missing counts as lost only if the manifest, read again, still names it, or still keeps the
backup that does. Memory is bounded by the number of objects; a finding is a sentence, and findings beyond a limit are
only counted.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.contracts.storage import SegmentRecord
from tier2.container_objects import ObjectIdentity, ObjectKind
from tier2.layout_entry import LayoutEntry
from tier2.manifest.garbage import is_known, is_named
from tier2.manifest.snapshots import Snapshot, read_snapshots
from tier2.manifest.view import ManifestView, with_view
from tier2.offline.image_proof import ImageProver, SegmentImage
from tier2.read.chunk_images import read_proved
from tier2.read.layout_walk import LayoutContinuity
from tier2.sst.keyspace import (
    CATALOG,
    GARBAGE,
    REFERENCE,
    SEGMENT,
    catalog_key,
    decode_attribute,
    decode_id,
    decode_record,
    end_offset_of,
    garbage_of,
    is_layout_key,
    is_record_key,
    layout_key,
    name_of,
    range_of,
    record_key,
    reference_key,
    reference_of,
    segment_of,
)
from tier2.sst.sst_format import SstPart, verify_part
from tier2.store_reader import ContainerReader

_PAGE_ENTRIES = 512
_ATTEMPTS_MAX = 4
FINDINGS_MAX = 1_000

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes read so far and the bytes that the container's objects have in all."""


@dataclass(slots=True)
class VerifyReport:
    """What a verification of one container's Tier 2 looked at and what it found."""

    root_version: int = 0
    segments: int = 0
    bytes_of_segments: int = 0
    runs: int = 0
    chunks: int = 0
    garbage: int = 0
    backups: int = 0
    """Manifests that are kept for them; what they hold counts in none of the above."""
    damages: list[str] = field(default_factory=list)
    damage_count: int = 0
    orphans: list[str] = field(default_factory=list)
    orphan_count: int = 0

    @property
    def sound(self) -> bool:
        return self.damage_count == 0

    def add_damage(self, what: str) -> None:
        self.damage_count += 1
        if len(self.damages) < FINDINGS_MAX:
            self.damages.append(what)

    def add_orphan(self, key: str) -> None:
        self.orphan_count += 1
        if len(self.orphans) < FINDINGS_MAX:
            self.orphans.append(key)


async def verify_container(
    reader: ContainerReader,
    *,
    progress: Progress | None = None,
    deep: bool = True,
    objects: bool = True,
) -> VerifyReport:
    """O(everything the container holds); without `deep` no chunk is read, and it is O(layout entries).

    Without `objects` it neither asks whether a chunk's object is there nor looks at backups: for a caller that proves
    the chunks elsewhere.

    Raises StorageError if the store does not answer, or if an owner that is at work merges SSTs faster than they can be
    verified.
    """
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await _Verification(
                reader, VerifyProgress(progress), deep=deep, objects=objects
            ).run()
        except _ManifestMovedOnError:
            continue
    raise StorageError(
        f"the owner replaces SSTs faster than they can be verified container={reader.container_id}"
    )


@dataclass(slots=True)
class VerifyProgress:
    """What was read so far, by whichever manifest named it."""

    progress: Progress | None
    done_bytes: int = 0
    all_bytes: int = 0
    parts: set[ObjectIdentity] = field(default_factory=set)
    sizes: dict[ObjectIdentity, int] = field(default_factory=dict)

    def advance(self, size: int) -> None:
        self.done_bytes += size
        if self.progress is not None:
            self.progress(self.done_bytes, max(self.all_bytes, self.done_bytes))


class _ManifestMovedOnError(Exception):
    """An SST of the view is gone because the owner merged it: begin again."""


class _BackupDroppedError(Exception):
    """What it needed is gone with it."""


class _Verification:
    """One pass over one manifest version."""

    def __init__(
        self, reader: ContainerReader, course: VerifyProgress, *, deep: bool, objects: bool
    ) -> None:
        self._reader = reader
        self._course = course
        self._deep = deep
        self._objects = objects
        self._view = reader.view
        self._report = VerifyReport(
            root_version=reader.manifest.version, runs=len(reader.manifest.ssts)
        )
        self._layout: LayoutContinuity | None = None

    async def run(self) -> VerifyReport:
        listed = await self._list()
        await self._verify_ssts()
        if not self._report.sound:
            # A damaged SST cannot be scanned; it is the first thing to repair.
            return self._report
        try:
            await self._each_page(CATALOG, self._verify_catalog)
            await self._each_page(GARBAGE, self._verify_garbage)
            await self._each_page(REFERENCE, self._verify_references)
            await self._each_page(SEGMENT, self._verify_segments)
            self._finish_segment()
            await self._report_orphans(listed)
            if self._objects:
                await self._verify_backups()
        except ObjectNotFoundError as error:
            await self._expect_move(str(error))
        except CorruptedDataError as error:
            self._report.add_damage(str(error))
        return self._report

    async def _list(self) -> list[str]:
        keys: list[str] = []
        components = self._reader.components
        listing = components.object_store.list(components.names.prefix)
        async with aclosing(listing):
            async for info in listing:
                keys.append(info.key)
                self._course.all_bytes += info.size
        return keys

    async def _verify_ssts(self) -> None:
        for sst in self._view.manifest.ssts:
            for part in sst:
                if part.identity not in self._course.parts:
                    self._course.parts.add(part.identity)
                    await self._verify_part(part)

    async def _verify_part(self, part: SstPart) -> None:
        try:
            await read_proved(
                (ObjectKind.SST, part.identity),
                0,
                part.size + 1,
                partial(verify_part, part=part),
                self._reader.components,
            )
        except ObjectNotFoundError:
            await self._expect_move(f"SST is missing identity={part.identity}")
        except CorruptedDataError as error:
            self._report.add_damage(str(error))
        self._course.advance(part.size)

    async def _expect_move(self, damage: str) -> None:
        """Something that the manifest names is missing: the manifest moved on, or it is lost."""
        newer = await self._newer_view()
        if newer.manifest.version != self._view.manifest.version:
            raise _ManifestMovedOnError
        self._report.add_damage(damage)

    async def _each_page(
        self, keyspace: bytes, verify: Callable[[Sequence[tuple[bytes, bytes]]], Awaitable[None]]
    ) -> None:
        start, end = range_of(keyspace)
        async with aclosing(self._view.pages(start, end, limit=_PAGE_ENTRIES)) as pages:
            async for page in pages:
                await verify([(key, value) for key, value in page if value is not None])

    async def _verify_catalog(self, page: Sequence[tuple[bytes, bytes]]) -> None:
        ids = [decode_id(value) for _, value in page]
        values = await self._view.get_many([record_key(number) for number in ids])
        for (key, _), segment_id in zip(page, ids, strict=True):
            name = name_of(key)
            value = values.get(record_key(segment_id))
            if value is None:
                self._report.add_damage(f"name leads nowhere name={name!r} id={segment_id}")
            elif decode_record(segment_id, value).name != name:
                self._report.add_damage(f"name leads to another segment {name=} id={segment_id}")

    async def _verify_garbage(self, page: Sequence[tuple[bytes, bytes]]) -> None:
        for key, _ in page:
            kind, identity = garbage_of(key)
            self._report.garbage += 1
            if await is_named(self._view, (kind, identity)):
                self._report.add_damage(f"garbage is still referred to {kind.name} {identity}")

    async def _verify_references(self, page: Sequence[tuple[bytes, bytes]]) -> None:
        wanted = {key: reference_of(key) for key, _ in page}
        entries = await self._view.get_many(
            [layout_key(segment_id, end) for _, segment_id, end in wanted.values()]
        )
        for key, (identity, segment_id, end) in wanted.items():
            value = entries.get(layout_key(segment_id, end))
            if value is None or LayoutEntry.decode(end, value).identity != identity:
                self._report.add_damage(f"reference without a layout entry key={key.hex()}")

    async def _verify_segments(self, page: Sequence[tuple[bytes, bytes]]) -> None:
        records = [
            (key, decode_record(segment_of(key), value))
            for key, value in page
            if is_record_key(key)
        ]
        names = await self._view.get_many([catalog_key(record.name) for _, record in records])
        by_key = dict(records)
        for key, value in page:
            if key in by_key:
                self._finish_segment()
                self._begin_segment(by_key[key], names)
            elif (layout := self._layout) is None or (segment_of(key) != layout.record.segment_id):
                await self._expect_removal(key)
            elif is_layout_key(key):
                entry = LayoutEntry.decode(end_offset_of(key), value)
                self._note(layout.see(entry))
                await self._verify_entry(layout.record, entry)
            else:
                decode_attribute(value)

    async def _expect_removal(self, key: bytes) -> None:
        """A key without a record: it waits for a merge to take it along with its removed record."""
        if not await self._view.is_removed(record_key(segment_of(key))):
            self._report.add_damage(f"key of a segment that does not exist key={key.hex()}")

    def _begin_segment(self, record: SegmentRecord, names: Mapping[bytes, bytes]) -> None:
        self._layout = LayoutContinuity(record)
        self._report.segments += 1
        self._report.bytes_of_segments += record.length - record.start_offset
        value = names.get(catalog_key(record.name))
        if value is None or decode_id(value) < record.segment_id:
            self._report.add_damage(
                f"segment is not in the catalog name={record.name!r} id={record.segment_id}"
            )

    def _finish_segment(self) -> None:
        layout, self._layout = self._layout, None
        if layout is not None:
            self._note(layout.finish())

    def _note(self, what: str | None) -> None:
        if what is not None:
            self._report.add_damage(what)

    async def _verify_entry(self, record: SegmentRecord, entry: LayoutEntry) -> None:
        reference = reference_key(entry.identity, record.segment_id, entry.end_offset)
        if await self._view.get(reference) is None:
            self._report.add_damage(f"layout entry without a reference key={reference.hex()}")
        await self._verify_chunk(record, entry, reference)

    async def _verify_chunk(
        self, record: SegmentRecord, entry: LayoutEntry, reference: bytes
    ) -> None:
        place = f"name={record.name!r} id={record.segment_id} offset={entry.start_offset}"
        self._report.chunks += 1
        if not self._objects:
            return
        image = SegmentImage(record.segment_id, entry)
        if self._deep:
            prover = ImageProver(self._reader.components, newest=self._newer_view)
            (proof,) = await prover.prove([image])
            for damage in proof.damages:
                self._report.add_damage(f"{damage} {place}")
            self._course.advance(entry.size)
            return
        try:
            await self._verify_size(entry, place)
        except ObjectNotFoundError:
            newer = await self._newer_view()
            if await newer.get(reference) is not None:
                self._report.add_damage(f"chunk is missing {place} source={entry.identity}")

    async def _newer_view(self) -> ManifestView:
        """What counts by now."""
        return await self._reader.refresh()

    async def _verify_size(self, entry: LayoutEntry, place: str) -> None:
        """That the object is there and reaches to the end of the image: one request for each object."""
        size = self._course.sizes.get(entry.identity)
        if size is None:
            size = await self._reader.components.objects.size(ObjectKind.CHUNKS, entry.identity)
            self._course.sizes[entry.identity] = size
            self._course.advance(size)
        if size < entry.position + entry.size:
            self._report.add_damage(
                f"object ends inside a chunk {place} object={entry.identity} bytes={size}"
            )

    async def _report_orphans(self, listed: Sequence[str]) -> None:
        names = self._reader.components.names
        newer: list[str] = []
        for key in listed:
            if key == names.manifest:
                continue
            known = False
            for kind in ObjectKind:
                identity = names.identity(kind, key)
                if identity is not None:
                    known = await is_known(self._view, (kind, identity))
                    if identity.epoch > self._view.manifest.epoch:
                        newer.append(key)
            if not known:
                self._report.add_orphan(key)
        if newer:
            await self._expect_move(
                f"manifest is older than {len(newer)} objects beside it, what was published since is lost"
                f" root_version={self._view.manifest.version} epoch={self._view.manifest.epoch} first={newer[0]}"
            )

    async def _verify_backups(self) -> None:
        for snapshot in await read_snapshots(self._view):
            self._report.backups += 1
            backup = _BackupVerification(snapshot, self._reader, self._course, deep=self._deep)
            for damage in await backup.damages():
                self._report.add_damage(f"backup {snapshot.name!r}: {damage}")


class _BackupVerification(_Verification):
    """One pass over a manifest that is kept for a backup."""

    def __init__(
        self, snapshot: Snapshot, reader: ContainerReader, course: VerifyProgress, *, deep: bool
    ) -> None:
        super().__init__(reader, course, deep=deep, objects=True)
        self._snapshot = snapshot
        self._view = reader.components.view(snapshot.manifest)

    async def damages(self) -> Sequence[str]:
        """What is wrong with it; nothing is if it was dropped meanwhile."""
        try:
            await self._prove()
        except _BackupDroppedError:
            return []
        return self._report.damages

    async def _prove(self) -> None:
        await self._verify_ssts()
        if not self._report.sound:
            return
        try:
            await self._each_page(CATALOG, self._verify_catalog)
            await self._each_page(REFERENCE, self._verify_references)
            await self._each_page(SEGMENT, self._verify_segments)
            self._finish_segment()
        except ObjectNotFoundError as error:
            await self._expect_move(str(error))
        except CorruptedDataError as error:
            self._report.add_damage(str(error))

    async def _verify_chunk(
        self, record: SegmentRecord, entry: LayoutEntry, reference: bytes
    ) -> None:
        # References never come back: one that a later manifest has as well was proved under the manifest that was
        # walked first.
        shared = await with_view(self._reader, lambda view: view.get(reference))
        if shared is None:
            await super()._verify_chunk(record, entry, reference)

    async def _newer_view(self) -> ManifestView:
        """The same, as long as the backup is kept."""
        if self._snapshot not in await read_snapshots(await self._reader.refresh()):
            raise _BackupDroppedError
        return self._view
