"""Which parts of the cache's memory are taken: arithmetic on unit numbers, no memory of its own.

Memory comes in slabs of 256 units; a block is 2**order units, aligned to its own size inside its slab. A freed block
joins its buddy (the other half of the block both were split from) again and again, so that many freed small blocks
become big ones without any pass over memory.

Invariants (check()):
- taken and free blocks together cover every slab exactly once;
- two free buddies never exist side by side: they would have joined;
- `taken_units` is the sum of the taken blocks.
"""

UNITS_PER_SLAB = 256
ORDER_MAX = 8
"""The order of a whole slab."""


class BuddyAllocator:
    """Free lists of one order each; the block freed last is taken first, while it is warm."""

    __slots__ = ("_free", "_orders", "_slab_count", "taken_units")

    def __init__(self) -> None:
        # Dicts as ordered sets: joining takes a buddy out of the middle in O(1).
        self._free: list[dict[int, None]] = [{} for _ in range(ORDER_MAX + 1)]
        self._orders = bytearray()
        """For each unit: 1 + the order of the taken block that begins there, or 0."""
        self._slab_count = 0
        self.taken_units = 0

    def add_slab(self) -> int:
        """Add one free slab; its number is the count before."""
        number = self._slab_count
        self._slab_count += 1
        self._free[ORDER_MAX][number * UNITS_PER_SLAB] = None
        self._orders += bytes(UNITS_PER_SLAB)
        return number

    def largest_free_order(self) -> int:
        """The order of the largest block that allocate() would give; -1 if everything is taken."""
        for order in range(ORDER_MAX, -1, -1):
            if self._free[order]:
                return order
        return -1

    def allocate(self, order: int) -> int | None:
        """First unit of a block of exactly this order, split from the smallest free one that will do; or None."""
        split = order
        while not self._free[split]:
            split += 1
            if split > ORDER_MAX:
                return None
        unit, _ = self._free[split].popitem()
        while split > order:
            split -= 1
            self._free[split][unit + (1 << split)] = None
        self._orders[unit] = order + 1
        self.taken_units += 1 << order
        return unit

    def free(self, unit: int) -> None:
        """Give a block back; joins it with its free buddies."""
        order = self._orders[unit] - 1
        assert order >= 0, f"unit {unit} is freed but not taken"
        self._orders[unit] = 0
        size = 1 << order
        self.taken_units -= size
        free = self._free[order]
        while order < ORDER_MAX and unit ^ size in free:
            del free[unit ^ size]
            unit &= ~size
            size += size
            order += 1
            free = self._free[order]
        free[unit] = None

    def _taken(self) -> list[tuple[int, int]]:
        """First unit and order of every taken block."""
        return [(unit, order - 1) for unit, order in enumerate(self._orders) if order]

    def check(self) -> None:
        """Prove the invariants; O(blocks log blocks)."""
        blocks = self._taken()
        for order, units in enumerate(self._free):
            for unit in units:
                blocks.append((unit, order))
                buddy_is_free = order < ORDER_MAX and unit ^ (1 << order) in units
                assert not buddy_is_free, f"free buddies did not join at {unit} order={order}"
        covered = 0
        for unit, order in sorted(blocks):
            assert unit == covered, f"units {covered}..{unit} overlap or are in no block"
            assert unit % (1 << order) == 0, f"block at {unit} is not aligned to order {order}"
            covered = unit + (1 << order)
        assert covered == self._slab_count * UNITS_PER_SLAB, f"units from {covered} are lost"
        taken = sum(1 << order for _, order in self._taken())
        assert taken == self.taken_units, f"counted {self.taken_units} units, taken are {taken}"
