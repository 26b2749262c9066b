"""Blocks of ranges that were placed before, for a process that is asked about the same stream again and again.

Reading indexes and making values of their entries is most of what a plan costs, and between two looks at a stream its
root has often not changed.

Invariants:

- A version of a root says what its container holds for ever, so what was found below one is true of that one: a root
  with another version, or another attempt's nonce, is asked anew.
- So many blocks are kept at most; the ranges that were not asked for longest go first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from segmentstore.spark.block_range import BlockPlace, SegmentRange
from tier2.storage.root import Root

BLOCKS_MAX: Final = 1 << 16
"""Some 20 MB: those of 64 GB in blocks of 1 MB."""

Found = tuple[Sequence[BlockPlace], int]
"""The blocks of a range, and where Tier 2 ends."""


class PlacedBlocks:
    """What RangePlacer found."""

    def __init__(self, *, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._found: OrderedDict[tuple[object, ...], Found] = OrderedDict()
        self._count = 0

    def get(self, root: Root, part: SegmentRange) -> Found | None:
        """What was found for the range below this root. O(1)."""
        key = _key(root, part)
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def keep(self, root: Root, part: SegmentRange, found: Found) -> None:
        """`found` is all that is below this root."""
        key = _key(root, part)
        if key in self._found or len(found[0]) > self._blocks_max:
            return
        self._found[key] = found
        self._count += len(found[0])
        while self._count > self._blocks_max:
            _, (blocks, _) = self._found.popitem(last=False)
            self._count -= len(blocks)


def _key(root: Root, part: SegmentRange) -> tuple[object, ...]:
    return root.store_id, root.container_id, root.version, root.nonce, part
