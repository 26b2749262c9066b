"""Looks up what is published about the segments of a publication: the input of the plan."""

from asyncio import sleep

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import Publication
from tier2.storage.components import Components
from tier2.storage.publication_plan import (
    Facts,
    decode_records,
    layouts_to_look_up,
    names_to_look_up,
    survey,
)
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.run_keys import catalog_key, end_offset_of, layout_range, name_of, record_key
from tier2.storage.run_values import LayoutEntry, decode_id
from tier2.storage.run_view import RunView

_SCANS_PER_TURN = 32


async def gather_facts(
    publication: Publication,
    *,
    view: RunView,
    segments: PublishedSegments,
    components: Components,
) -> Facts:
    """Raises ServiceHaltError if the publication contradicts itself or the root; StorageError."""
    ids = await components.offload(survey, publication, view.root)
    values = await segments.values(view, ids)
    facts = Facts(records=await components.offload(decode_records, values))
    names = await components.offload(names_to_look_up, publication, facts)
    found = await view.get_many([catalog_key(name) for name in names])
    facts.catalog = {name_of(key): decode_id(value) for key, value in found.items()}
    wanted = await components.offload(layouts_to_look_up, publication, facts)
    for number, (segment_id, above, up_to) in enumerate(wanted):
        facts.layouts[segment_id] = await _layout(view, segment_id, above, up_to)
        if number % _SCANS_PER_TURN == _SCANS_PER_TURN - 1:
            await sleep(0)
    return facts


async def _layout(
    view: RunView, segment_id: SegmentId, above: int, up_to: int | None
) -> list[LayoutEntry]:
    start, end = layout_range(segment_id, above, up_to)
    entries = await view.scan_all(start, end, group=record_key(segment_id)[:-1])
    return [
        LayoutEntry.decode(end_offset_of(key), value) for key, value in entries if value is not None
    ]
