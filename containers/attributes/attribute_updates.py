"""What attribute updates come to, against everything accepted so far; and the attributes that remember merges.

Pure: changes nothing. Results are absolute values, so that replaying them changes nothing (H32). A key whose value is
not known here is neither refused nor accepted: the caller fetches it first (H26).

Merged sources
--------------

What a segment remembers of the segments merged into it, so that a retry is told from a loss (H74). Without it, "the
source does not exist" could mean that the merge has been done or that the source was lost.

One extended attribute of the target per merge, changed in the merge's own operation and dropped by
`SegmentApi.forget_merged`. Listings of attributes leave these out.

    key     0x00, b"merged", 0x00, then the 20-byte BLAKE2b hash of the source's name in UTF-8
    value   the target's length behind that merge
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeAlias

from containers.metadata.attribute_table import AttributeTable
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges
from segmentstore.contracts.errors import BadAttributeUpdateError, InvalidRequestError
from segmentstore.contracts.identifiers import (
    ATTRIBUTE_KEY_BYTES_MAX,
    ATTRIBUTE_VALUE_BYTES_MAX,
    TABLE_KEY_LENGTH,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType

ATTRIBUTE_UPDATES_MAX = 1000
"""Most attribute updates of one operation."""

_MERGED_KEY_PREFIX = b"\x00merged\x00"
_MERGED_NAME_HASH_BYTES = 20

# An attribute of an Enum costs as much as a call.
_NONE = AttributeUpdateType.NONE
_REPLACE = AttributeUpdateType.REPLACE
_REPLACE_IF_GREATER = AttributeUpdateType.REPLACE_IF_GREATER
_ACCUMULATE = AttributeUpdateType.ACCUMULATE
_REPLACE_IF_EQUALS = AttributeUpdateType.REPLACE_IF_EQUALS

_NUMBER_MIN, _NUMBER_MAX = -(1 << 63), (1 << 63) - 1

EvaluatedAppend: TypeAlias = tuple[bytes, AttributeChanges]
"""What is appended, and the values after it."""

AttributeDecision: TypeAlias = (
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
        if update.key == TABLE_KEY_LENGTH and not at_creation:
            raise InvalidRequestError("only a new segment can be made a table")
        if not 1 <= len(update.key) <= ATTRIBUTE_KEY_BYTES_MAX:
            raise InvalidRequestError(
                f"attribute key must have 1 to {ATTRIBUTE_KEY_BYTES_MAX} bytes length={len(update.key)}"
            )
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


def evaluate_updates(
    table: AttributeTable, name: str, updates: Sequence[AttributeUpdate]
) -> list[tuple[AttributeKey, AttributeValue | None]]:
    """The values after the updates, in their order; later updates of a key see earlier ones.

    Raises BadAttributeUpdateError if a condition does not hold, UnknownAttributesError if a value is not in memory.
    """
    if len(updates) == 1:
        update = updates[0]
        if not table.is_known(update.key):
            raise UnknownAttributesError([update.key])
        return [(update.key, _value_after(name, update, table.pending_value(update.key)))]
    unknown = [update.key for update in updates if not table.is_known(update.key)]
    if unknown:
        raise UnknownAttributesError(unknown)
    changes: dict[AttributeKey, AttributeValue | None] = {}
    for update in updates:
        key = update.key
        current = changes[key] if key in changes else table.pending_value(key)
        changes[key] = _value_after(name, update, current)
    return list(changes.items())


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


def merged_source_keys(source_names: Iterable[str]) -> list[AttributeKey]:
    """The same for several sources, each once, in the order given."""
    return list(dict.fromkeys(merged_source_key(name) for name in source_names))


def is_merged_source_key(key: AttributeKey) -> bool:
    """Whether the attribute is a memory of a merge, which is nobody's but ours."""
    return len(key) == len(_MERGED_KEY_PREFIX) + _MERGED_NAME_HASH_BYTES and key.startswith(
        _MERGED_KEY_PREFIX
    )
