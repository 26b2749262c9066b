"""Takes the living images out of packed objects that are mostly dead (H12): "unpacks" them into a fresh object.

    an object lost references but not all -> ask who still refers to it -> if little of it is alive: copy those images,
    verified and byte for byte -> publish layout entries that name the copy -> the old object is garbage

- Which objects to look at is remembered in memory, a bounded number of them; forgetting one costs only space.
- Copying works beside publications. Under the lock every entry is compared once more, and only those that are still
  what was copied move. An object that anything else refers to by then stays.
- A damaged image is never copied: the object is left as it is for whoever investigates.
"""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import SegmentId
from tier2.storage.components import Components
from tier2.storage.image_reading import read_images
from tier2.storage.object_names import ObjectIdentity, ObjectKind
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.root_publisher import Attempt
from tier2.storage.run_block import Entry
from tier2.storage.run_keys import layout_key, reference_key, reference_of, reference_range
from tier2.storage.run_values import LayoutEntry
from tier2.storage.run_view import RunView
from tier2.storage.upload import Uploader

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Living:
    """A layout entry that names the object."""

    segment_id: SegmentId
    entry: LayoutEntry

    @property
    def key(self) -> bytes:
        return layout_key(self.segment_id, self.entry.end_offset)

    @property
    def reference(self) -> bytes:
        return reference_key(self.entry.identity, self.segment_id, self.entry.end_offset)


async def repack_one(
    *, owned: OwnedRoot, segments: PublishedSegments, components: Components
) -> bool:
    """Copy what is alive of one object, if any is worth it. Raises as Storage.publish()."""
    while owned.thinned:
        identity = owned.take_thinned()
        try:
            if await _repack(identity, owned, segments, components):
                return True
        except CorruptedDataError as error:
            components.counters.checksum_failures += 1
            _LOG.error("not repacking %s: %s", identity, error)  # a damaged image is evidence
        except ObjectNotFoundError:
            _LOG.info("not repacking %s: it is gone meanwhile", identity)
    return False


async def _repack(
    identity: ObjectIdentity,
    owned: OwnedRoot,
    segments: PublishedSegments,
    components: Components,
) -> bool:
    living = await _living(owned.view, identity)
    living_bytes = sum(one.entry.size for one in living)
    size = await components.objects.size(ObjectKind.CHUNKS, identity)
    if not living or living_bytes > size * components.settings.repack_living_share_max:
        return False
    images: list[bytes] = []
    async with aclosing(read_images([one.entry for one in living], components)) as found:
        async for some in found:
            images += [image for _, image, _ in some]
    uploader = owned.uploader()
    committing = False
    try:
        copy = await uploader.upload_images(images)
        async with owned.lock:
            await owned.settle()
            moving = await _unchanged(living, owned.view)
            attempt = await _attempt(living, moving, copy, owned, uploader)
            await segments.begin_change(attempt.records)
            committing = True
            await owned.commit(attempt)
    except BaseException:
        if not committing:
            owned.publisher.abandon(uploader.uploaded)
        raise
    return True


async def _living(view: RunView, identity: ObjectIdentity) -> list[_Living]:
    """Entries that name the object, in the order in which their images lie in it."""
    references = [reference_of(key) for key, _ in await _references(view, identity)]
    ends = {layout_key(segment, offset): (segment, offset) for _, segment, offset in references}
    values = await view.get_many(list(ends))
    living = [
        _Living(ends[key][0], LayoutEntry.decode(ends[key][1], value))
        for key, value in values.items()
    ]
    return sorted(living, key=lambda one: one.entry.position)


async def _unchanged(living: Sequence[_Living], view: RunView) -> set[bytes]:
    """Layout keys that still have the value that was copied.

    The reference is asked as well: the entries of a segment that is gone lie on behind its removed record.
    """
    values = await view.get_many([key for one in living for key in (one.key, one.reference)])
    return {
        one.key
        for one in living
        if values.get(one.key) == one.entry.encode() and one.reference in values
    }


async def _attempt(
    living: Sequence[_Living],
    moving: set[bytes],
    copy: ObjectIdentity,
    owned: OwnedRoot,
    uploader: Uploader,
) -> Attempt:
    changes: dict[bytes, bytes | None] = {}
    left = dict(await _references(owned.view, living[0].entry.identity))
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
    run = await owned.upload_run(changes, uploader)
    return Attempt(
        root=owned.next_root((run, *owned.root.runs)),
        garbage_count=len(garbage),
        records={one.segment_id: None for one in living if one.key in moving},
    )


async def _references(view: RunView, identity: ObjectIdentity) -> list[Entry]:
    start, end = reference_range(identity)
    return await view.scan_all(start, end, group=start)
