"""Updates of one key each that were submitted together: one operation, yet each of them is judged by itself.

- In order: each sees what those before it came to, as if it had been submitted alone behind them.
- What is refused leaves no trace: its record is not among the bytes. If all are refused, nothing is appended.
- Outcomes are told when the operation is durable, or, if all were refused, when what they were judged against is (H24).
"""

from asyncio import Future
from collections.abc import Sequence
from contextlib import suppress

from containers.attributes.judgement import JudgedAppend, UnknownAttributesError
from containers.metadata.segment_metadata import SegmentMetadata
from containers.tables.batch import counters, require_version
from containers.tables.table_index import decode_place, encode_place, index_key, record_length_of
from containers.tables.table_record import encode_updates
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.tables import NO_VERSION, TableEntry


class AllRefusedError(SegmentStoreError):
    """Nothing of a group is appended; its `outcomes` say why. Never leaves this room."""


class UpdateGroup:
    """Entries with the versions that they expect."""

    __slots__ = ("_entries", "_lengths", "data", "index_keys", "outcomes")

    def __init__(self, entries: Sequence[TableEntry]) -> None:
        self._entries = entries
        self.index_keys = [index_key(entry.key) for entry in entries]
        self.data, self._lengths = encode_updates(entries)
        """Of all of them: what is appended if none is refused."""
        self.outcomes: list[int | SegmentStoreError] = []
        """Of each entry, once it is judged: its version, or why it is refused."""

    def outcomes_of(self, appended: "Future[int]") -> Sequence[int | SegmentStoreError]:
        """What each came to. Raises what kept the whole group from being appended."""
        with suppress(AllRefusedError):
            appended.result()
        return self.outcomes

    def judge(self, segment: SegmentMetadata) -> JudgedAppend:
        """See AttributeDecision. Raises UnknownAttributesError, AllRefusedError."""
        table = segment.attributes
        if not table.complete:
            unknown = [key for key in self.index_keys if not table.is_known(key)]
            if unknown:
                raise UnknownAttributesError(unknown)
        pending_value = table.pending_value
        offset = segment.pending_length
        count = live_bytes = 0
        changes: dict[AttributeKey, AttributeValue | None] = {}
        outcomes: list[int | SegmentStoreError] = []
        refused = 0
        for key, entry, length in zip(self.index_keys, self._entries, self._lengths, strict=True):
            before = changes.get(key)
            if before is None:
                before = pending_value(key)
            if entry.version != NO_VERSION:
                place = None if before is None else decode_place(before)
                try:
                    require_version(segment.name, key, entry.version, place)
                except SegmentStoreError as refusal:
                    outcomes.append(refusal)
                    refused += 1
                    continue
            if before is None:
                count += 1
                live_bytes += length
            else:
                live_bytes += length - record_length_of(before)
            changes[key] = encode_place(offset, length)
            outcomes.append(offset)
            offset += length
        self.outcomes = outcomes
        data = self.data
        if refused:
            if refused == len(outcomes):
                raise AllRefusedError("every update of a group is refused")
            kept = zip(self._entries, outcomes, strict=True)
            data, _ = encode_updates([entry for entry, each in kept if isinstance(each, int)])
        return data, [*changes.items(), *counters(segment, count=count, live_bytes=live_bytes)]
