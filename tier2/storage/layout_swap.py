"""Publishes other chunks in the place of chunks: the same bytes of the same segments, elsewhere.

    under the lock: settle -> keep only what did not change since -> references, garbage -> one version

- A replacement whose segment was truncated, merged, deleted or compacted meanwhile is left out; the rest goes on.
- Objects that lose their last reference become garbage of the same version, and so do new ones that nobody names (H6).
"""

from asyncio import sleep
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from segmentstore.contracts.identifiers import SegmentId
from tier2.storage.object_names import ObjectIdentity, ObjectKind
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.references import freed_objects
from tier2.storage.root_publisher import Attempt, ObjectReference
from tier2.storage.run_keys import layout_key, record_key, reference_key
from tier2.storage.run_values import LayoutEntry
from tier2.storage.run_view import RunView
from tier2.storage.upload import Uploader

_SLICE = 32
"""Replacements whose entries are looked up at once."""
_ENTRIES_PER_TURN = 128
"""Handled between two turns of the loop."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Entries of one segment, side by side, and those that hold the same range from now on."""

    segment_id: SegmentId
    old: Sequence[LayoutEntry]
    new: Sequence[LayoutEntry]

    def check(self) -> None:
        """Both cover the same range without a hole."""
        for entries in (self.old, self.new):
            for before, after in pairwise(entries):
                assert before.end_offset == after.start_offset, f"hole before {after}"
        old = self.old[0].start_offset, self.old[-1].end_offset
        new = self.new[0].start_offset, self.new[-1].end_offset
        assert old == new, f"other bytes are replaced segment_id={self.segment_id} {old=} {new=}"


async def swap_entries(
    replacements: Sequence[Replacement],
    *,
    owned: OwnedRoot,
    segments: PublishedSegments,
    uploader: Uploader,
) -> list[Replacement]:
    """Those that were published. `uploader` holds what was uploaded for them. Raises as Storage.publish()."""
    for replacement in replacements:
        replacement.check()
    committing = False
    try:
        async with owned.lock:
            await owned.settle()
            swapped = await _unchanged(replacements, owned.view)
            if not swapped:
                owned.publisher.abandon(uploader.uploaded)
                return []
            attempt = await _attempt(replacements, swapped, owned, uploader)
            await segments.begin_change(attempt.records)
            committing = True
            await owned.commit(attempt)
    except BaseException:
        if not committing:
            owned.publisher.abandon(uploader.uploaded)
        raise
    return swapped


async def _unchanged(replacements: Sequence[Replacement], view: RunView) -> list[Replacement]:
    """Those whose segment still exists and whose entries are still what was read."""
    unchanged: list[Replacement] = []
    for first in range(0, len(replacements), _SLICE):
        some = replacements[first : first + _SLICE]
        wanted: list[bytes] = []
        for one in some:
            wanted.append(record_key(one.segment_id))
            wanted += [layout_key(one.segment_id, entry.end_offset) for entry in one.old]
        values = await view.get_many(wanted)
        unchanged += [one for one in some if _is_unchanged(one, values)]
        await sleep(0)
    return unchanged


def _is_unchanged(one: Replacement, values: Mapping[bytes, bytes]) -> bool:
    return record_key(one.segment_id) in values and all(
        values.get(layout_key(one.segment_id, entry.end_offset)) == entry.encode()
        for entry in one.old
    )


async def _attempt(
    replacements: Sequence[Replacement],
    swapped: Sequence[Replacement],
    owned: OwnedRoot,
    uploader: Uploader,
) -> Attempt:
    changes: dict[bytes, bytes | None] = {}
    handled = 0
    for one in swapped:
        handled += len(one.old) + len(one.new)
        if handled > _ENTRIES_PER_TURN:
            handled = 0
            await sleep(0)
        for entry in one.old:
            changes[layout_key(one.segment_id, entry.end_offset)] = None
            changes[reference_key(entry.identity, one.segment_id, entry.end_offset)] = None
        for entry in one.new:
            changes[layout_key(one.segment_id, entry.end_offset)] = entry.encode()
            changes[reference_key(entry.identity, one.segment_id, entry.end_offset)] = b""
    named = _objects(swapped)
    freed = await freed_objects(
        [(one.segment_id, entry) for one in swapped for entry in one.old], named, owned.view
    )
    owned.add_thinned(identity for identity in freed.thinned if identity not in named)
    unused: list[ObjectReference] = [
        (ObjectKind.CHUNKS, identity) for identity in sorted(_objects(replacements) - named)
    ]
    garbage = owned.garbage_entries([*freed.unreferenced, *unused])
    changes.update(garbage)
    run = await owned.upload_run(changes, uploader)
    return Attempt(
        root=owned.next_root((run, *owned.root.runs)),
        garbage_count=len(garbage),
        records={one.segment_id: None for one in swapped},
    )


def _objects(replacements: Sequence[Replacement]) -> set[ObjectIdentity]:
    return {entry.identity for one in replacements for entry in one.new}
