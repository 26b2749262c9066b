"""What is submitted to a table as one operation, and what it comes to when it is its turn.

Everything is judged against the pending state before the batch, in the stretch in which the batch gets its offset;
the result is absolute values, so replaying them changes nothing. Records do not depend on the offset: they are
encoded once, however long the batch waits.

A batch happens as a whole or not at all, except for updates of one key each that were submitted together
(IndependentUpdateBatch): one operation, yet each of them is judged by itself.

Order of the checks, per entry: no condition passes; a missing key that should have a version is TableKeyNotFoundError;
any other difference is TableVersionError.
"""

from asyncio import Future
from collections.abc import Sequence
from contextlib import suppress

from containers.attributes.attribute_updates import EvaluatedAppend, UnknownAttributesError
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges
from containers.tables.table_index import (
    Place,
    decode_place,
    encode_moved,
    encode_place,
    index_key,
    record_length_of,
)
from containers.tables.table_record import (
    encode_copy,
    encode_removal,
    encode_update,
    encode_updates,
)
from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentStoreError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.identifiers import (
    TABLE_ENTRY_COUNT,
    TABLE_LIVE_BYTES,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.tables import (
    BATCH_BYTES_MAX,
    ENTRY_BYTES_MAX,
    KEY_BYTES_MAX,
    NO_VERSION,
    NOT_EXISTS,
    TableEntry,
    TableKey,
)

BATCH_ENTRIES_MAX = 65_000
"""Bounded by the count of attributes in a record of the log, the two counters among them."""


class OutdatedCopyError(SegmentStoreError):
    """A record that compaction wants to move is not the newest of its key any more. Never leaves this package."""


class AllRefusedError(SegmentStoreError):
    """Nothing of a group is appended; its `outcomes` say why. Never leaves this package."""


class TableBatch:
    """Records to append, and the keys that they change. Subclasses say what becomes of the keys."""

    __slots__ = ("data", "index_keys", "lengths", "versions")

    def __init__(self, keys: Sequence[AttributeKey], versions: Sequence[int]) -> None:
        self.index_keys = keys
        self.versions = versions
        self.data = b""
        self.lengths: Sequence[int] = ()
        """Bytes of each record."""

    def evaluate(self, segment: SegmentMetadata) -> EvaluatedAppend:
        """The records, and the attributes after the batch, if it is the next one of the segment.

        Raises UnknownAttributesError, TableKeyNotFoundError, TableVersionError.
        """
        table = segment.attributes
        if len(self.index_keys) == 1:
            key = self.index_keys[0]
            if not table.is_known(key):
                raise UnknownAttributesError([key])
        else:
            unknown = [key for key in self.index_keys if not table.is_known(key)]
            if unknown:
                raise UnknownAttributesError(unknown)
        return self.data, self._evaluate_known(segment)

    def _evaluate_known(self, segment: SegmentMetadata) -> AttributeChanges:
        raise NotImplementedError

    def _values_before(self, segment: SegmentMetadata) -> list[AttributeValue | None]:
        """What the index has of the keys before the batch, their conditions checked."""
        pending_value = segment.attributes.pending_value
        values: list[AttributeValue | None] = []
        for key, expected in zip(self.index_keys, self.versions, strict=True):
            value = pending_value(key)
            if expected != NO_VERSION:
                place = None if value is None else decode_place(value)
                require_version(segment.name, key, expected, place)
            values.append(value)
        return values


class UpdateBatch(TableBatch):
    """New values."""

    __slots__ = ()

    def __init__(self, entries: Sequence[TableEntry]) -> None:
        super().__init__(
            [index_key(entry.key) for entry in entries], [entry.version for entry in entries]
        )
        records = [encode_update(entry.key, entry.value) for entry in entries]
        self.lengths = [len(record) for record in records]
        self.data = records[0] if len(records) == 1 else b"".join(records)

    def new_versions(self, end: int) -> list[int]:
        """The version of each entry when the batch ends at `end`."""
        offset = end - len(self.data)
        versions: list[int] = []
        for length in self.lengths:
            versions.append(offset)
            offset += length
        return versions

    def _evaluate_known(self, segment: SegmentMetadata) -> AttributeChanges:
        if len(self.index_keys) == 1:
            return self._evaluate_one(segment)
        before = dict(zip(self.index_keys, self._values_before(segment), strict=True))
        offset = segment.pending_length
        changes: dict[AttributeKey, AttributeValue | None] = {}
        live: dict[AttributeKey, int] = {}
        for key, length in zip(self.index_keys, self.lengths, strict=True):
            changes[key] = encode_place(offset, length)  # of a key that repeats the last one stays
            live[key] = length
            offset += length
        lengths = [record_length_of(value) for value in before.values() if value is not None]
        count, grown = len(before) - len(lengths), sum(live.values()) - sum(lengths)
        return [*changes.items(), *counters(segment, count=count, live_bytes=grown)]

    def _evaluate_one(self, segment: SegmentMetadata) -> AttributeChanges:
        (before,) = self._values_before(segment)
        length = self.lengths[0]
        change = (self.index_keys[0], encode_place(segment.pending_length, length))
        if before is None:
            return [change, *counters(segment, count=1, live_bytes=length)]
        grown = length - record_length_of(before)
        return [change, *counters(segment, count=0, live_bytes=grown)]


class IndependentUpdateBatch(TableBatch):
    """Updates of one key each that were submitted together: entries with the versions that they expect.

    - In order: each sees what those before it came to, as if it had been submitted alone behind them.
    - What is refused leaves no trace: its record is not among the bytes. If all are refused, nothing is appended.
    - Outcomes are told when the operation is durable, or, if all were refused, when what they were judged against is.
    """

    __slots__ = ("_entries", "outcomes")

    def __init__(self, entries: Sequence[TableEntry]) -> None:
        super().__init__([index_key(entry.key) for entry in entries], [])
        self._entries = entries
        # Of all of them: what is appended if none is refused.
        self.data, self.lengths = encode_updates(entries)
        self.outcomes: list[int | SegmentStoreError] = []
        """Of each entry, once it is judged: its version, or why it is refused."""

    def outcomes_of(self, appended: "Future[int]") -> Sequence[int | SegmentStoreError]:
        """What each came to. Raises what kept the whole group from being appended."""
        with suppress(AllRefusedError):
            appended.result()
        return self.outcomes

    def evaluate(self, segment: SegmentMetadata) -> EvaluatedAppend:
        """See AttributeUpdatesOrFunction. Raises UnknownAttributesError, AllRefusedError."""
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
        for key, entry, length in zip(self.index_keys, self._entries, self.lengths, strict=True):
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


class RemovalBatch(TableBatch):
    """Keys that go. A missing key is no error unless it is expected to have a version."""

    __slots__ = ()

    def __init__(self, keys: Sequence[TableKey]) -> None:
        super().__init__([index_key(each.key) for each in keys], [each.version for each in keys])
        records = [encode_removal(each.key) for each in keys]
        self.lengths = [len(record) for record in records]
        self.data = b"".join(records)

    def _evaluate_known(self, segment: SegmentMetadata) -> AttributeChanges:
        before = dict(zip(self.index_keys, self._values_before(segment), strict=True))
        gone = {key: value for key, value in before.items() if value is not None}
        live_bytes = sum(map(record_length_of, gone.values()))
        changes: list[tuple[AttributeKey, AttributeValue | None]] = [(key, None) for key in gone]
        return [*changes, *counters(segment, count=-len(gone), live_bytes=-live_bytes)]


class CopyBatch(TableBatch):
    """Newest records that compaction moves to the end, with their versions."""

    __slots__ = ("places",)

    def __init__(self, entries: Sequence[TableEntry], places: Sequence[Place]) -> None:
        """`entries` are what lies at `places`."""
        super().__init__([index_key(entry.key) for entry in entries], [])
        self.places = places
        records = [encode_copy(entry.key, entry.value, entry.version) for entry in entries]
        self.lengths = [len(record) for record in records]
        self.data = b"".join(records)

    def _evaluate_known(self, segment: SegmentMetadata) -> AttributeChanges:
        """Also raises OutdatedCopyError: the copy of a value is never put over a newer one."""
        pending_value = segment.attributes.pending_value
        offset = segment.pending_length
        changes: list[tuple[AttributeKey, AttributeValue | None]] = []
        for key, place, length in zip(self.index_keys, self.places, self.lengths, strict=True):
            value = pending_value(key)
            if value is None or decode_place(value) != place:
                raise OutdatedCopyError(f"record is not the newest any more offset={place.offset}")
            changes.append((key, encode_moved(offset, length, place.version)))
            offset += length
        return changes


def require_version(
    name: str, index_key_of: AttributeKey, expected: int, place: Place | None
) -> None:
    """Raises TableKeyNotFoundError, TableVersionError. `place` is where the key is, if anywhere."""
    if place is None:
        if expected != NOT_EXISTS:
            raise TableKeyNotFoundError(name, key=index_key_of[1:])
    elif place.version != expected:
        raise TableVersionError(
            name, key=index_key_of[1:], expected=expected, current=place.version
        )


def counters(segment: SegmentMetadata, *, count: int, live_bytes: int) -> AttributeChanges:
    """The two counters after a change by `count` keys and `live_bytes` bytes; none that stays."""
    changes: list[tuple[AttributeKey, AttributeValue | None]] = []
    for key, difference in ((TABLE_ENTRY_COUNT, count), (TABLE_LIVE_BYTES, live_bytes)):
        if difference:
            changes.append((key, counter(segment.attributes.pending_value(key)) + difference))
    return changes


def counter(value: AttributeValue | None) -> int:
    """The number that a counter's attribute stands for."""
    return value if isinstance(value, int) else 0


def validate_entries(entries: Sequence[TableEntry], key_length: int) -> None:
    """Raises InvalidRequestError for what can never be accepted."""
    total = 0
    for entry in entries:
        size = _require_key(entry.key, key_length) + len(entry.value)
        if size > ENTRY_BYTES_MAX:
            raise InvalidRequestError(
                f"table entry is too large length={size} length_max={ENTRY_BYTES_MAX}"
            )
        total += size
    _require_batch(len(entries), total)


def validate_keys(keys: Sequence[TableKey], key_length: int) -> None:
    """Raises InvalidRequestError for what can never be accepted."""
    _require_batch(len(keys), sum(_require_key(each.key, key_length) for each in keys))


def _require_key(key: bytes, key_length: int) -> int:
    length = len(key)
    if not 0 < length <= KEY_BYTES_MAX:
        raise InvalidRequestError(f"table key must have 1 to {KEY_BYTES_MAX} bytes length={length}")
    if key_length and length != key_length:
        raise InvalidRequestError(f"every key of this table has {key_length} bytes length={length}")
    return length


def _require_batch(count: int, length: int) -> None:
    if count > BATCH_ENTRIES_MAX or length > BATCH_BYTES_MAX:
        raise InvalidRequestError(
            f"table batch is too large count={count} count_max={BATCH_ENTRIES_MAX}"
            f" length={length} length_max={BATCH_BYTES_MAX}"
        )
