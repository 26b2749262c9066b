"""Decides what a publication changes under the manifest. Pure: facts in, changes out; it runs in the executor.

Refused with ServiceHaltError, because going on could lose data: a length that shrinks, a start offset or sequence
number that goes back, a seal that is broken or followed by more bytes, another name for an id, a gap between what is
published and what is handed in, a merge of anything but a whole source, the same segment twice.

- Bytes below the new start offset may be missing; from it on the layout has no hole.
- A merge moves entries and drops the source in the same plan. Chains of merges are followed source first.
- A removed record takes its range along (tier2/sst/keyspace.py); references are taken back one by one, because they
  lie in the range of their objects.
- The catalog names the newest segment of a name: a delete leaves it alone if it names another id by now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from segmentstore.contracts.errors import ServiceHaltError
from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.contracts.storage import (
    DataPiece,
    MergePiece,
    Publication,
    RunEvents,
    SegmentPublication,
    SegmentRecord,
)
from tier2.container_objects import ObjectIdentity
from tier2.layout_entry import LayoutEntry
from tier2.manifest.manifest import Manifest
from tier2.publish.chunk_upload import NewChunk, PlacedChunk, cut_into_chunks
from tier2.sst.keyspace import (
    attribute_key,
    catalog_key,
    decode_record,
    encode_attribute,
    encode_id,
    encode_record,
    layout_key,
    record_key,
    reference_key,
)

NOTHING = b""


@dataclass(slots=True)
class Facts:
    """What is published about the segments of a publication."""

    records: dict[SegmentId, SegmentRecord] = field(default_factory=dict)
    catalog: dict[str, SegmentId] = field(default_factory=dict)
    layouts: dict[SegmentId, list[LayoutEntry]] = field(default_factory=dict)
    """Entries that the plan drops or moves: whole for deleted segments, up to the new start for truncated ones."""


@dataclass(slots=True)
class Plan:
    """What one publication does."""

    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    """Keys of the new SST that are known before the chunks are stored."""
    stretches: list[tuple[SegmentId, PlacedChunk]] = field(default_factory=list)
    """Additions to layouts."""
    chunks: list[NewChunk] = field(default_factory=list)
    """To be stored, in the order of the publication."""
    records: dict[SegmentId, bytes | None] = field(default_factory=dict)
    """Encoded records as they will be; None for deleted ones."""
    dropped: list[tuple[SegmentId, LayoutEntry]] = field(default_factory=list)
    """Entries that leave the layout of their segment."""
    still_named: set[ObjectIdentity] = field(default_factory=set)
    """Objects that moved entries keep alive."""

    def all_changes(self) -> dict[bytes, bytes | None]:
        """With the layout entries, once every chunk is stored."""
        changes = dict(self.changes)
        for segment_id, stretch in self.stretches:
            entry = stretch.entry()
            changes[layout_key(segment_id, entry.end_offset)] = entry.encode()
            changes[reference_key(entry.identity, segment_id, entry.end_offset)] = NOTHING
        return changes


def survey(publication: Publication, manifest: Manifest) -> list[SegmentId]:
    """Ids of the segments, after the checks that need no facts."""
    if publication.highest_segment_id < manifest.highest_segment_id:
        raise ServiceHaltError(
            f"highest segment id goes back {publication.highest_segment_id} < {manifest.highest_segment_id}"
        )
    if publication.highest_sequence_number < manifest.highest_sequence_number:
        raise ServiceHaltError(
            f"highest sequence number goes back {publication.highest_sequence_number}"
            f" < {manifest.highest_sequence_number}"
        )
    ids = [change.record.segment_id for change in publication.segments]
    if len(set(ids)) != len(ids):
        raise ServiceHaltError(f"a segment is named twice in one publication segments={len(ids)}")
    for change in publication.segments:
        record = change.record
        if (
            not 0 < record.segment_id <= publication.highest_segment_id
            or record.sequence_number > publication.highest_sequence_number
        ):
            raise _halt(record, "its id or sequence number is above the highest named")
    return ids


def decode_records(values: Mapping[SegmentId, bytes]) -> dict[SegmentId, SegmentRecord]:
    """Decoded records by id. Raises CorruptedDataError."""
    return {segment_id: decode_record(segment_id, value) for segment_id, value in values.items()}


def names_to_look_up(publication: Publication, facts: Facts) -> list[str]:
    """Names whose catalog entry the plan may change: of new segments and of deleted ones."""
    return [
        change.record.name
        for change in publication.segments
        if change.deleted == (change.record.segment_id in facts.records)
    ]


def layouts_to_look_up(
    publication: Publication, facts: Facts
) -> list[tuple[SegmentId, int, int | None]]:
    """Ranges of layout entries by end offset that the plan drops or moves: (id, above, up to)."""
    wanted: list[tuple[SegmentId, int, int | None]] = []
    for change in publication.segments:
        published = facts.records.get(change.record.segment_id)
        if published is None:
            continue
        if change.deleted:
            wanted.append((published.segment_id, published.start_offset, None))
        elif change.record.start_offset > published.start_offset:
            wanted.append(
                (published.segment_id, published.start_offset, change.record.start_offset)
            )
    return wanted


def make_plan(publication: Publication, facts: Facts, *, chunk_bytes_max: int) -> Plan:
    """O(what changes). Raises ServiceHaltError."""
    plan = Plan()
    by_id = {change.record.segment_id: change for change in publication.segments}
    grown: dict[SegmentId, list[PlacedChunk]] = {}
    for segment_id in _sources_first(by_id):
        change = by_id[segment_id]
        published = facts.records.get(segment_id)
        _check_record(change, published)
        grown[segment_id] = _placed_chunks(change, published, facts, by_id, grown, chunk_bytes_max)
    for change in by_id.values():
        if change.deleted:
            _drop_segment(plan, change, facts)
    for segment_id, change in by_id.items():
        if not change.deleted:
            _change_segment(plan, change, facts, grown[segment_id])
    plan.chunks = list(_chunks_of(plan.stretches))
    plan.still_named = {
        stretch.chunk.identity
        for _, stretch in plan.stretches
        if isinstance(stretch.chunk, LayoutEntry)
    }
    return plan


def _chunks_of(stretches: Iterable[tuple[SegmentId, PlacedChunk]]) -> Iterable[NewChunk]:
    return (stretch.chunk for _, stretch in stretches if isinstance(stretch.chunk, NewChunk))


def _sources_first(by_id: Mapping[SegmentId, SegmentPublication]) -> Iterable[SegmentId]:
    """Segments in an order in which every merged source comes before its target."""
    merging = {
        segment_id: [piece.source_id for piece in change.pieces if isinstance(piece, MergePiece)]
        for segment_id, change in by_id.items()
        if change.pieces
    }
    if not any(merging.values()):
        return by_id
    for segment_id, sources in merging.items():
        for source in sources:
            if source not in by_id or not by_id[source].deleted:
                raise _halt(by_id[segment_id].record, f"merges a source that stays source={source}")
    try:
        ordered = TopologicalSorter(merging).static_order()
        return [*ordered, *(segment_id for segment_id in by_id if segment_id not in merging)]
    except CycleError as error:
        raise ServiceHaltError(f"merges form a circle ids={error.args[1]}") from error


def _check_record(change: SegmentPublication, published: SegmentRecord | None) -> None:
    record = change.record
    if not 0 <= record.start_offset <= record.length:
        raise _halt(record, f"start offset {record.start_offset} is past the end")
    if published is None:
        return
    if published.name != record.name:
        raise _halt(record, f"was published under another name published={published.name!r}")
    if change.deleted and not change.pieces:
        return
    if record.length < published.length:
        raise _halt(record, f"shrinks published_length={published.length}")
    if record.start_offset < published.start_offset:
        raise _halt(record, f"start offset goes back published={published.start_offset}")
    if record.sequence_number < published.sequence_number:
        raise _halt(record, f"sequence number goes back published={published.sequence_number}")
    if published.sealed and (not record.sealed or record.length != published.length):
        raise _halt(record, f"is sealed published_length={published.length}")


def _placed_chunks(
    change: SegmentPublication,
    published: SegmentRecord | None,
    facts: Facts,
    by_id: Mapping[SegmentId, SegmentPublication],
    grown: Mapping[SegmentId, Sequence[PlacedChunk]],
    chunk_bytes_max: int,
) -> list[PlacedChunk]:
    """What the pieces add to the layout, from the new start offset on."""
    record = change.record
    published_length = 0 if published is None else published.length
    end = max(published_length, record.start_offset)
    if change.pieces and published_length <= change.pieces[0].offset < end:
        end = change.pieces[0].offset
    stretches: list[PlacedChunk] = []
    data: list[BufferView] = []
    events: list[RunEvents | None] = []
    data_offset = end

    def cut_data() -> None:
        for chunk in cut_into_chunks(data_offset, data, events, chunk_bytes_max):
            stretches.append(PlacedChunk(chunk.offset, chunk.length, chunk))

    for piece in change.pieces:
        if piece.offset != end:
            raise _halt(record, f"has a gap or an overlap expected={end} piece={piece.offset}")
        if isinstance(piece, DataPiece):
            data += piece.runs
            events += piece.events if piece.events is not None else [None] * len(piece.runs)
            end += sum(map(len, piece.runs))
            continue
        cut_data()
        stretches += _moved(change, piece, facts, by_id, grown)
        end += piece.length
        data, events, data_offset = [], [], end
    cut_data()
    if end != record.length and not (change.deleted and not change.pieces):
        raise _halt(record, f"ends before its length end={end}")
    return [stretch for stretch in stretches if stretch.end_offset > record.start_offset]


def _moved(
    change: SegmentPublication,
    piece: MergePiece,
    facts: Facts,
    by_id: Mapping[SegmentId, SegmentPublication],
    grown: Mapping[SegmentId, Sequence[PlacedChunk]],
) -> list[PlacedChunk]:
    source = by_id[piece.source_id].record
    whole = [
        PlacedChunk(entry.start_offset, entry.length, entry, entry.events, entry.event_shift)
        for entry in facts.layouts.get(piece.source_id, ())
    ]
    whole += grown[piece.source_id]
    end = 0
    for stretch in whole:
        if stretch.start_offset != end:
            raise _halt(
                change.record, f"merges a source with a hole source_id={piece.source_id} at={end}"
            )
        end = stretch.end_offset
    if source.start_offset != 0 or end != piece.length:
        raise _halt(
            change.record,
            f"merges part of a source source_id={piece.source_id} source_end={end}"
            f" source_start={source.start_offset} merged_length={piece.length}",
        )
    return [stretch.moved(piece) for stretch in whole]


def _drop_segment(plan: Plan, change: SegmentPublication, facts: Facts) -> None:
    segment_id, name = change.record.segment_id, change.record.name
    plan.records[segment_id] = None
    if segment_id not in facts.records:
        return
    plan.changes[record_key(segment_id)] = None
    if facts.catalog.get(name) == segment_id:
        plan.changes[catalog_key(name)] = None
    _drop_entries(plan, segment_id, facts.layouts.get(segment_id, ()))


def _drop_entries(plan: Plan, segment_id: SegmentId, entries: Iterable[LayoutEntry]) -> None:
    for entry in entries:
        plan.changes[reference_key(entry.identity, segment_id, entry.end_offset)] = None
        plan.dropped.append((segment_id, entry))


def _change_segment(
    plan: Plan, change: SegmentPublication, facts: Facts, stretches: Iterable[PlacedChunk]
) -> None:
    record = change.record
    segment_id = record.segment_id
    published = facts.records.get(segment_id)
    if published is None:
        named = facts.catalog.get(record.name)
        if named is None or named < segment_id:
            plan.changes[catalog_key(record.name)] = encode_id(segment_id)
            facts.catalog[record.name] = segment_id
    elif record.start_offset > published.start_offset:
        truncated = [
            entry
            for entry in facts.layouts.get(segment_id, ())
            if entry.end_offset <= record.start_offset
        ]
        _drop_entries(plan, segment_id, truncated)
        for entry in truncated:
            plan.changes[layout_key(segment_id, entry.end_offset)] = None
    none_before = published is None or published.extended_attribute_count_is_zero
    value = encode_record(record, no_extended_attribute=none_before and not change.attributes)
    plan.records[segment_id] = value
    plan.changes[record_key(segment_id)] = value
    for key, attribute in change.attributes.items():
        plan.changes[attribute_key(segment_id, key)] = (
            None if attribute is None else encode_attribute(attribute)
        )
    for stretch in stretches:
        plan.stretches.append((segment_id, stretch))


def _halt(record: SegmentRecord, why: str) -> ServiceHaltError:
    return ServiceHaltError(
        f"publication refused: the segment {why} segment_id={record.segment_id}"
        f" name={record.name!r} start_offset={record.start_offset} length={record.length}"
    )
