"""Deletes garbage, and copies what is alive out of packed objects that are mostly dead.

Garbage is deleted when its grace is over; orphans of earlier owners are recorded as garbage. Packed objects
of which little is alive are repacked, so that the rest becomes garbage.

Deleting:

    look for due records -> under the lock: read the manifest and prove that it is ours -> ask once more whether
    anything names the object -> delete -> remove the records in one more version

- A crash between any two steps leaves records of objects that are gone; deleting those again changes nothing.
- A manifest update that found no room is not waited for: it may need the room that these deletions make. What is
  garbage under the manifest is named by no update of it either, whether that one lands or not.

Orphans are looked for once for each claim, beside publications and slowly, because a large store has very many objects
to look at; an owner that starts no such task has it done by its first collection.

Repacking:

    an object lost references but not all -> ask what still refers to it -> if little of it is alive: copy those images,
    verified and byte for byte -> publish layout entries that name the copy -> the old object is garbage

- Which objects to look at is remembered in memory, a bounded number of them; forgetting one costs only space.
- Copying works beside publications. Under the lock every entry is compared once more, and only those that are still
  what was copied move. An object that anything else refers to by then stays.
- A damaged image is never copied: the object is left as it is, to be investigated.

An SST that cannot be read ends no owner: what might be named in it stays.
"""

import logging
from asyncio import sleep
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import SegmentId
from tier2.container_objects import ObjectIdentity, ObjectKind, ObjectReference
from tier2.layout_entry import LayoutEntry
from tier2.manifest.commit import ManifestUpdate
from tier2.manifest.garbage import is_named
from tier2.manifest.view import ManifestView
from tier2.publish.chunk_upload import Uploader, run_bounded
from tier2.publish.owned_manifest import OwnedManifest
from tier2.read.chunk_images import read_images
from tier2.read.components import Components
from tier2.read.published_segments import PublishedSegments
from tier2.sst.keyspace import (
    garbage_key,
    layout_key,
    reference_key,
    reference_of,
    reference_range,
)
from tier2.sst.sst_format import Entry

_LOG = logging.getLogger(__name__)

_SWEEP_AFTER_SECONDS = 10.0
"""A start has other things to do."""
_SWEEP_PAUSE_SECONDS = 0.03
"""Between two steps, each of which keeps the loop for a millisecond or two."""
_RECORDED_SECONDS = 1.0
"""How often the sweep looks whether enough of what it found has been recorded."""


async def collect_garbage(*, owned: OwnedManifest, components: Components) -> int:
    """The number of objects deleted. Raises StorageNotPrimaryError, ServiceHaltError, StorageError."""
    owned.publisher.raise_if_ended()
    if not owned.sweep.runs_beside:
        while not owned.sweep.done and not _is_much_abandoned(owned, components):
            await _sweep_step(owned)
    await owned.probes.step()
    due = await _due(owned)
    if not due and not owned.publisher.abandoned():
        return 0
    async with owned.lock:
        try:
            await owned.settle()
        except StorageFullError:
            # The manifest has been read back: it is ours, and the update is not in it.
            await _delete_due(due, owned, components)
            raise
        if due:
            await owned.publisher.confirm()
        deleted = await _delete_due(due, owned, components)
        await _record_collection(deleted, owned)
    return len(deleted)


async def sweep_orphans(*, owned: OwnedManifest, components: Components) -> None:
    """Look at everything of earlier owners; the next versions record what is an orphan. Raises as collect_garbage()."""
    owned.sweep.runs_beside = True
    await sleep(_SWEEP_AFTER_SECONDS)
    while not owned.sweep.done:
        owned.publisher.raise_if_ended()
        if _is_much_abandoned(owned, components):
            await sleep(_RECORDED_SECONDS)
        else:
            await _sweep_step(owned)
            await sleep(_SWEEP_PAUSE_SECONDS)


async def _sweep_step(owned: OwnedManifest) -> None:
    view = owned.view
    try:
        owned.publisher.abandon(await owned.sweep.step(view))
    except (CorruptedDataError, ObjectNotFoundError) as error:
        if owned.view is not view:
            return  # a merge has replaced SSTs meanwhile: the next step looks through the new ones
        owned.sweep.done = True
        await owned.note_unreadable_sst("not looking for orphans", error)


def _is_much_abandoned(owned: OwnedManifest, components: Components) -> bool:
    return len(owned.publisher.abandoned()) >= components.settings.garbage_batch_max


async def _due(owned: OwnedManifest) -> list[ObjectReference]:
    try:
        return await owned.garbage.due(owned.view, await owned.snapshots())
    except (CorruptedDataError, ObjectNotFoundError) as error:
        await owned.note_unreadable_sst("not deleting garbage", error)
        return []


async def _delete_due(
    due: list[ObjectReference], owned: OwnedManifest, components: Components
) -> list[ObjectReference]:
    deleted: list[ObjectReference] = []

    async def delete(reference: ObjectReference) -> None:
        try:
            if await is_named(owned.view, reference):
                _LOG.error(
                    "garbage is still named, keeping it: %s %s", reference[0].name, reference[1]
                )
                return
            await components.objects.delete(*reference)
        except (CorruptedDataError, ObjectNotFoundError) as error:
            _LOG.warning("keeping %s, an SST cannot be read: %s", reference[1], error)
            return
        except (StorageError, StorageFullError) as error:
            # A file system that copies what it changes may have no room for one deletion, and room for the next.
            _LOG.warning("deleting %s failed, trying again later: %s", reference[1], error)
            return
        deleted.append(reference)

    await run_bounded(due, delete, components.settings.upload_count_max)
    return sorted(deleted)


async def _record_collection(deleted: list[ObjectReference], owned: OwnedManifest) -> None:
    """Remove the records of what is gone, and add those of what was abandoned."""
    discards = owned.publisher.abandoned()
    changes: dict[bytes, bytes | None] = dict(owned.garbage_entries(discards))
    changes.update((garbage_key(*reference), None) for reference in deleted)
    if not changes:
        return
    with owned.uploading() as uploader:
        sst = await owned.upload_sst(changes, uploader)
        attempt = ManifestUpdate(
            manifest=owned.next_manifest((sst, *owned.manifest.ssts)),
            discards=discards,
            garbage_count=len(discards),
        )
        owned.garbage.removed(deleted)
        await owned.commit(attempt, uploader)


async def repack_one(
    *, owned: OwnedManifest, segments: PublishedSegments, components: Components
) -> bool:
    """Copy what is alive of one object, if any is worth it. Raises as Storage.publish()."""
    while owned.thinned:
        identity = owned.take_thinned()
        try:
            if await _repack_object(identity, owned, segments, components):
                return True
        except CorruptedDataError as error:
            components.counters.checksum_failures += 1
            _LOG.error("not repacking %s: %s", identity, error)  # a damaged image is evidence
        except ObjectNotFoundError:
            _LOG.info("not repacking %s: it is gone meanwhile", identity)
    return False


async def _repack_object(
    identity: ObjectIdentity,
    owned: OwnedManifest,
    segments: PublishedSegments,
    components: Components,
) -> bool:
    living = await _live_entries(owned.view, identity)
    living_bytes = sum(one.entry.size for one in living)
    size = await components.objects.size(ObjectKind.CHUNKS, identity)
    if not living or living_bytes > size * components.settings.repack_live_share_max:
        return False
    images: list[bytes] = []
    async with aclosing(read_images([one.entry for one in living], components)) as found:
        async for some in found:
            images += [image for _, image, _ in some]
    with owned.uploading() as uploader:
        copy = await uploader.upload_images(images)
        async with owned.lock:
            await owned.settle()
            moving = await _unchanged_layout_keys(living, owned.view)
            attempt = await _repack_update(living, moving, copy, owned, uploader)
            await segments.begin_change(attempt.records)
            await owned.commit(attempt, uploader)
    return True


@dataclass(frozen=True, slots=True)
class _LiveEntry:
    """A layout entry that names the object."""

    segment_id: SegmentId
    entry: LayoutEntry

    @property
    def key(self) -> bytes:
        return layout_key(self.segment_id, self.entry.end_offset)

    @property
    def reference(self) -> bytes:
        return reference_key(self.entry.identity, self.segment_id, self.entry.end_offset)


async def _live_entries(view: ManifestView, identity: ObjectIdentity) -> list[_LiveEntry]:
    """Entries that name the object, in the order in which their images lie in it."""
    references = [reference_of(key) for key, _ in await _references_to(view, identity)]
    ends = {layout_key(segment, offset): (segment, offset) for _, segment, offset in references}
    values = await view.get_many(list(ends))
    living = [
        _LiveEntry(ends[key][0], LayoutEntry.decode(ends[key][1], value))
        for key, value in values.items()
    ]
    return sorted(living, key=lambda one: one.entry.position)


async def _references_to(view: ManifestView, identity: ObjectIdentity) -> list[Entry]:
    start, end = reference_range(identity)
    return await view.scan_all(start, end, group=start)


async def _unchanged_layout_keys(living: Sequence[_LiveEntry], view: ManifestView) -> set[bytes]:
    """Layout keys that still have the value that was copied.

    The reference is asked as well: the entries of a segment that is gone lie on behind its removed record.
    """
    values = await view.get_many([key for one in living for key in (one.key, one.reference)])
    return {
        one.key
        for one in living
        if values.get(one.key) == one.entry.encode() and one.reference in values
    }


async def _repack_update(
    living: Sequence[_LiveEntry],
    moving: set[bytes],
    copy: ObjectIdentity,
    owned: OwnedManifest,
    uploader: Uploader,
) -> ManifestUpdate:
    changes: dict[bytes, bytes | None] = {}
    left = dict(await _references_to(owned.view, living[0].entry.identity))
    position = 0
    for one in living:
        entry = replace(one.entry, identity=copy, position=position)
        position += entry.size
        if one.key not in moving:
            continue
        changes[one.key] = entry.encode()
        changes[one.reference] = None
        changes[reference_key(copy, one.segment_id, entry.end_offset)] = b""
        left.pop(one.reference, None)
    garbage = [] if left else [(ObjectKind.CHUNKS, living[0].entry.identity)]
    if not changes:
        garbage = [(ObjectKind.CHUNKS, copy)]
    changes.update(owned.garbage_entries(garbage))
    sst = await owned.upload_sst(changes, uploader)
    return ManifestUpdate(
        manifest=owned.next_manifest((sst, *owned.manifest.ssts)),
        garbage_count=len(garbage),
        records={one.segment_id: None for one in living if one.key in moving},
    )
