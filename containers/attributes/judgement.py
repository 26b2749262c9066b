"""Decides what attribute updates come to, against everything accepted so far. Pure: changes nothing.

Results are absolute values, so that replaying them changes nothing (H32). A key whose value is not known here is
neither refused nor accepted: the caller fetches it first (H26).
"""

from collections.abc import Callable, Sequence
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

JudgedAppend: TypeAlias = tuple[bytes, AttributeChanges]
"""What is appended, and the values after it."""

AttributeDecision: TypeAlias = Sequence[AttributeUpdate] | Callable[[SegmentMetadata], JudgedAppend]
"""Updates to judge; or what judges by itself, in the stretch in which the operation is accepted, against the segment's
pending state: it gives the bytes (all that were submitted, or fewer) and the values after the operation, or raises why
not (UnknownAttributesError: not yet)."""

# An attribute of an Enum costs as much as a call.
_NONE = AttributeUpdateType.NONE
_REPLACE = AttributeUpdateType.REPLACE
_REPLACE_IF_GREATER = AttributeUpdateType.REPLACE_IF_GREATER
_ACCUMULATE = AttributeUpdateType.ACCUMULATE
_REPLACE_IF_EQUALS = AttributeUpdateType.REPLACE_IF_EQUALS

_NUMBER_MIN, _NUMBER_MAX = -(1 << 63), (1 << 63) - 1


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


def judge_updates(
    table: AttributeTable, name: str, updates: Sequence[AttributeUpdate]
) -> list[tuple[AttributeKey, AttributeValue | None]]:
    """The values after the updates, in their order; later updates of a key see earlier ones.

    Raises BadAttributeUpdateError if a condition does not hold, UnknownAttributesError if a value is not in memory.
    """
    if len(updates) == 1:
        update = updates[0]
        if not table.is_known(update.key):
            raise UnknownAttributesError([update.key])
        return [(update.key, _judge(name, update, table.pending_value(update.key)))]
    unknown = [update.key for update in updates if not table.is_known(update.key)]
    if unknown:
        raise UnknownAttributesError(unknown)
    changes: dict[AttributeKey, AttributeValue | None] = {}
    for update in updates:
        key = update.key
        current = changes[key] if key in changes else table.pending_value(key)
        changes[key] = _judge(name, update, current)
    return list(changes.items())


def _judge(
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
