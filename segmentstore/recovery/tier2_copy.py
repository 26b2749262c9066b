"""Brings the Tier 2 of some place into a data directory: by a link, or by a copy of what its manifests name.

- A link (the default) moves no byte: DATA/tier2 is a symbolic link to the directory that has the objects, and the two
  belong together from then on. A bucket is not linked: the store is started with its URL.
- A directory whose store is running is not linked, nor is what such a store links itself, if it is named by that store.
- A copy stands for itself: it has the objects that the manifests name, and the files of records that partitions of
  topics name, stored again in volumes, and nothing else. It is made under another name and gets its own when it is
  whole, so a copy that was cut off is never taken for one.
- The data directory is held while a copy is made, from before anything is written there to behind the copy's own name:
  another recovery, restore or store in it is refused, and none gives its name to a copy that is not its own.
- An object that goes while it is copied, because its owner runs, ends the copy: the caller had looked for it before, as
  for the files of records. So the copy is not damaged, and may be made again.
- A copy is read before it gets its name, every chunk that a manifest names (`find_damaged_chunks`), and the damaged
  ones are told by segment and range. They stay in the copy only if a person wants the rest with them.
- That reading looks at nothing else: neither at garbage, nor at stretches of an object that no layout names, nor at
  objects that are not there (tier2/offline/lost_data.py tells of those). It holds one chunk in memory, and RANGES_SHOWN
  sentences; further ranges are only counted.
"""

import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
)
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.host.data_directory import LOCK_NAME, DataDirectory, DataDirectoryInUseError
from segmentstore.recovery.record_files_copy import copy_record_files
from segmentstore.recovery.survey import Bar
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.container_objects import ObjectKind
from tier2.layout_entry import LayoutEntry
from tier2.manifest.manifest import Manifest
from tier2.object_stores.places import object_directory
from tier2.object_stores.volumes import LateVolumes
from tier2.offline.container_copy import CopyReport, copy_container
from tier2.read.chunk_images import verify_image
from tier2.read.components import Components
from tier2.read.layout_walk import LayoutWalk
from tier2.settings import StorageSettings
from tier2.sst.keyspace import (
    decode_record,
)
from tier2.store_reader import ContainerReader, StoreReader
from tier2.volumes.settings import VolumeSettings

_UNFINISHED_NAME = "tier2.unfinished-copy"
RANGES_SHOWN = 20
_SCAN_PAGE_ENTRIES = 1_024


def link_tier2(place: str, data_directory: Path) -> None:
    """Raises as require_linkable()."""
    require_linkable(place, data_directory)
    target = data_directory / "tier2"
    if target.exists():
        return
    data_directory.mkdir(parents=True, exist_ok=True)
    target.symlink_to(Path(object_directory(place)).resolve(), target_is_directory=True)
    SystemFileSystem().sync_directory(str(data_directory))


def require_linkable(place: str, data_directory: Path) -> None:
    """Raises InvalidRequestError if DATA has another Tier 2 already, DataDirectoryInUseError. Changes nothing."""
    for store in stores_around(place):
        if _is_used(store):
            raise DataDirectoryInUseError(
                f"a process uses the store there: stop it, or copy with --copy path={store}"
            )
    target = data_directory / "tier2"
    # A link whose target is gone is the Tier 2 of some store as well.
    if os.path.lexists(target) and target.resolve() != Path(object_directory(place)).resolve():
        raise _tier2_is_there(data_directory)


def stores_around(place: str) -> list[Path]:
    """The data directories that may have lock and logs of the store: the one that was named, and where its Tier 2 lies.

    They differ where a recovery has made the one that was named: its Tier 2 is a link.
    """
    objects = Path(object_directory(place))
    return list(dict.fromkeys([objects.parent.resolve(), objects.resolve().parent]))


def require_no_tier2(data_directory: Path) -> None:
    """Raises InvalidRequestError if there is a Tier 2 already."""
    if os.path.lexists(data_directory / "tier2"):
        raise _tier2_is_there(data_directory)


async def require_no_logs(data_directory: Path) -> None:
    """Raises InvalidRequestError if there are logs already, or the directory says that they are in BookKeeper."""
    directory = _data_directory(data_directory)
    if await directory.has_logs() or await directory.log_place() is not None:
        raise InvalidRequestError(
            "the data directory has logs already, and a store goes on with what they hold: name another one"
            f" path={data_directory}"
        )


def _tier2_is_there(data_directory: Path) -> InvalidRequestError:
    return InvalidRequestError(
        "the data directory has a Tier 2 already; name another one, or, if a recovery brought that and was cut off, "
        f"finish it with: segmentstore recover --from-tier2 --data {data_directory}"
    )


def require_unused(directory: Path) -> None:
    """Raises DataDirectoryInUseError if the data directory is that of a running store."""
    if _is_used(directory):
        raise DataDirectoryInUseError(f"a process uses the store there: stop it path={directory}")


def _is_used(directory: Path) -> bool:
    path = directory / LOCK_NAME
    if not path.exists():
        return False
    # Shared, and for reading: a user who only looks may have no right to write here.
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@asynccontextmanager
async def held_directory(directory: Path) -> AsyncIterator[None]:
    """The data directory, which is made if it is missing, for this process alone.

    Raises DataDirectoryInUseError, DataDirectoryError.
    """
    held = _data_directory(directory)
    await held.hold()
    try:
        yield
    finally:
        await held.close()


def _data_directory(directory: Path) -> DataDirectory:
    return DataDirectory(
        str(directory.absolute()),
        files=SystemFileSystem(),
        executor=None,
        random=system_random(),
        wall_clock=SystemWallClock(),
        process_id=os.getpid(),
    )


@dataclass(frozen=True, slots=True)
class Tier2Copy:
    """What became of a copy."""

    reports: Sequence[CopyReport]
    """By manifest."""
    damage: Sequence[str]
    """Sentences about chunks whose bytes are damaged, or that are not in the copy."""
    is_there: bool
    """False: it had damage, which the user did not ask for, and is gone again."""


async def copy_tier2(
    manifests: Sequence[tuple[Manifest, Components]],
    data_directory: Path,
    *,
    with_damage: bool,
    bar: Callable[[str], Bar],
) -> Tier2Copy:
    """Copy what each manifest names, from where its components read, into new volumes in the data directory.

    `bar` makes a progress bar in bytes for one of the passes, from its name. The caller holds the directory.

    Raises InvalidRequestError if there is a Tier 2 already, CorruptedDataError, StorageError: also if something went
    while it was copied, because the store there runs or the backup was dropped.
    """
    unfinished = _begin_copy(data_directory)
    volumes = LateVolumes(
        str(unfinished),
        files=SystemFileSystem(),
        executor=None,
        wall_clock=SystemWallClock(),
        random=system_random(),
        settings=VolumeSettings(),
    )
    await volumes.start()
    try:
        with bar("copying") as update:
            reports = [
                await _copied(manifest, components, volumes, update)
                for manifest, components in manifests
            ]
        missing = [key for report in reports for key in report.missing]
        if missing and not with_damage:
            # They were looked for before.
            raise _went_meanwhile(missing[0])
        damage: list[str] = []
        copy = StoreReader(object_store=volumes, settings=StorageSettings(), executor=None)
        readers = [await copy.open(manifest.container_id) for manifest, _ in manifests]
        with bar("copying records of topics") as update:
            for reader, (_, components) in zip(readers, manifests, strict=True):
                damage += await _copied_record_files(
                    reader, components, volumes, with_damage=with_damage, progress=update
                )
        with bar("reading the copy") as update:
            for reader in readers:
                damage += (await find_damaged_chunks(reader, progress=update)).sentences()
        if missing:
            damage.append(f"{len(missing)} objects are not in the copy, the first: {missing[0]}")
    finally:
        await volumes.close()
    if damage and not with_damage:
        shutil.rmtree(unfinished)
        return Tier2Copy(reports, damage, is_there=False)
    _finish_copy(data_directory, unfinished)
    return Tier2Copy(reports, damage, is_there=True)


def _begin_copy(data_directory: Path) -> Path:
    unfinished = data_directory / _UNFINISHED_NAME
    require_no_tier2(data_directory)
    data_directory.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        shutil.rmtree(unfinished)
    return unfinished


async def _copied(
    manifest: Manifest,
    components: Components,
    volumes: LateVolumes,
    progress: Callable[[int], object],
) -> CopyReport:
    try:
        return await copy_container(manifest, components, volumes, progress=progress)
    except ObjectNotFoundError as error:
        raise _went_meanwhile(str(error)) from error


async def _copied_record_files(
    reader: ContainerReader,
    components: Components,
    volumes: LateVolumes,
    *,
    with_damage: bool,
    progress: Callable[[int], object],
) -> list[str]:
    try:
        return await copy_record_files(
            reader, components.objects.store, volumes, go_on=with_damage, progress=progress
        )
    except ObjectNotFoundError as error:
        # As above: they were looked for before.
        raise _went_meanwhile(str(error)) from error


def _went_meanwhile(what: str) -> StorageError:
    return StorageError(
        "something of it went while it was copied; if a store runs there, stop it, or pin a backup and restore that:"
        f" what a backup keeps stays until it is dropped gone={what}"
    )


def _finish_copy(data_directory: Path, unfinished: Path) -> None:
    unfinished.rename(data_directory / "tier2")
    SystemFileSystem().sync_directory(str(data_directory))


@dataclass(slots=True)
class DamagedChunks:
    """Of one container."""

    container_id: int
    ranges: list[str] = field(default_factory=list)
    range_count: int = 0
    byte_count: int = 0

    def add(self, record: SegmentRecord, entry: LayoutEntry, key: str, why: object) -> None:
        """One chunk of a segment."""
        first = max(entry.start_offset, record.start_offset)
        self.range_count += 1
        self.byte_count += max(0, entry.end_offset - first)
        if len(self.ranges) < RANGES_SHOWN:
            self.ranges.append(f"{record.name} [{first}, {entry.end_offset}) in {key}: {why}")

    def sentences(self) -> list[str]:
        """None if nothing is damaged."""
        if not self.range_count:
            return []
        more = self.range_count - len(self.ranges)
        return [
            (
                f"damaged: container {self.container_id}: {self.range_count} ranges with"
                f" {self.byte_count} bytes have damaged bytes in them; reading those is an error:"
            ),
            *(f"  {each}" for each in self.ranges),
            *(
                [f"  and {more} more: `segmentstore tier2 verify --deep` names them"]
                if more
                else []
            ),
        ]


async def find_damaged_chunks(
    reader: ContainerReader, *, progress: Callable[[int], object] = lambda _: None
) -> DamagedChunks:
    """`progress` is called with the bytes of each chunk. O(bytes). Raises CorruptedDataError (an SST), StorageError."""
    found = DamagedChunks(int(reader.container_id))
    record: SegmentRecord | None = None
    walk = LayoutWalk()
    while walk.has_next_page():
        for segment_id, walked in await walk.next_page(reader.view, limit=_SCAN_PAGE_ENTRIES):
            if isinstance(walked, bytes):
                record = decode_record(segment_id, walked)
            else:
                assert record is not None, "an entry comes behind its record"
                await _verify_chunk(found, reader, record, walked)
                progress(walked.size)
    return found


async def _verify_chunk(
    found: DamagedChunks, reader: ContainerReader, record: SegmentRecord, entry: LayoutEntry
) -> None:
    components = reader.components
    try:
        image = await components.objects.get_range(
            ObjectKind.CHUNKS, entry.identity, entry.position, entry.size
        )
        await components.offload(verify_image, entry, image)
    except ObjectNotFoundError:
        return
    except CorruptedDataError as damage:
        key = components.names.key(ObjectKind.CHUNKS, entry.identity)
        found.add(record, entry, key, damage)
