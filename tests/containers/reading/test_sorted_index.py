"""The ordered index against a plain sorted list: the AVL tree, and the two lists that it is measured beside.

Goal: whatever is inserted and removed in whatever order, both find the same items as bisection in a sorted list, and
the tree stays in balance. Method: cases by hand, and hypothesis drives both through the same steps.
"""

from bisect import bisect_left, bisect_right, insort
from math import log2
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from containers.read_index.avl_index import AvlIndex
from tests.containers.reading.sorted_lists import SortedLists

Index = AvlIndex[str] | SortedLists[str]
KINDS = pytest.mark.parametrize("kind", [AvlIndex, SortedLists])


def filled(kind: type[Index], *offsets: int) -> Index:
    index = kind()
    for offset in offsets:
        index.insert(offset, str(offset))
        index.check()
    return index


def height(index: AvlIndex[str]) -> int:
    return 0 if index._top is None else index._top.height


@KINDS
def test_floor_and_ceiling_are_the_nearest_items_at_or_beside_an_offset(kind: type[Index]) -> None:
    index = filled(kind, 30, 10, 20)
    assert [index.floor(offset) for offset in (9, 10, 19, 20, 30, 99)] == [
        None,
        "10",
        "10",
        "20",
        "30",
        "30",
    ]
    assert [index.ceiling(offset) for offset in (0, 10, 11, 20, 30, 31)] == [
        "10",
        "10",
        "20",
        "20",
        "30",
        None,
    ]
    assert list(index) == ["10", "20", "30"]


@KINDS
def test_an_empty_index_finds_nothing(kind: type[Index]) -> None:
    index = filled(kind, 5)
    assert index.remove(5) == "5"
    index.check()
    assert (index.floor(9), index.ceiling(0), len(index)) == (None, None, 0)
    assert list(index) == []


@KINDS
def test_inserting_an_offset_twice_is_a_bug(kind: type[Index]) -> None:
    index = filled(kind, 5, 7)
    for offset in (5, 7):
        with pytest.raises(AssertionError):
            index.insert(offset, "again")
    assert list(index) == ["5", "7"]
    index.check()


@KINDS
def test_removing_what_is_not_in_raises_and_changes_nothing(kind: type[Index]) -> None:
    index = filled(kind, 5, 7)
    for offset in (4, 6, 8):
        with pytest.raises(KeyError):
            index.remove(offset)
    assert list(index) == ["5", "7"]
    index.check()


@KINDS
def test_items_that_come_at_the_end_leave_at_the_front(kind: type[Index]) -> None:
    index = filled(kind, *range(100))
    for offset in range(100, 400):
        index.insert(offset, str(offset))
        assert index.floor(offset + 5) == str(offset)
        assert index.ceiling(0) == str(offset - 100)
        assert index.remove(offset - 100) == str(offset - 100)
        index.check()
    assert list(index) == [str(offset) for offset in range(300, 400)]


@KINDS
def test_items_may_leave_at_the_end(kind: type[Index]) -> None:
    index = filled(kind, *range(50))
    for offset in reversed(range(50)):
        assert index.floor(1_000) == str(offset)
        assert index.remove(offset) == str(offset)
        index.check()
    assert len(index) == 0


@KINDS
def test_many_leave_at_the_front_at_once(kind: type[Index]) -> None:
    for size in range(40):
        for count in range(size + 1):
            index = filled(kind, *range(size))
            index.remove_first(count)
            index.check()
            assert list(index) == [str(offset) for offset in range(count, size)]
            assert index.floor(size) == (str(size - 1) if count < size else None)


@pytest.mark.parametrize("order", ["growing", "falling", "shuffled", "from both ends"])
def test_the_tree_is_as_low_as_an_avl_tree_must_be(order: str) -> None:
    offsets = list(range(1_000))
    if order == "falling":
        offsets.reverse()
    elif order == "shuffled":
        Random(4).shuffle(offsets)
    elif order == "from both ends":
        offsets = [
            offset for pair in zip(offsets, reversed(offsets), strict=True) for offset in pair
        ]
        offsets = offsets[:1_000]
    index: AvlIndex[str] = AvlIndex()
    for offset in offsets:
        index.insert(offset, str(offset))
    index.check()
    assert height(index) <= 1.4405 * log2(1_002)
    for offset in offsets[:900]:
        index.remove(offset)
    index.check()
    assert height(index) <= 1.4405 * log2(102)


def test_check_finds_what_is_wrong_with_a_tree() -> None:
    def tree() -> AvlIndex[str]:
        index: AvlIndex[str] = AvlIndex()
        for offset in range(7):
            index.insert(offset, str(offset))
        return index

    index = tree()
    assert index._top is not None
    index._top.offset = 6
    with pytest.raises(AssertionError, match="out of order"):
        index.check()
    index = tree()
    assert index._top is not None
    index._top.height += 1
    with pytest.raises(AssertionError, match="height"):
        index.check()
    index = tree()
    assert index._top is not None
    index._top.left = None
    index._top.height = 3
    index._count = 4
    with pytest.raises(AssertionError, match="balance"):
        index.check()
    index = tree()
    index._count = 8
    with pytest.raises(AssertionError, match="counted 8"):
        index.check()
    index = tree()
    index._last = index._top
    with pytest.raises(AssertionError, match="last node"):
        index.check()


OFFSETS = st.integers(0, 120)


class SortedIndexMachine(RuleBasedStateMachine):
    """Both indexes and the sorted list of their offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: AvlIndex[str] = AvlIndex()
        self.lists: SortedLists[str] = SortedLists()
        self.offsets: list[int] = []

    @rule(offset=OFFSETS)
    def insert(self, offset: int) -> None:
        if offset not in self.offsets:
            insort(self.offsets, offset)
            self.tree.insert(offset, str(offset))
            self.lists.insert(offset, str(offset))

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.insert(self.offsets[-1] + 1 if self.offsets else 0)

    @rule(offset=OFFSETS)
    def insert_the_other_way_round(self, offset: int) -> None:
        for lower in reversed(range(offset, offset + 8)):
            self.insert(lower)

    @precondition(lambda self: self.offsets)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.offsets))
        self.offsets.remove(offset)
        assert self.tree.remove(offset) == self.lists.remove(offset) == str(offset)

    @rule(share=st.floats(0, 1))
    def remove_first(self, share: float) -> None:
        count = int(share * len(self.offsets))
        self.tree.remove_first(count)
        self.lists.remove_first(count)
        del self.offsets[:count]

    @rule(count=st.integers(1, 20))
    def remove_one_by_one(self, count: int) -> None:
        for offset in self.offsets[:count]:
            assert self.tree.remove(offset) == self.lists.remove(offset) == str(offset)
        del self.offsets[:count]

    @rule(offset=OFFSETS)
    def find(self, offset: int) -> None:
        below = bisect_right(self.offsets, offset)
        floor = str(self.offsets[below - 1]) if below else None
        assert self.tree.floor(offset) == self.lists.floor(offset) == floor
        above = bisect_left(self.offsets, offset)
        ceiling = str(self.offsets[above]) if above < len(self.offsets) else None
        assert self.tree.ceiling(offset) == self.lists.ceiling(offset) == ceiling

    @invariant()
    def both_hold_the_same_items_in_order(self) -> None:
        self.tree.check()
        self.lists.check()
        items = [str(offset) for offset in self.offsets]
        assert list(self.tree) == list(self.lists) == items
        assert len(self.tree) == len(self.lists) == len(items)


TestSortedIndexesAgainstASortedList = pytest.mark.slow(SortedIndexMachine.TestCase)
TestSortedIndexesAgainstASortedList.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
