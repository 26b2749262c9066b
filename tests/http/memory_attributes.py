"""What attribute updates come to, for the reference store."""

from collections.abc import Mapping, Sequence

from segmentstore.contracts.errors import BadAttributeUpdateError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType


def apply_updates(
    name: str,
    attributes: Mapping[AttributeKey, AttributeValue],
    updates: Sequence[AttributeUpdate],
) -> dict[AttributeKey, AttributeValue]:
    """The attributes behind the updates. Raises BadAttributeUpdateError."""
    after = dict(attributes)
    for update in updates:
        current = after.get(update.key)
        value = update.value
        refused = False
        match update.type:
            case AttributeUpdateType.NONE:
                refused = current is not None
            case AttributeUpdateType.REPLACE:
                pass
            case AttributeUpdateType.REPLACE_IF_GREATER:
                assert isinstance(value, int), f"not a number value={value!r}"
                refused = isinstance(current, int) and value <= current
            case AttributeUpdateType.ACCUMULATE:
                assert isinstance(value, int), f"not a number value={value!r}"
                refused = isinstance(current, bytes)
                value += current if isinstance(current, int) else 0
            case AttributeUpdateType.REPLACE_IF_EQUALS:
                refused = current != update.comparison
        if refused:
            raise BadAttributeUpdateError(name, key=update.key, current=current)
        if value is None:
            after.pop(update.key, None)
        else:
            after[update.key] = value
    return after
