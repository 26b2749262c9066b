"""Takes one publication through its steps; each depends on the one before being durable.

    look up what is published -> plan (pure) -> upload chunks -> find objects that lose their last reference
    -> upload one SST with every change -> replace the manifest

- A publication that failed with an unknown outcome is recognised when it is handed in again: the open attempt is
  driven to its end first, and if it carried the same publication there is nothing left to do (S4).
- What was uploaded for a publication that never became an attempt is recorded as garbage by the next version.
"""

from asyncio import sleep
from collections.abc import Sequence
from contextlib import aclosing

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece, Publication, SegmentPublication
from tier2.container_objects import ObjectReference
from tier2.layout_entry import LayoutEntry
from tier2.manifest.commit import ManifestUpdate
from tier2.manifest.garbage import freed_objects
from tier2.manifest.view import ManifestView
from tier2.publish.chunk_upload import Uploader
from tier2.publish.owned_manifest import OwnedManifest
from tier2.publish.plan import (
    Facts,
    Plan,
    decode_records,
    layouts_to_look_up,
    make_plan,
    names_to_look_up,
    survey,
)
from tier2.read.components import Components
from tier2.read.published_segments import PublishedSegments
from tier2.sst.keyspace import (
    catalog_key,
    decode_id,
    end_offset_of,
    layout_range,
    name_of,
    record_key,
)

_SCANS_PER_TURN = 32
_LAYOUT_PAGE_ENTRIES = 256
"""Of a layout that a publication drops or moves, decoded between two turns of the loop."""


async def publish(
    publication: Publication,
    *,
    owned: OwnedManifest,
    segments: PublishedSegments,
    components: Components,
) -> None:
    """Hold the owned manifest's lock. Raises as Storage.publish()."""
    await owned.settle()
    landed_late = owned.take_landed_late()
    if landed_late is not None and is_same(landed_late, publication):
        return
    with owned.uploading() as uploader:
        attempt = await _prepare_update(publication, owned, segments, components, uploader)
        if attempt is None:
            return
        await segments.begin_change(attempt.records)
        await owned.commit(attempt, uploader)
    await segments.remember(owned.view, attempt.records)


async def _prepare_update(
    publication: Publication,
    owned: OwnedManifest,
    segments: PublishedSegments,
    components: Components,
    uploader: Uploader,
) -> ManifestUpdate | None:
    """Everything but the commit; None if there is nothing to change."""
    view = owned.view
    facts = await gather_facts(publication, view=view, segments=segments, components=components)
    plan = await components.offload(
        make_plan, publication, facts, chunk_bytes_max=components.settings.chunk_bytes_max
    )
    await uploader.upload_chunks(plan.chunks)
    discards = owned.publisher.abandoned()
    freed = await freed_objects(plan.dropped, plan.still_named, view)
    owned.add_thinned(freed.thinned)
    await owned.note_growth(segment_id for segment_id, _ in plan.stretches)
    garbage = [*discards, *freed.unreferenced]
    changes = await components.offload(_changes_with_garbage, plan, garbage, owned)
    manifest = owned.manifest
    if not changes and (
        publication.highest_segment_id,
        publication.highest_sequence_number,
    ) == (manifest.highest_segment_id, manifest.highest_sequence_number):
        return None
    sst = await owned.upload_sst(changes, uploader)
    return ManifestUpdate(
        manifest=owned.next_manifest(
            (sst, *manifest.ssts),
            highest_segment_id=publication.highest_segment_id,
            highest_sequence_number=publication.highest_sequence_number,
        ),
        discards=discards,
        garbage_count=len(garbage),
        publication=publication,
        records=plan.records,
    )


def _changes_with_garbage(
    plan: Plan, garbage: Sequence[ObjectReference], owned: OwnedManifest
) -> dict[bytes, bytes | None]:
    """In a thread: both may be very many."""
    changes = plan.all_changes()
    changes.update(owned.garbage_entries(garbage))
    return changes


async def gather_facts(
    publication: Publication,
    *,
    view: ManifestView,
    segments: PublishedSegments,
    components: Components,
) -> Facts:
    """What is published about the segments of a publication: the input of the plan.

    Raises ServiceHaltError if the publication contradicts itself or the manifest; StorageError.
    """
    ids = await components.offload(survey, publication, view.manifest)
    values = await segments.values(view, ids)
    facts = Facts(records=await components.offload(decode_records, values))
    names = await components.offload(names_to_look_up, publication, facts)
    found = await view.get_many([catalog_key(name) for name in names])
    facts.catalog = {name_of(key): decode_id(value) for key, value in found.items()}
    wanted = await components.offload(layouts_to_look_up, publication, facts)
    for number, (segment_id, above, up_to) in enumerate(wanted):
        facts.layouts[segment_id] = await _read_layout(view, segment_id, above, up_to)
        if number % _SCANS_PER_TURN == _SCANS_PER_TURN - 1:
            await sleep(0)
    return facts


async def _read_layout(
    view: ManifestView, segment_id: SegmentId, above: int, up_to: int | None
) -> list[LayoutEntry]:
    """Page by page: a segment may have very many chunks."""
    start, end = layout_range(segment_id, above, up_to)
    group = record_key(segment_id)[:-1]
    entries: list[LayoutEntry] = []
    async with aclosing(view.pages(start, end, limit=_LAYOUT_PAGE_ENTRIES, group=group)) as pages:
        async for page in pages:
            entries += [
                LayoutEntry.decode(end_offset_of(key), value)
                for key, value in page
                if value is not None
            ]
            if len(entries) >= _LAYOUT_PAGE_ENTRIES:
                await sleep(0)
    return entries


def is_same(first: Publication, second: Publication) -> bool:
    """Whether two publications say the same, without a look at their bytes."""
    return first is second or (
        first.highest_segment_id == second.highest_segment_id
        and first.highest_sequence_number == second.highest_sequence_number
        and len(first.segments) == len(second.segments)
        and all(map(_is_same_change, first.segments, second.segments))
    )


def _is_same_change(first: SegmentPublication, second: SegmentPublication) -> bool:
    return (
        first.record == second.record
        and first.deleted == second.deleted
        and first.attributes == second.attributes
        and _shape_of_pieces(first) == _shape_of_pieces(second)
    )


def _shape_of_pieces(change: SegmentPublication) -> list[object]:
    return [
        (piece.offset, sum(map(len, piece.runs))) if isinstance(piece, DataPiece) else piece
        for piece in change.pieces
    ]
