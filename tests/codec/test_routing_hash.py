import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.routing_hash import (
    attribute_id,
    event_position,
    range_index,
    table_position,
)


@pytest.mark.parametrize(
    ("key", "position"),
    [
        ("hello", 0.658716230571337),
        ("abcd", 0.008927558312435524),
        ("", 0.24117842791623523),
    ],
)
def test_routing_keys_fall_where_they_fall_in_pravega(key: str, position: float) -> None:
    assert event_position(key) == position


def test_table_keys_fall_where_they_fall_in_pravega() -> None:
    assert table_position("hello".encode("utf-16-le")) == 0.09721691117989018


def test_a_named_attribute_has_the_id_that_pravega_gives_it() -> None:
    assert attribute_id("RevisionStreamClientMark").hex() == "7df9a874246cc9d69397cdd19ead68c5"


@given(st.text())
def test_every_position_lies_in_the_key_space(key: str) -> None:
    assert 0 <= event_position(key) < 1
    assert 0 <= table_position(key.encode("utf-16-le", "surrogatepass")) < 1


@given(
    st.lists(st.floats(0.001, 0.999), unique=True, max_size=9).map(
        lambda found: [*sorted(found), 1.0]
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_the_range_of_a_position_holds_it(bounds: list[float], position: float) -> None:
    index = range_index(bounds, position)
    lower = bounds[index - 1] if index else 0.0
    assert lower <= position < bounds[index]


def test_bounds_are_exclusive_above_and_inclusive_below() -> None:
    assert range_index([0.5, 1.0], 0.5) == 1
    assert range_index([0.5, 1.0], 0.25) == 0


def test_rounding_at_the_very_end_falls_into_the_last_range() -> None:
    assert range_index([0.5, 0.9999999999999999], 0.9999999999999999) == 1
