"""What attribute updates come to, against everything accepted so far; and the attributes that remember merges.

Pure: changes nothing. Results are absolute values, so that replaying them changes nothing. A key whose value is
not known here is neither refused nor accepted: the caller fetches it first.

An update that passes here, a client's or the store's own, can be encoded in the log, in every later checkpoint and in
Tier 2:

- numbers have 64 bits, sums too; a count of events is never negative;
- a segment's core attributes are so few and so short that its record stays small; they may only not grow beyond the
  bounds: a segment that has more from an earlier version keeps them, and may change and remove them;
- only the container sets the attributes that it keeps for itself (counters of tables, the memory of merges).

Merged sources
--------------

What a segment remembers of the segments merged into it, so that a retry is told from a loss. Without it, "the
source does not exist" could mean that the merge has been done or that the source was lost.

One extended attribute of the target per merge, changed in the merge's own operation and dropped by
`SegmentApi.forget_merged`. Listings of attributes leave these out.

    key     0x00, b"merged", 0x00, then the 20-byte BLAKE2b hash of the source's name in UTF-8
    value   u64 the target's length behind that merge, u64 the source's id; big endian. Before ids were part of it: the
            length alone, as a number.

What is remembered is a segment, not a name. A name that is given to another segment is forgotten first: should that
one be lost, its merge is an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final, TypeAlias

from containers.metadata.attribute_table import AttributeTable
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges
from segmentstore.contracts.errors import BadAttributeUpdateError, InvalidRequestError
from segmentstore.contracts.identifiers import (
    ATTRIBUTE_KEY_BYTES_MAX,
    ATTRIBUTE_VALUE_BYTES_MAX,
    CORE_ATTRIBUTE_BYTES_MAX,
    CORE_ATTRIBUTE_PREFIX,
    CORE_ATTRIBUTES_MAX,
    EVENT_COUNT,
    TABLE_ENTRY_COUNT,
    TABLE_KEY_LENGTH,
    TABLE_LIVE_BYTES,
    AttributeKey,
    AttributeValue,
    SegmentId,
    is_core_attribute,
)
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from segmentstore.contracts.tables import KEY_BYTES_MAX

ATTRIBUTE_UPDATES_MAX = 1000
"""Most attribute updates of one operation."""

TABLE_INDEX_PREFIX: Final = b"\x01"
TABLE_INDEX_END: Final = b"\x02"
"""Between them lie the attributes that are the index of a table, all with that prefix (tables/table_index.py)."""

_MERGED_KEY_PREFIX = b"\x00merged\x00"
_MERGED_NAME_HASH_BYTES = 20
_MERGE = Struct(">QQ")

# An attribute of an Enum costs as much as a call.
_NONE = AttributeUpdateType.NONE
_REPLACE = AttributeUpdateType.REPLACE
_REPLACE_IF_GREATER = AttributeUpdateType.REPLACE_IF_GREATER
_ACCUMULATE = AttributeUpdateType.ACCUMULATE
_REPLACE_IF_EQUALS = AttributeUpdateType.REPLACE_IF_EQUALS

_NUMBER_MIN, _NUMBER_MAX = -(1 << 63), (1 << 63) - 1

_OWN_FIRST_BYTES = frozenset((CORE_ATTRIBUTE_PREFIX[0], _MERGED_KEY_PREFIX[0]))
"""They tell most keys of users from those that are looked at more closely."""

EvaluatedAppend: TypeAlias = tuple[bytes, AttributeChanges]
"""What is appended, and the values after it."""

AttributeUpdatesOrFunction: TypeAlias = (
    Sequence[AttributeUpdate] | Callable[[SegmentMetadata], EvaluatedAppend]
)
"""Updates to judge; or what judges by itself, in the stretch in which the operation is accepted, against the segment's
pending state: it gives the bytes (all that were submitted, or fewer) and the values after the operation, or raises why
not (UnknownAttributesError: not yet)."""


class UnknownAttributesError(Exception):
    """Some attributes have to be fetched before the update can be judged."""

    def __init__(self, keys: list[AttributeKey]) -> None:
        super().__init__(f"attributes are not in memory count={len(keys)}")
        self.keys = keys


def validate_updates(updates: Sequence[AttributeUpdate], *, at_creation: bool = False) -> None:
    """Raises InvalidRequestError for what can never be accepted."""
    if len(updates) > ATTRIBUTE_UPDATES_MAX:
        raise InvalidRequestError(
            f"too many attribute updates count={len(updates)} count_max={ATTRIBUTE_UPDATES_MAX}"
        )
    for update in updates:
        key = update.key
        if not 1 <= len(key) <= ATTRIBUTE_KEY_BYTES_MAX:
            raise InvalidRequestError(
                f"attribute key must have 1 to {ATTRIBUTE_KEY_BYTES_MAX} bytes length={len(key)}"
            )
        if key[0] in _OWN_FIRST_BYTES:
            _validate_own_key(update, at_creation=at_creation)
        for value in (update.value, update.comparison):
            if isinstance(value, int):
                if not _NUMBER_MIN <= value <= _NUMBER_MAX:
                    raise InvalidRequestError(
                        f"attribute value needs more than 64 bits value={value}"
                    )
            elif value is not None and len(value) > ATTRIBUTE_VALUE_BYTES_MAX:
                raise InvalidRequestError(
                    f"attribute value is too long length={len(value)} length_max={ATTRIBUTE_VALUE_BYTES_MAX}"
                )


def _validate_own_key(update: AttributeUpdate, *, at_creation: bool) -> None:
    """The same for keys that mean something to the container."""
    key, value = update.key, update.value
    if key == EVENT_COUNT:
        if value is not None and not (isinstance(value, int) and value >= 0):
            raise InvalidRequestError(
                f"a count of events is a number that is not negative value={value!r}"
            )
    elif key == TABLE_KEY_LENGTH:
        if not at_creation:
            raise InvalidRequestError("only a new segment can be made a table")
        if not (isinstance(value, int) and 0 <= value <= KEY_BYTES_MAX):
            raise InvalidRequestError(
                f"keys of a table have at most {KEY_BYTES_MAX} bytes key_length={value!r}"
            )
    elif key in (TABLE_ENTRY_COUNT, TABLE_LIVE_BYTES) or key.startswith(_MERGED_KEY_PREFIX):
        raise InvalidRequestError(
            f"the store keeps this attribute itself, callers cannot set it key={key.hex()}"
        )


def evaluate_updates(
    table: AttributeTable, name: str, updates: Sequence[AttributeUpdate]
) -> list[tuple[AttributeKey, AttributeValue | None]]:
    """The values after the updates, in their order; later updates of a key see earlier ones.

    Raises BadAttributeUpdateError if a condition does not hold, UnknownAttributesError if a value is not in memory.
    """
    if len(updates) == 1:
        update = updates[0]
        key = update.key
        if not table.is_known(key):
            raise UnknownAttributesError([key])
        current = table.pending_value(key)
        value = _value_after(name, update, current)
        if current is None or value.__class__ is bytes:
            _require_core_room(table, name, [(key, value)])
        return [(key, value)]
    unknown = [update.key for update in updates if not table.is_known(update.key)]
    if unknown:
        raise UnknownAttributesError(unknown)
    changes: dict[AttributeKey, AttributeValue | None] = {}
    may_grow = False
    for update in updates:
        key = update.key
        current = changes[key] if key in changes else table.pending_value(key)
        changes[key] = value = _value_after(name, update, current)
        may_grow = may_grow or current is None or isinstance(value, bytes)
    evaluated = list(changes.items())
    if may_grow:
        _require_core_room(table, name, evaluated)
    return evaluated


def _require_core_room(
    table: AttributeTable, name: str, changes: Sequence[tuple[AttributeKey, AttributeValue | None]]
) -> None:
    """Raises BadAttributeUpdateError if a segment's record would grow beyond its bounds."""
    core = [change for change in changes if is_core_attribute(change[0])]
    if not core:
        return
    values = table.pending_core()
    count_before, bytes_before = _core_size(values)
    for key, value in core:
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    count, byte_count = _core_size(values)
    if count > max(count_before, CORE_ATTRIBUTES_MAX):
        why = f"a segment has at most {CORE_ATTRIBUTES_MAX} core attributes"
    elif byte_count > max(bytes_before, CORE_ATTRIBUTE_BYTES_MAX):
        why = f"core attributes of a segment have at most {CORE_ATTRIBUTE_BYTES_MAX} bytes"
    else:
        return
    key = core[-1][0]
    current = table.pending_value(key)
    raise BadAttributeUpdateError(name, key=key, current=current, why=why)


def _core_size(values: Mapping[AttributeKey, AttributeValue]) -> tuple[int, int]:
    """How many there are, EVENT_COUNT left out, and the bytes of those that are byte strings."""
    byte_count = sum(len(value) for value in values.values() if isinstance(value, bytes))
    return len(values) - (EVENT_COUNT in values), byte_count


def add_events(name: str, current: AttributeValue | None, events: int) -> int:
    """The count of events after so many more. Raises BadAttributeUpdateError if it needs more than 64 bits.

    A count below zero, which earlier versions took, counts as none: events are numbered from zero.
    """
    counted = current if isinstance(current, int) and current > 0 else 0
    total = counted + events
    if total > _NUMBER_MAX:
        raise BadAttributeUpdateError(
            name, key=EVENT_COUNT, current=current, why="the sum needs more than 64 bits"
        )
    return total


def _value_after(
    name: str, update: AttributeUpdate, current: AttributeValue | None
) -> AttributeValue | None:
    key, value, kind, comparison = update
    if kind is _REPLACE:
        return value
    if kind is _REPLACE_IF_EQUALS:
        if current == comparison and type(current) is type(comparison):
            return value
        why = "it differs from the comparison"
    elif kind is _NONE:
        if current is None:
            return value
        why = "it has a value already"
    elif not isinstance(value, int) or isinstance(current, bytes):
        why = "only numbers have an order, and can be added"
    elif kind is _REPLACE_IF_GREATER:
        if current is None or value > current:
            return value
        why = "it is not greater"
    else:
        assert kind is _ACCUMULATE, f"no type of update: {kind!r}"
        total = value + (current or 0)
        if _NUMBER_MIN <= total <= _NUMBER_MAX:
            return total
        why = "the sum needs more than 64 bits"
    raise BadAttributeUpdateError(name, key=key, current=current, why=why)


def merged_source_key(source_name: str) -> AttributeKey:
    """The target's attribute that says where the merge of this source ended."""
    return AttributeKey(
        _MERGED_KEY_PREFIX
        + blake2b(source_name.encode(), digest_size=_MERGED_NAME_HASH_BYTES).digest()
    )


def encode_merge(length: int, source_id: SegmentId) -> bytes:
    """What is remembered of a merge."""
    return _MERGE.pack(length, source_id)


def decode_merge(value: AttributeValue) -> tuple[int, SegmentId | None]:
    """The target's length behind the merge, and the source; None for what older versions remembered."""
    if isinstance(value, int):
        return value, None
    length, source_id = _MERGE.unpack(value)
    return length, SegmentId(source_id)


def merged_source_keys(source_names: Iterable[str]) -> list[AttributeKey]:
    """The same for several sources, each once, in the order given."""
    return list(dict.fromkeys(merged_source_key(name) for name in source_names))


def is_merged_source_key(key: AttributeKey) -> bool:
    """Whether the attribute is a memory of a merge: the container's own, not shown to clients."""
    return len(key) == len(_MERGED_KEY_PREFIX) + _MERGED_NAME_HASH_BYTES and key.startswith(
        _MERGED_KEY_PREFIX
    )
