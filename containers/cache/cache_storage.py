"""The memory of the cache: blocks of 4 KiB to 1 MiB out of arenas that are touched once and never given back.

The first write to a fresh page costs more than the copy into it, so arenas are zero-filled when they are made and then
recycled until the process ends. While make_ahead() runs, a thread makes the next one when half of the last is
taken; without it, or when that is too late, an arena is made when it is needed. One storage serves all containers of a
process.

Which parts of the memory are taken is arithmetic on unit numbers, of a buddy allocator that has no memory of its own.
Memory comes in slabs of 256 units; a block is 2**order units, aligned to its own size inside its slab. A freed block
joins its buddy (the other half of the block both were split from) again and again, so that many freed small blocks
become big ones without any pass over memory.

Invariants (check()):
- memory taken from the system never exceeds the budget, and the budget counts blocks, not the bytes in them;
- taken and free blocks together cover every slab exactly once: live blocks never share a byte;
- two free buddies never exist side by side: they would have joined;
- `taken_units` is the sum of the taken blocks;
- a freed block has an empty view: a write through it fails instead of writing into another segment.
"""

import asyncio
import mmap
import os
from concurrent.futures import Executor
from contextlib import suppress

from segmentstore.contracts.errors import CacheFullError

BLOCK_BYTES_MIN = 4 * 1024
BLOCK_BYTES_MAX = 1024 * 1024
"""One slab."""

ORDER_MAX = 8
"""The order of a whole slab."""
UNITS_PER_SLAB = 256
assert BLOCK_BYTES_MIN << ORDER_MAX == BLOCK_BYTES_MAX == UNITS_PER_SLAB * BLOCK_BYTES_MIN

ARENA_BYTES = 8 * BLOCK_BYTES_MAX
"""Memory is asked for in this size: about 3 ms of zero-filling when it happens in the middle of the work."""

_BLOCK_SIZES = tuple(BLOCK_BYTES_MIN << order for order in range(ORDER_MAX + 1))
"""The same few objects for all blocks: an append that meets the open block of its segment finds the number warm."""

_NO_BYTES = memoryview(b"")
_PAGE_BYTES = 4 * 1024
_ZEROS_PATH = "/dev/zero"


class CacheBlock:
    """A piece of cache memory, its allocator's until it is freed."""

    __slots__ = ("size_bytes", "slab", "start", "unit")

    def __init__(self, unit: int, slab: memoryview, start: int, size_bytes: int) -> None:
        self.unit = unit
        self.slab = slab
        """What it is cut from: one object for the blocks of many segments."""
        self.start = start
        """Where in the slab it begins."""
        self.size_bytes = size_bytes

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return self.slab[self.start : self.start + self.size_bytes]


class CacheStorage:
    """A hard budget of memory, handed out in blocks whose sizes are powers of two."""

    def __init__(self, *, budget_bytes: int, arena_bytes: int = ARENA_BYTES) -> None:
        """`budget_bytes` is rounded down to whole MiB and must be at least one."""
        if budget_bytes < BLOCK_BYTES_MAX:
            raise ValueError(f"cache budget is too small budget_bytes={budget_bytes}")
        self._slab_count_max = budget_bytes // BLOCK_BYTES_MAX
        self._arena_slabs = max(1, arena_bytes // BLOCK_BYTES_MAX)
        self._slabs: list[memoryview] = []
        self._allocator = BuddyAllocator()
        self._next_is_due = asyncio.Event()
        self._units_to_spare = 0
        """With more units taken than these the next arena is due."""

    @property
    def budget_bytes(self) -> int:
        return self._slab_count_max * BLOCK_BYTES_MAX

    @property
    def occupied_bytes(self) -> int:
        """Memory in live blocks."""
        return self._allocator.taken_units * BLOCK_BYTES_MIN

    @property
    def resident_bytes(self) -> int:
        """Memory taken from the system so far."""
        return len(self._slabs) * BLOCK_BYTES_MAX

    async def make_ahead(self, executor: Executor | None) -> None:
        """Make arenas in the executor before they are needed; returns when the whole budget is resident."""
        loop = asyncio.get_running_loop()
        while len(self._slabs) < self._slab_count_max:
            await self._next_is_due.wait()
            arena = await loop.run_in_executor(executor, new_arena, self._next_arena_bytes())
            self._add_arena(arena)

    def largest_free_bytes(self) -> int:
        """Size of the largest block that can be had now; 0 if every byte of the budget is taken."""
        if len(self._slabs) < self._slab_count_max:
            return BLOCK_BYTES_MAX
        order = self._allocator.largest_free_order()
        return BLOCK_BYTES_MIN << order if order >= 0 else 0

    def allocate(self, size_bytes: int) -> CacheBlock:
        """As try_allocate(). Raises CacheFullError."""
        block = self.try_allocate(size_bytes)
        if block is None:
            raise CacheFullError(
                f"no block is free size_bytes={size_bytes} occupied_bytes={self.occupied_bytes}"
                f" budget_bytes={self.budget_bytes}"
            )
        return block

    def try_allocate(self, size_bytes: int) -> CacheBlock | None:
        """A block of the smallest power of two that holds `size_bytes` (at most 1 MiB); None if none is free."""
        assert 0 < size_bytes <= BLOCK_BYTES_MAX, f"no block has {size_bytes} bytes"
        order = ((size_bytes - 1) // BLOCK_BYTES_MIN).bit_length()
        unit = self._allocator.allocate(order)
        if unit is None and len(self._slabs) < self._slab_count_max:
            self._add_arena(new_arena(self._next_arena_bytes()))
            unit = self._allocator.allocate(order)
        if unit is None:
            return None
        if self._allocator.taken_units > self._units_to_spare:
            self._next_is_due.set()
        start = unit % UNITS_PER_SLAB * BLOCK_BYTES_MIN
        slab = self._slabs[unit // UNITS_PER_SLAB]
        return CacheBlock(unit, slab, start, _BLOCK_SIZES[order])

    def free(self, block: CacheBlock) -> None:
        """Give the block back. The caller makes sure that no view of it is read after this."""
        block.slab = _NO_BYTES
        self._allocator.free(block.unit)

    def check(self) -> None:
        """Prove the invariants; O(blocks log blocks)."""
        self._allocator.check()
        assert len(self._slabs) <= self._slab_count_max, (
            f"{len(self._slabs)} slabs exceed the budget of {self._slab_count_max}"
        )
        assert self.occupied_bytes <= self.resident_bytes, (
            f"occupied {self.occupied_bytes} of {self.resident_bytes} resident bytes"
        )

    def _next_arena_bytes(self) -> int:
        slabs = min(self._arena_slabs, self._slab_count_max - len(self._slabs))
        return slabs * BLOCK_BYTES_MAX

    def _add_arena(self, arena: mmap.mmap) -> None:
        # An arena made meanwhile by an allocation may have used up the budget this one was made for.
        view = memoryview(arena)
        for start in range(0, len(arena), BLOCK_BYTES_MAX):
            if len(self._slabs) == self._slab_count_max:
                break
            number = self._allocator.add_slab()
            assert number == len(self._slabs), f"slab {number} behind {len(self._slabs)}"
            self._slabs.append(view[start : start + BLOCK_BYTES_MAX])
        self._next_is_due.clear()
        units = len(self._slabs) * UNITS_PER_SLAB
        is_last = len(self._slabs) == self._slab_count_max
        self._units_to_spare = units if is_last else units - self._arena_slabs * UNITS_PER_SLAB // 2


def new_arena(size_bytes: int) -> mmap.mmap:
    """Zeroed memory, every page of it touched.

    In huge pages where the system has some to give: the open blocks of a thousand segments lie in a thousand small
    pages, more than the processor keeps translations for.
    """
    arena = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            arena.madvise(mmap.MADV_HUGEPAGE)
    _touch(memoryview(arena))
    return arena


def _touch(memory: memoryview) -> None:
    """By a system call, which does not hold the interpreter meanwhile, where there is one."""
    try:
        zeros = os.open(_ZEROS_PATH, os.O_RDONLY)
    except OSError:  # not a Unix
        memory[::_PAGE_BYTES] = bytes(len(memory) // _PAGE_BYTES)
        return
    try:
        touched = 0
        while touched < len(memory):
            touched += os.readv(zeros, [memory[touched:]])
    finally:
        os.close(zeros)


class BuddyAllocator:
    """Which units are taken. Free lists of one order each; the block freed last is taken first, while it is warm."""

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
