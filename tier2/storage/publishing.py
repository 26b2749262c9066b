"""Takes one publication through its steps; each depends on the one before being durable.

    look up what is published -> plan (pure) -> upload chunks -> find objects that lose their last reference
    -> upload one run with every change -> replace the root

- A publication that failed with an unknown outcome is recognised when it is handed in again: the open attempt is
  driven to its end first, and if it carried the same publication there is nothing left to do (S4).
- What was uploaded for a round that never became an attempt is recorded as garbage by the next version.
"""

from segmentstore.contracts.storage import DataPiece, Publication, SegmentPublication
from tier2.storage.components import Components
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.publication_facts import gather_facts
from tier2.storage.publication_plan import make_plan
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.references import freed_objects
from tier2.storage.root_publisher import Attempt
from tier2.storage.upload import Uploader


async def publish(
    publication: Publication,
    *,
    owned: OwnedRoot,
    segments: PublishedSegments,
    components: Components,
) -> None:
    """Hold the owned root's lock. Raises as Storage.publish()."""
    await owned.settle()
    landed_late = owned.take_landed_late()
    if landed_late is not None and is_same(landed_late, publication):
        return
    uploader = owned.uploader()
    try:
        attempt = await _prepare(publication, owned, segments, components, uploader)
        if attempt is None:
            return
        await segments.begin_change(attempt.records)
    except BaseException:
        owned.publisher.abandon(uploader.uploaded)
        raise
    await owned.commit(attempt)
    await segments.remember(owned.view, attempt.records)


async def _prepare(
    publication: Publication,
    owned: OwnedRoot,
    segments: PublishedSegments,
    components: Components,
    uploader: Uploader,
) -> Attempt | None:
    """Everything but the commit; None if there is nothing to change."""
    view = owned.view
    facts = await gather_facts(publication, view=view, segments=segments, components=components)
    plan = await components.offload(
        make_plan, publication, facts, chunk_bytes_max=components.settings.chunk_bytes_max
    )
    await uploader.upload_chunks(plan.chunks)
    discards = owned.publisher.abandoned()
    freed = await freed_objects(plan.dropped, plan.still_named(), view)
    unreferenced = freed.unreferenced
    owned.add_thinned(freed.thinned)
    await owned.note_growth(segment_id for segment_id, _ in plan.stretches)
    garbage = owned.garbage_entries([*discards, *unreferenced])
    changes = await components.offload(plan.all_changes)
    changes.update(garbage)
    root = owned.root
    if not changes and (
        publication.highest_segment_id,
        publication.highest_sequence_number,
    ) == (root.highest_segment_id, root.highest_sequence_number):
        return None
    run = await owned.upload_run(changes, uploader)
    return Attempt(
        root=owned.next_root(
            (run, *root.runs),
            highest_segment_id=publication.highest_segment_id,
            highest_sequence_number=publication.highest_sequence_number,
        ),
        discards=discards,
        garbage_count=len(garbage),
        publication=publication,
        records=plan.records,
    )


def is_same(first: Publication, second: Publication) -> bool:
    """Whether two publications say the same, without a look at their bytes."""
    return first is second or (
        first.highest_segment_id == second.highest_segment_id
        and first.highest_sequence_number == second.highest_sequence_number
        and len(first.segments) == len(second.segments)
        and all(map(_says_the_same, first.segments, second.segments))
    )


def _says_the_same(first: SegmentPublication, second: SegmentPublication) -> bool:
    return (
        first.record == second.record
        and first.deleted == second.deleted
        and first.attributes == second.attributes
        and _shape(first) == _shape(second)
    )


def _shape(change: SegmentPublication) -> list[object]:
    return [
        (piece.offset, sum(map(len, piece.runs))) if isinstance(piece, DataPiece) else piece
        for piece in change.pieces
    ]
