import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.cache.cache_storage import ORDER_MAX, UNITS_PER_SLAB, BuddyAllocator


def allocator_of(slabs: int) -> BuddyAllocator:
    allocator = BuddyAllocator()
    for _ in range(slabs):
        allocator.add_slab()
    return allocator


def test_freed_small_blocks_become_a_slab_again() -> None:
    allocator = allocator_of(1)
    units = [allocator.allocate(0) for _ in range(UNITS_PER_SLAB)]
    assert allocator.allocate(0) is None
    assert sorted(unit for unit in units if unit is not None) == list(range(UNITS_PER_SLAB))
    for unit in units[::2] + units[1::2]:
        assert unit is not None
        allocator.free(unit)
        allocator.check()
    assert allocator.allocate(ORDER_MAX) == 0


def test_a_small_block_is_split_from_the_smallest_that_will_do() -> None:
    allocator = allocator_of(2)
    first = allocator.allocate(3)
    second = allocator.allocate(0)
    assert first is not None
    assert second is not None
    assert first // UNITS_PER_SLAB == second // UNITS_PER_SLAB
    assert allocator.largest_free_order() == ORDER_MAX
    allocator.check()


def test_a_double_free_is_a_bug() -> None:
    allocator = allocator_of(1)
    unit = allocator.allocate(2)
    assert unit is not None
    allocator.free(unit)
    with pytest.raises(AssertionError):
        allocator.free(unit)


@given(st.lists(st.tuples(st.integers(-20, ORDER_MAX), st.integers(0, 1_000)), max_size=120))
@settings(max_examples=100, deadline=None)
def test_blocks_never_overlap_and_nothing_is_lost(steps: list[tuple[int, int]]) -> None:
    allocator = allocator_of(3)
    taken: list[tuple[int, int]] = []
    for order, choice in steps:
        if order >= 0 or not taken:
            order = abs(order) % (ORDER_MAX + 1)
            largest = allocator.largest_free_order()
            unit = allocator.allocate(order)
            assert (unit is None) == (largest < order)
            if unit is not None:
                taken.append((unit, order))
        else:
            unit, order = taken.pop(choice % len(taken))
            allocator.free(unit)
        allocator.check()
        assert allocator.taken_units == sum(1 << order for _, order in taken)
    for unit, _ in taken:
        allocator.free(unit)
    allocator.check()
    assert allocator.largest_free_order() == ORDER_MAX
