from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.read_index.sorted_index import SortedIndex


@given(st.sets(st.integers(0, 300), max_size=60), st.integers(0, 300), st.randoms())
def test_an_item_is_found_at_or_below_an_offset(
    offsets: set[int], wanted: int, random: Random
) -> None:
    index: SortedIndex[str] = SortedIndex()
    shuffled = sorted(offsets)
    random.shuffle(shuffled)
    for offset in shuffled:
        index.insert(offset, str(offset))
    index.check()
    below = [offset for offset in sorted(offsets) if offset <= wanted]
    position = index.position_at_or_below(wanted)
    assert position == len(below) - 1
    if below:
        assert index.items[position] == str(below[-1])
    for offset in shuffled[::2]:
        assert index.remove(offset) == str(offset)
    index.check()
    assert list(index.items) == [str(offset) for offset in sorted(shuffled[1::2])]


def test_appending_out_of_order_or_twice_is_a_bug() -> None:
    index: SortedIndex[str] = SortedIndex()
    index.append(5, "five")
    with pytest.raises(AssertionError):
        index.append(5, "again")
    with pytest.raises(AssertionError):
        index.append(4, "four")
    with pytest.raises(AssertionError):
        index.insert(5, "again")
    with pytest.raises(KeyError):
        index.remove(4)


def test_items_leave_at_the_front_in_order() -> None:
    index: SortedIndex[str] = SortedIndex()
    for offset in range(5):
        index.append(offset, str(offset))
    assert index.remove_first(2) == ["0", "1"]
    assert index.position_at_or_below(1) == -1
    assert index.items[0] == "2"
    index.check()
