"""Items in order of their start offset: a balanced binary search tree (AVL tree).

What every node keeps is the height of its subtree. An insertion or removal walks down from the top, remembers its way,
and goes back up that way as far as heights change, rotating where one side became two higher than the other. Nothing
recurses, and no node knows its parent: without reference cycles, what is removed is freed at once.

Bytes come in at the end of a segment and most reads are there too, so the last node is known: to find the last item,
no step down the tree is needed.

Invariants (check()):
- offsets strictly grow from left to right;
- a node's height is one more than that of its higher side, and its sides differ by one at most: n items stand at most
  1.44 log2(n) deep;
- `len()` is the number of nodes, and the last node is the rightmost one.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")


class AvlNode(Generic[Item]):
    """One item under its start offset, and what starts before and behind it."""

    __slots__ = ("height", "item", "left", "offset", "right")

    def __init__(self, offset: int, item: Item) -> None:
        self.offset = offset
        self.item = item
        self.left: AvlNode[Item] | None = None
        self.right: AvlNode[Item] | None = None
        self.height = 1


class AvlIndex(Generic[Item]):
    """Start offset -> item. Search, insert and remove are O(log n), finding the last item is O(1)."""

    __slots__ = ("_count", "_last", "_top")

    def __init__(self) -> None:
        self._top: AvlNode[Item] | None = None
        self._last: AvlNode[Item] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        """In offset order. The index must not change meanwhile."""
        return (node.item for node in self._nodes())

    def floor(self, offset: int) -> Item | None:
        """The last item that starts at or below `offset`."""
        last = self._last
        if last is None:
            return None
        if last.offset <= offset:
            return last.item
        found: AvlNode[Item] | None = None
        node = self._top
        while node is not None:
            if node.offset <= offset:
                found = node
                node = node.right
            else:
                node = node.left
        return None if found is None else found.item

    def ceiling(self, offset: int) -> Item | None:
        """The first item that starts at or above `offset`."""
        last = self._last
        if last is None or last.offset < offset:
            return None
        found: AvlNode[Item] = last
        node = self._top
        while node is not None:
            if node.offset >= offset:
                found = node
                node = node.left
            else:
                node = node.right
        return found.item

    def insert(self, offset: int, item: Item) -> None:
        """Add an item where none starts."""
        added = AvlNode(offset, item)
        last = self._last
        if last is None or last.offset < offset:
            self._last = added
        path: list[AvlNode[Item]] = []
        node = self._top
        while node is not None:
            path.append(node)
            if offset < node.offset:
                node = node.left
            else:
                assert offset != node.offset, f"two items start at {offset}"
                node = node.right
        self._count += 1
        if not path:
            self._top = added
            return
        if offset < path[-1].offset:
            path[-1].left = added
        else:
            path[-1].right = added
        self._rebalance(path)

    def remove(self, offset: int) -> Item:
        """Take out the item that starts exactly at `offset`. Raises KeyError if there is none."""
        path: list[AvlNode[Item]] = []
        node = self._top
        while node is not None and node.offset != offset:
            path.append(node)
            node = node.left if offset < node.offset else node.right
        if node is None:
            raise KeyError(offset)
        item = node.item
        if node is self._last:
            # Nothing is behind it, and what is before it is a leaf or nothing.
            self._last = node.left or (path[-1] if path else None)
        gone = node
        if node.left is not None and node.right is not None:
            # The next one takes its place; that has nothing before it.
            path.append(node)
            gone = node.right
            while gone.left is not None:
                path.append(gone)
                gone = gone.left
            node.offset, node.item = gone.offset, gone.item
            if gone is self._last:
                self._last = node
        self._count -= 1
        self._replace(path, gone, gone.right if gone.left is None else gone.left)
        self._rebalance(path)
        return item

    def remove_first(self, count: int) -> None:
        """Take out the `count` items with the smallest offsets; O(count), balanced again in O(log n)."""
        if not count:
            return
        self._count -= count
        rest = next(islice(self._nodes(), count, None), None)
        # The way down to the first that stays: where it turns left, the node and its right side stay.
        staying: list[AvlNode[Item]] = []
        node = self._top if rest is not None else None
        while node is not None and rest is not None:
            if node.offset < rest.offset:
                node = node.right
            else:
                staying.append(node)
                node = node.left
        self._top = None
        while staying:
            self._join(staying.pop())
        if self._top is None:
            self._last = None

    def _join(self, node: AvlNode[Item]) -> None:
        """Put `node` and its right side behind all others; the tree is at most one higher than that side."""
        path: list[AvlNode[Item]] = []
        behind = node.right
        while behind is not None and behind.height > _height(self._top) + 1:
            path.append(behind)
            behind = behind.left
        node.left, node.right = self._top, behind
        node.height = 1 + max(_height(node.left), _height(behind))
        if path:
            self._top = path[0]
            path[-1].left = node
            self._rebalance(path)
        else:
            self._top = node

    def _replace(
        self, path: list[AvlNode[Item]], node: AvlNode[Item], other: AvlNode[Item] | None
    ) -> None:
        """Put another node, or none, where `node` stands: below the end of `path`."""
        if not path:
            self._top = other
        elif path[-1].left is node:
            path[-1].left = other
        else:
            path[-1].right = other

    def _rebalance(self, path: list[AvlNode[Item]]) -> None:
        """Mend heights and balance from the end of `path` upwards, until a subtree is as high as it was."""
        while path:
            node = path.pop()
            left, right = node.left, node.right
            left_height = 0 if left is None else left.height
            right_height = 0 if right is None else right.height
            before = node.height
            if left is not None and left_height > right_height + 1:
                if _height(left.left) < _height(left.right):
                    node.left = _rotated_left(left)
                top = _rotated_right(node)
            elif right is not None and right_height > left_height + 1:
                if _height(right.right) < _height(right.left):
                    node.right = _rotated_right(right)
                top = _rotated_left(node)
            else:
                height = 1 + max(left_height, right_height)
                if height == before:
                    return
                node.height = height
                continue
            self._replace(path, node, top)
            if top.height == before:
                return

    def _nodes(self) -> Iterator[AvlNode[Item]]:
        """In offset order."""
        ahead: list[AvlNode[Item]] = []
        node = self._top
        while node is not None or ahead:
            while node is not None:
                ahead.append(node)
                node = node.left
            following = ahead.pop()
            yield following
            node = following.right

    def check(self) -> None:
        """Prove the invariants; O(n)."""
        count = 0
        before: AvlNode[Item] | None = None
        for node in self._nodes():
            count += 1
            assert count <= self._count, f"more than {self._count} nodes"
            assert before is None or before.offset < node.offset, f"{node.offset} is out of order"
            left_height, right_height = _height(node.left), _height(node.right)
            assert node.height == 1 + max(left_height, right_height), f"height at {node.offset}"
            assert abs(left_height - right_height) <= 1, f"out of balance at {node.offset}"
            before = node
        assert count == self._count, f"{count} nodes, counted {self._count}"
        assert before is self._last, "the last node is another one"


def _height(node: AvlNode[Item] | None) -> int:
    return 0 if node is None else node.height


def _rotated_left(node: AvlNode[Item]) -> AvlNode[Item]:
    """The right child takes the place of `node`, which becomes its left one."""
    top = node.right
    assert top is not None, f"nothing to rotate at {node.offset}"
    node.right = top.left
    top.left = node
    node.height = 1 + max(_height(node.left), _height(node.right))
    top.height = 1 + max(node.height, _height(top.right))
    return top


def _rotated_right(node: AvlNode[Item]) -> AvlNode[Item]:
    """The left child takes the place of `node`, which becomes its right one."""
    top = node.left
    assert top is not None, f"nothing to rotate at {node.offset}"
    node.left = top.right
    top.right = node
    node.height = 1 + max(_height(node.left), _height(node.right))
    top.height = 1 + max(_height(top.left), node.height)
    return top
