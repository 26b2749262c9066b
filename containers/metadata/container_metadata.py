"""What one container believes as a whole: its numbers and its active segments.

Invariants (check()):
- sequence numbers only grow, also when the frame that carried one failed;
- an id is never given twice; a name maps to at most one segment that is not gone;
- `by_id` holds every active segment, gone ones included until Tier 2 has followed.
"""

from collections.abc import Iterator

from containers.metadata.attribute_table import AttributeLedger
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.identifiers import (
    NO_SEGMENT,
    NO_SEQUENCE_NUMBER,
    ContainerId,
    Epoch,
    SegmentId,
    SequenceNumber,
)

MERGED_NAMES_MAX = 100_000


class ContainerMetadata:
    """The active segments of one container and the numbers it hands out."""

    def __init__(self, *, container_id: ContainerId) -> None:
        self.container_id = container_id
        self.epoch = Epoch(0)
        self.sequence_number: SequenceNumber = NO_SEQUENCE_NUMBER
        """The last one given out."""
        self.committed_sequence_number: SequenceNumber = NO_SEQUENCE_NUMBER
        """Operations at or below it are durable and applied."""
        self.highest_segment_id: SegmentId = NO_SEGMENT
        self.by_id: dict[SegmentId, SegmentMetadata] = {}
        self._by_name: dict[str, SegmentMetadata] = {}
        self.root_changes = 0
        """How many changes of Tier 2's manifest are known to be durable; an older manifest is not this container's."""
        self.flushes_nothing = False
        """This life of the container began without Tier 2."""
        self.attribute_ledger = AttributeLedger()
        self.merged_into: dict[str, tuple[str, SegmentId]] = {}
        """Name and id of the target of each source that was merged since the log begins: before its name is given to
        another segment, the target has to forget the merge. Bounded; the oldest is dropped first."""
        self.removals = 0
        """How many segments that were gone have left memory: what Tier 2 was asked before may be old news since."""

    def next_sequence_number(self) -> SequenceNumber:
        self.sequence_number = SequenceNumber(self.sequence_number + 1)
        return self.sequence_number

    def next_segment_id(self) -> SegmentId:
        self.highest_segment_id = SegmentId(self.highest_segment_id + 1)
        return self.highest_segment_id

    def raise_numbers(self, *, sequence_number: int, segment_id: int) -> None:
        """Continue above these: numbers that an earlier owner may have handed out never return."""
        self.sequence_number = SequenceNumber(max(self.sequence_number, sequence_number))
        self.highest_segment_id = SegmentId(max(self.highest_segment_id, segment_id))

    def get(self, name: str) -> SegmentMetadata | None:
        """The active segment of that name that is not (pending) gone."""
        segment = self._by_name.get(name)
        if segment is None or segment.is_pending_gone():
            return None
        return segment

    def last_of_name(self, name: str) -> SegmentMetadata | None:
        """The newest active segment of that name, gone or not: while it is here, Tier 2 may still show it."""
        return self._by_name.get(name)

    def add(self, segment: SegmentMetadata) -> None:
        """Make a segment active; its id must be new here, its name free or gone."""
        assert segment.segment_id not in self.by_id, f"id {segment.segment_id} is active already"
        holder = self._by_name.get(segment.name)
        assert holder is None or holder.is_pending_gone() or segment.is_gone(), (
            f"name {segment.name!r} belongs to {holder!r}"
        )
        self.by_id[segment.segment_id] = segment
        segment.attributes.join(self.attribute_ledger, segment)
        if holder is None or not segment.is_gone():
            self._by_name[segment.name] = segment
        if segment.segment_id > self.highest_segment_id:
            self.highest_segment_id = segment.segment_id

    def remove(self, segment: SegmentMetadata) -> None:
        """The segment leaves memory: evicted, or gone from Tier 2 as well."""
        del self.by_id[segment.segment_id]
        segment.attributes.leave()
        if segment.is_gone():
            self.removals += 1
        if self._by_name.get(segment.name) is segment:
            del self._by_name[segment.name]

    def merged(self, source: SegmentMetadata, target: SegmentMetadata) -> None:
        """The target remembers the source from now on."""
        self.merged_into.pop(source.name, None)
        self.merged_into[source.name] = (target.name, target.segment_id)
        if len(self.merged_into) > MERGED_NAMES_MAX:
            del self.merged_into[next(iter(self.merged_into))]

    def names(self) -> Iterator[str]:
        return iter(self._by_name)

    def check(self) -> None:
        """Prove the invariants; O(n)."""
        assert self.committed_sequence_number <= self.sequence_number
        attribute_bytes = core_bytes = 0
        for segment_id, segment in self.by_id.items():
            assert segment.segment_id == segment_id, repr(segment)
            assert segment_id <= self.highest_segment_id, repr(segment)
            segment.check()
            segment.attributes.check()
            attribute_bytes += segment.attributes.held_bytes
            core_bytes += segment.attributes.core_bytes
        held = self.attribute_ledger.held_bytes
        assert attribute_bytes == held, f"attributes have {attribute_bytes} bytes, {held} noted"
        core = self.attribute_ledger.core_bytes
        assert core_bytes == core, f"core attributes have {core_bytes} bytes, {core} noted"
        for name, segment in self._by_name.items():
            assert segment.name == name, repr(segment)
            assert self.by_id.get(segment.segment_id) is segment, repr(segment)
