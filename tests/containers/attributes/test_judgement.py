"""What attribute updates come to, against known, absent and unknown values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.attributes.attribute_updates import (
    UnknownAttributesError,
    evaluate_updates,
    validate_updates,
)
from containers.metadata.attribute_table import AttributeTable
from segmentstore.contracts.errors import BadAttributeUpdateError, InvalidRequestError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    SequenceNumber,
)
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType

KEY = AttributeKey(b"writer")
T = AttributeUpdateType


def table(value: AttributeValue | None = None) -> AttributeTable:
    made = AttributeTable(complete=True)
    if value is not None:
        made.commit([(KEY, value)], SequenceNumber(1))
    return made


@pytest.mark.parametrize(
    ("current", "update", "expected"),
    [
        (None, AttributeUpdate(KEY, 5), 5),
        (4, AttributeUpdate(KEY, 5), 5),
        (4, AttributeUpdate(KEY, None), None),
        (4, AttributeUpdate(KEY, b"bytes"), b"bytes"),
        (None, AttributeUpdate(KEY, 5, T.NONE), 5),
        (None, AttributeUpdate(KEY, 5, T.REPLACE_IF_GREATER), 5),
        (4, AttributeUpdate(KEY, 5, T.REPLACE_IF_GREATER), 5),
        (None, AttributeUpdate(KEY, -5, T.ACCUMULATE), -5),
        (4, AttributeUpdate(KEY, 5, T.ACCUMULATE), 9),
        (4, AttributeUpdate(KEY, 5, T.REPLACE_IF_EQUALS, comparison=4), 5),
        (None, AttributeUpdate(KEY, 5, T.REPLACE_IF_EQUALS), 5),
        (b"a", AttributeUpdate(KEY, b"b", T.REPLACE_IF_EQUALS, comparison=b"a"), b"b"),
    ],
)
def test_an_update_whose_condition_holds_gives_its_absolute_result(
    current: AttributeValue | None, update: AttributeUpdate, expected: AttributeValue | None
) -> None:
    assert evaluate_updates(table(current), "s", [update]) == [(KEY, expected)]


@pytest.mark.parametrize(
    ("current", "update"),
    [
        (4, AttributeUpdate(KEY, 5, T.NONE)),
        (5, AttributeUpdate(KEY, 5, T.REPLACE_IF_GREATER)),
        (6, AttributeUpdate(KEY, 5, T.REPLACE_IF_GREATER)),
        (b"x", AttributeUpdate(KEY, 5, T.REPLACE_IF_GREATER)),
        (b"x", AttributeUpdate(KEY, 5, T.ACCUMULATE)),
        ((1 << 63) - 1, AttributeUpdate(KEY, 1, T.ACCUMULATE)),
        (4, AttributeUpdate(KEY, 5, T.REPLACE_IF_EQUALS, comparison=3)),
        (None, AttributeUpdate(KEY, 5, T.REPLACE_IF_EQUALS, comparison=3)),
        (4, AttributeUpdate(KEY, 5, T.REPLACE_IF_EQUALS)),
    ],
)
def test_an_update_whose_condition_fails_is_refused_and_changes_nothing(
    current: AttributeValue | None, update: AttributeUpdate
) -> None:
    before = table(current)
    with pytest.raises(BadAttributeUpdateError) as refusal:
        evaluate_updates(before, "s", [update])
    assert refusal.value.current == current
    assert before.committed_value(KEY) == current


def test_later_updates_of_a_batch_see_earlier_ones() -> None:
    updates = [AttributeUpdate(KEY, 5), AttributeUpdate(KEY, 2, T.ACCUMULATE)]
    assert evaluate_updates(table(1), "s", updates) == [(KEY, 7)]


def test_pending_values_count_not_committed_ones() -> None:
    both = table(1)
    both.accept([(KEY, 10)], SequenceNumber(3))
    with pytest.raises(BadAttributeUpdateError):
        evaluate_updates(both, "s", [AttributeUpdate(KEY, 5, T.REPLACE_IF_GREATER)])


def test_h26_an_unknown_value_is_neither_accepted_nor_refused() -> None:
    incomplete = AttributeTable(complete=False)
    with pytest.raises(UnknownAttributesError) as unknown:
        evaluate_updates(incomplete, "s", [AttributeUpdate(KEY, 5, T.NONE)])
    assert unknown.value.keys == [KEY]


def test_h26_a_value_that_was_fetched_and_not_found_is_known_to_be_absent() -> None:
    incomplete = AttributeTable(complete=False)
    incomplete.learn([KEY], {})
    assert evaluate_updates(incomplete, "s", [AttributeUpdate(KEY, 5, T.NONE)]) == [(KEY, 5)]


def test_h26_a_fetched_value_never_replaces_a_newer_one() -> None:
    incomplete = AttributeTable(complete=False)
    incomplete.commit([(KEY, 9)], SequenceNumber(1))
    incomplete.learn([KEY], {KEY: 3})
    assert incomplete.committed_value(KEY) == 9


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9)), max_size=30))
def test_pending_is_empty_once_everything_has_committed(
    steps: list[tuple[int, int | None]],
) -> None:
    both = table()
    changes = [
        (SequenceNumber(n), [(AttributeKey(bytes([key])), value)])
        for n, (key, value) in enumerate(steps, start=1)
    ]
    for number, change in changes:
        both.accept(change, number)
    expected = {key: both.pending_value(key) for _, change in changes for key, _ in change}
    for number, change in changes:
        both.commit(change, number)
    assert not both.pending
    assert {key: both.committed_value(key) for key in expected} == expected


@pytest.mark.parametrize(
    "update",
    [
        AttributeUpdate(AttributeKey(b""), 1),
        AttributeUpdate(AttributeKey(b"x" * 256), 1),
        AttributeUpdate(KEY, 1 << 63),
        AttributeUpdate(KEY, b"x" * 1025),
        AttributeUpdate(KEY, 1, T.REPLACE_IF_EQUALS, comparison=-(1 << 63) - 1),
    ],
)
def test_what_can_never_be_stored_is_refused_in_words(update: AttributeUpdate) -> None:
    with pytest.raises(InvalidRequestError):
        validate_updates([update])
