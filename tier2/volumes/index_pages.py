"""Reads LMDB's file page by page, and believes no page that it has not looked through: LMDB itself looks at nothing.

LMDB finds a row by a few comparisons on its way down; a flipped bit in what it compares leads it past the row, and it
says that there is none. Here all of a page has to fit before anything is taken from it. Rows have checksums of their
own (index_database.py), so this is about all bytes that are not rows.

# The file, little-endian (LMDB 0.9, format 1)

    pages of one size; pages 0 and 1 are the meta pages of the last two transactions, page number & 1
    page        u64 its own number, u16, u16 flags, u16 end of the places of its nodes, u16 start of the nodes
                then u16 for each node: its place, in the order of the keys; the nodes fill the page up to its end
                or, of an overflow page: u64, u16, u16, u32 number of pages, then the bytes of one value
    leaf node   u32 length of the value, u16 flags, u16 length of the key, key, value, to an even length;
                flag 1: in the place of the value the u64 number of the overflow page that has it
    branch node 6 bytes number of the child, u16 length of the key, key, to an even length; keys of the child are not
                less; the key of the first node counts for nothing
    meta page   from byte 16 on: u32 magic, u32 format, u64, u64, the tree of free pages, the tree of rows,
                u64 highest page, u64 transaction
    tree        u32 (the first: bytes of a page), u16 flags, u16 depth, u64 branch pages, u64 leaf pages,
                u64 overflow pages, u64 rows, u64 root (all ones: none)
    free pages  rows: u64 transaction -> u64 count, then so many u64 numbers

# What has to hold

- P1  A page says its own number and the kind that its depth asks for; places, lengths and gaps of its nodes add up to
      the whole page, and its keys ascend strictly.
- P2  Keys of a page lie between the keys that led to it.
- P3  No page that is reached is free: it would be an older state of the one that was meant.
- P4  Whole file: the pages and rows of a tree are as many as it says, and no page is reached twice.

One flipped bit breaks one of them, wherever it is outside of a row's bytes. `find` and `scan` look at P1 to P3 on their
way, at P3 only while the lists of free pages are short; `check` looks at everything.

Blocking; any number of threads. While pages are read a transaction of LMDB has to be open that keeps them.
"""

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import ge, itemgetter
from typing import Any, TypeAlias
from weakref import finalize

from segmentstore.contracts.errors import CorruptedDataError, StorageError

_PAGE_LAYOUT = struct.Struct("<QHHHH")
_OVERFLOW_LAYOUT = struct.Struct("<QHHI")
_NODE_LAYOUT = struct.Struct("<HHHH")
_META_LAYOUT = struct.Struct("<QHHI IIQQ IHHQQQQQ IHHQQQQQ QQ".replace(" ", ""))
_NUMBER_LAYOUT = struct.Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG_VALUE = 1
_MAGIC, _FORMAT = 0xBEEFC0DE, 1
_NO_PAGE = (1 << 64) - 1
_META_PAGES = 2
_FREE_TREE_FLAGS, _ROW_TREE_FLAGS = 8, 0
_PAGE_BYTES_MIN, _PAGE_BYTES_MAX = 512, 1 << 16
_STATE_LOOKS_MAX = 100
_DEPTH_MAX = 32
_FREE_LIST_PAGES_MAX = 64
"""Up to some 30,000 free pages, a few milliseconds for each transaction behind which something is not found."""

StoredRow: TypeAlias = tuple[bytes, bytes]
_Node: TypeAlias = tuple[bytes, int, int]
"""Key; of a branch the child and 0, of a leaf the place of the value and its length (negative: a number is there)."""
_Turn: TypeAlias = tuple[list[_Node], int, bytes | None, bytes | None]
"""A branch page on the way to a leaf: its nodes, which one was taken, and what the keys of all are between."""


@dataclass(frozen=True, slots=True)
class _Tree:
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    rows: int
    root: int


@dataclass(frozen=True, slots=True)
class IndexState:
    """What one transaction left: its number, its highest page and its trees."""

    transaction: int
    page_bytes: int
    highest_page: int
    free: _Tree
    rows: _Tree


@dataclass(slots=True)
class _Count:
    """What was seen of a tree."""

    branch_pages: int = 0
    leaf_pages: int = 0
    overflow_pages: int = 0
    rows: int = 0


@dataclass(slots=True)
class _Seen:
    """One check of the whole file."""

    pages: set[int] = field(default_factory=set)
    count: _Count = field(default_factory=_Count)

    def note(self, first: int, count: int = 1) -> None:
        for number in range(first, first + count):
            if number in self.pages:
                raise damaged(f"page {number} is reached twice")
            self.pages.add(number)


def damaged(what: str) -> CorruptedDataError:
    """The error of a page or row that does not fit."""
    return CorruptedDataError(f"the index of the volumes is damaged: {what}")


def _bytes_in_order(key: bytes) -> bytes:
    return key


def _number_in_order(key: bytes) -> int:
    if len(key) != _NUMBER_LAYOUT.size:
        raise damaged("a list of free pages has no number")
    number: int = _NUMBER_LAYOUT.unpack(key)[0]
    return number


class IndexPages:
    """The pages of one file."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._free: tuple[int, frozenset[int]] = -1, frozenset()
        """The last transaction whose free pages were asked for, and these."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._closing = finalize(self, os.close, self._descriptor)

    def close(self) -> None:
        """Nothing is read any more. Idempotent."""
        self._closing()

    def state_of(self, transaction: int) -> IndexState | None:
        """What the transaction left that a reader looks at; None if two more were committed meanwhile.

        Raises CorruptedDataError, OSError; StorageError for a format that is not known here.
        """
        found, again = self._metas(), self._metas()
        for _ in range(_STATE_LOOKS_MAX):
            if found == again:
                break
            # One of them is written at this moment.
            found, again = again, self._metas()
        return next((state for state in found if state.transaction == transaction), None)

    def _metas(self) -> list[IndexState]:
        return [self._meta(number) for number in range(_META_PAGES)]

    def _meta(self, number: int) -> IndexState:
        # The first page has the length of all.
        position = 0
        if number:
            position = self._meta(0).page_bytes
        content = os.pread(self._descriptor, _META_LAYOUT.size, position)
        if len(content) < _META_LAYOUT.size:
            raise damaged("it has no meta page")
        fields = _META_LAYOUT.unpack(content)
        if fields[4] != _MAGIC:
            raise damaged(f"meta page {number} is none")
        if fields[5] != _FORMAT:
            raise StorageError(f"LMDB's file has another format format={fields[5]}")
        page_bytes = fields[8]
        if page_bytes & (page_bytes - 1) or not _PAGE_BYTES_MIN <= page_bytes <= _PAGE_BYTES_MAX:
            raise damaged(f"pages of {page_bytes} bytes")
        highest, transaction = fields[24], fields[25]
        return IndexState(
            transaction, page_bytes, highest, _Tree(*fields[9:16]), _Tree(*fields[17:24])
        )

    # --- rows ------------------------------------------------------------------------------------

    def find(
        self, state: IndexState, key: bytes, check_row: Callable[[bytes, bytes], object]
    ) -> bytes | None:
        """The value of a key; None if it is certain that there is none. Raises CorruptedDataError, OSError.

        A key in which a bit flipped is still between its neighbours, or P1 or P2 is broken: so `check_row` is called
        with the rows between which the key would be. A bit that flipped in a key on the way leads to the leaf beside
        the right one, which breaks P2 then: so that one is looked through where the key would be at the edge of its
        leaf.
        """
        if state.rows.root == _NO_PAGE:
            return None
        free, path = self._free_after(state), list[_Turn]()
        content, nodes = self._leaf(state, free, state.rows.root, key, None, None, path)
        behind = bisect_left(nodes, key, key=itemgetter(0))
        for found, place, length in nodes[max(0, behind - 1) : behind + 1]:
            value = self._value(state, content, place, length, None)
            if found == key:
                return value
            check_row(found, value)
        if behind == len(nodes):
            self._look_beside(state, free, path, 1)
        if behind == 0:
            self._look_beside(state, free, path, -1)
        return None

    def _leaf(
        self,
        state: IndexState,
        free: frozenset[int],
        number: int,
        key: bytes | None,
        low: bytes | None,
        high: bytes | None,
        path: list[_Turn],
    ) -> tuple[bytes, list[_Node]]:
        """Of a key, or the first one (empty), or the last (None). `path` gets the branches on the way there."""
        while True:
            is_leaf = len(path) + 1 >= state.rows.depth
            content = self._page(state, number, free)
            nodes = _nodes_of(content, number, _LEAF if is_leaf else _BRANCH)
            _require_order(nodes, number, low, high, is_leaf=is_leaf)
            if is_leaf:
                return content, nodes
            chosen = len(nodes) - 1
            if key is not None:
                chosen = bisect_right(nodes, key, lo=1, key=itemgetter(0)) - 1
            path.append((nodes, chosen, low, high))
            number = nodes[chosen][1]
            low, high = _bounds_of(nodes, chosen, low, high)

    def _look_beside(
        self, state: IndexState, free: frozenset[int], path: list[_Turn], by: int
    ) -> None:
        """The leaf before or behind the one that a path leads to has to lie between the keys that lead there."""
        for depth in range(len(path) - 1, -1, -1):
            nodes, chosen, low, high = path[depth]
            beside = chosen + by
            if 0 <= beside < len(nodes):
                edge = b"" if by > 0 else None
                bounds = _bounds_of(nodes, beside, low, high)
                # What stands in its path stands for its depth alone.
                self._leaf(state, free, nodes[beside][1], edge, *bounds, path[: depth + 1])
                return

    def scan(
        self, state: IndexState, first: bytes, check_row: Callable[[bytes, bytes], object]
    ) -> Iterator[StoredRow]:
        """Rows from a key on, in the order of the stored keys. Raises CorruptedDataError, OSError."""
        if state.rows.root == _NO_PAGE:
            return
        # That nothing stands before the first of them that should be among them.
        self.find(state, first, check_row)
        free = self._free_after(state)
        yield from self._scan(state, free, state.rows.root, 1, None, None, first)

    def _free_after(self, state: IndexState) -> frozenset[int]:
        """The free pages; none of them if they are many."""
        transaction, free = self._free
        if transaction != state.transaction:
            tree = state.free
            if tree.leaf_pages + tree.overflow_pages > _FREE_LIST_PAGES_MAX:
                free = frozenset()
            else:
                free = frozenset(self._free_pages(state))
            self._free = state.transaction, free
        return free

    def _free_pages(self, state: IndexState) -> Iterator[int]:
        for _, value in self._checked_rows(state, state.free, _Seen(), _number_in_order):
            yield from _free_pages_of(value, state.highest_page)

    def _scan(
        self,
        state: IndexState,
        free: frozenset[int],
        number: int,
        depth: int,
        low: bytes | None,
        high: bytes | None,
        first: bytes,
    ) -> Iterator[StoredRow]:
        is_leaf = depth >= state.rows.depth
        content = self._page(state, number, free)
        nodes = _nodes_of(content, number, _LEAF if is_leaf else _BRANCH)
        _require_order(nodes, number, low, high, is_leaf=is_leaf)
        if is_leaf:
            for key, place, length in nodes[bisect_left(nodes, first, key=itemgetter(0)) :]:
                yield key, self._value(state, content, place, length, None)
            return
        for chosen in range(bisect_right(nodes, first, lo=1, key=itemgetter(0)) - 1, len(nodes)):
            lowest, following = _bounds_of(nodes, chosen, low, high)
            yield from self._scan(
                state, free, nodes[chosen][1], depth + 1, lowest, following, first
            )

    # --- the whole file --------------------------------------------------------------------------

    def check(
        self, state: IndexState, check_row: Callable[[bytes, bytes], object]
    ) -> AbstractSet[int]:
        """Everything that has to hold (P1 to P4), and each row by a call; the pages in use.

        Raises CorruptedDataError, OSError.
        """
        if state.rows.flags != _ROW_TREE_FLAGS or state.free.flags != _FREE_TREE_FLAGS:
            raise damaged("its trees have other flags")
        seen = _Seen()
        for key, value in self._checked_rows(state, state.rows, seen, _bytes_in_order):
            check_row(key, value)
        free: set[int] = set()
        seen.count = _Count()
        for _, value in self._checked_rows(state, state.free, seen, _number_in_order):
            free.update(_free_pages_of(value, state.highest_page))
        both = free & seen.pages
        if both:
            raise damaged(f"page {min(both)} is in use, and free")
        return seen.pages

    def are_free(self, state: IndexState, first: int) -> bool:
        """Whether no page from that one on is in use. Raises CorruptedDataError, OSError."""
        free = {number for number in self._free_pages(state) if number >= first}
        return len(free) == state.highest_page + 1 - first

    def _checked_rows(
        self,
        state: IndexState,
        tree: _Tree,
        seen: _Seen,
        order: Callable[[bytes], bytes | int],
    ) -> Iterator[StoredRow]:
        if tree.root != _NO_PAGE:
            if not 1 <= tree.depth <= _DEPTH_MAX:
                raise damaged(f"a tree of depth {tree.depth}")
            yield from self._checked_page(state, tree, tree.root, 1, None, None, seen, order)
        count = seen.count
        found = count.branch_pages, count.leaf_pages, count.overflow_pages, count.rows
        says = tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.rows
        if found != says:
            raise damaged(f"a tree has {found} pages and rows and says {says}")

    def _checked_page(
        self,
        state: IndexState,
        tree: _Tree,
        number: int,
        depth: int,
        low: bytes | None,
        high: bytes | None,
        seen: _Seen,
        order: Callable[[bytes], bytes | int],
    ) -> Iterator[StoredRow]:
        is_leaf = depth == tree.depth
        seen.note(number)
        content = self._page(state, number)
        nodes = _nodes_of(content, number, _LEAF if is_leaf else _BRANCH)
        _require_order(nodes, number, low, high, is_leaf=is_leaf, order=order)
        if is_leaf:
            seen.count.leaf_pages += 1
            seen.count.rows += len(nodes)
            for key, place, length in nodes:
                yield key, self._value(state, content, place, length, seen)
            return
        seen.count.branch_pages += 1
        for index, (_, child, _) in enumerate(nodes):
            bounds = _bounds_of(nodes, index, low, high)
            yield from self._checked_page(state, tree, child, depth + 1, *bounds, seen, order)

    # --- pages -----------------------------------------------------------------------------------

    def _page(self, state: IndexState, number: int, free: frozenset[int] = frozenset()) -> bytes:
        if number in free:
            raise damaged(f"page {number} is in use, and free")
        if not _META_PAGES <= number <= state.highest_page:
            raise damaged(f"page {number} of {state.highest_page} is named")
        content = os.pread(self._descriptor, state.page_bytes, number * state.page_bytes)
        if len(content) < state.page_bytes:
            raise damaged(f"page {number} is cut off")
        return content

    def _value(
        self, state: IndexState, content: bytes, place: int, length: int, seen: _Seen | None
    ) -> bytes:
        if length >= 0:
            return content[place : place + length]
        number: int = _NUMBER_LAYOUT.unpack_from(content, place)[0]
        length = -length
        header = _OVERFLOW_LAYOUT.size
        pages = -(-(header + length) // state.page_bytes)
        if not _META_PAGES <= number <= number + pages - 1 <= state.highest_page:
            raise damaged(f"pages {number} and {pages - 1} more of {state.highest_page} are named")
        found = os.pread(self._descriptor, header + length, number * state.page_bytes)
        if len(found) < header + length:
            raise damaged(f"page {number} is cut off")
        its_number, _, flags, its_pages = _OVERFLOW_LAYOUT.unpack_from(found)
        if its_number != number or flags != _OVERFLOW or its_pages < pages:
            raise damaged(f"page {number} is another one")
        if seen is not None:
            seen.count.overflow_pages += its_pages
            seen.note(number, its_pages)
        return found[header:]


def _bounds_of(
    nodes: list[_Node], index: int, low: bytes | None, high: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Of the keys of a child, if those of its branch are from `low` on, below `high`."""
    return (
        nodes[index][0] if index else low,
        nodes[index + 1][0] if index + 1 < len(nodes) else high,
    )


def _nodes_of(content: bytes, number: int, kind: int) -> list[_Node]:
    """In the order of their places. Raises CorruptedDataError if the page does not add up (P1)."""
    page_bytes = len(content)
    its_number, _, flags, lower, upper = _PAGE_LAYOUT.unpack_from(content)
    header = _PAGE_LAYOUT.size
    if its_number != number or flags != kind:
        raise damaged(f"page {number} is another one number={its_number} flags={flags}")
    if lower & 1 or not header < lower <= upper <= page_bytes:
        raise damaged(f"page {number} does not add up {lower=} {upper=}")
    places = struct.unpack_from(f"<{(lower - header) // 2}H", content, header)
    nodes: list[_Node] = []
    ends: set[int] = set()
    fields_of, is_leaf = _NODE_LAYOUT.unpack_from, kind == _LEAF
    for place in places:
        if place & 1 or not upper <= place <= page_bytes - _NODE_LAYOUT.size:
            raise damaged(f"page {number} has a node at {place}")
        low, middle, high, key_length = fields_of(content, place)
        start = place + _NODE_LAYOUT.size
        end = value = start + key_length
        if is_leaf:
            length = low | middle << 16
            if high == _BIG_VALUE:
                end += _NUMBER_LAYOUT.size
                length = -length
            elif high:
                raise damaged(f"page {number} has a node of another kind flags={high}")
            else:
                end += length
            nodes.append((content[start:value], value, length))
        else:
            nodes.append((content[start:end], low | middle << 16 | high << 32, 0))
        end += end & 1
        if end > page_bytes:
            raise damaged(f"page {number} has a node that ends at {end}")
        ends.add(end)
    starts = set(places)
    # Each begins where another one ends, but for the first, and each place is another: no gap, and no two overlap.
    if len(starts) != len(places) or starts ^ ends != {upper, page_bytes}:
        raise damaged(f"the nodes of page {number} do not fill it")
    return nodes


def _require_order(
    nodes: list[_Node],
    number: int,
    low: bytes | None,
    high: bytes | None,
    *,
    is_leaf: bool,
    order: Callable[[bytes], bytes | int] = _bytes_in_order,
) -> None:
    """Raises CorruptedDataError unless the keys ascend (P1), from `low` on, below `high` (P2)."""
    keys: list[Any] = [order(node[0]) for node in nodes[not is_leaf :]]
    if not keys:
        return
    if (low is not None and keys[0] < order(low)) or (high is not None and keys[-1] >= order(high)):
        raise damaged(f"page {number} has keys of another one")
    if any(map(ge, keys, keys[1:])):
        raise damaged(f"the keys of page {number} are in no order")


def _free_pages_of(value: bytes, highest_page: int) -> Sequence[int]:
    if len(value) < _NUMBER_LAYOUT.size:
        raise damaged("a list of free pages is cut off")
    count: int = _NUMBER_LAYOUT.unpack_from(value)[0]
    if (count + 1) * _NUMBER_LAYOUT.size > len(value):
        raise damaged(f"a list of free pages is cut off {count=}")
    numbers: tuple[int, ...] = struct.unpack_from(f"<{count}Q", value, _NUMBER_LAYOUT.size)
    if count and not _META_PAGES <= min(numbers) <= max(numbers) <= highest_page:
        raise damaged(f"pages up to {max(numbers)} of {highest_page} are free")
    return numbers
