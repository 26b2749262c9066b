"""What attribute updates come to in a reference store."""

from collections.abc import Sequence
from typing import Any

from segmentstore.contracts.errors import BadAttributeUpdateError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.sim.reference_state import SegmentState


def judge(
    state: SegmentState, updates: Sequence[AttributeUpdate], *, heedless: bool
) -> dict[AttributeKey, AttributeValue | None]:
    """Values after the updates; `heedless` takes no condition seriously. Raises BadAttributeUpdateError."""
    values: dict[AttributeKey, AttributeValue | None] = {}
    for update in updates:
        now = values.get(update.key, state.attributes.get(update.key))
        match update.type:
            case AttributeUpdateType.NONE:
                fits = now is None
            case AttributeUpdateType.REPLACE_IF_GREATER:
                fits = now is None or _number(update.value) > _number(now)
            case AttributeUpdateType.REPLACE_IF_EQUALS:
                fits = now == update.comparison
            case _:
                fits = True
        if not fits and not heedless:
            raise BadAttributeUpdateError(state.name, key=update.key, current=now)
        adds = update.type is AttributeUpdateType.ACCUMULATE
        values[update.key] = _number(now) + _number(update.value) if adds else update.value
    return values


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
