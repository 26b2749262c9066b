"""Which containers may use the cache's memory, and which entries are evicted when it is short.

Entries with bytes that Tier 2 lacks are pinned: they are in no list, so eviction cannot find them. The others stand
in generations, oldest first; using one moves it to the current generation, at most once per generation. A generation
ends when a set share of the budget was used in it: age is counted in bytes, not in time; an idle cache does not age.

The room for bytes that Tier 2 lacks is divided among the containers of a process. Half of it is guaranteed in
equal parts, one for each container that is open; the other half goes to those that ask first. What one container holds
beyond its part is taken from that other half alone, so a container whose Tier 2 is slow, or that takes in more than it
can flush, never keeps the others from their part. Memory outside the cache is charged to a container's share too, so
that it takes room from bytes: items of the in-memory log.

Invariants (check()):
- occupied memory = pinned + evictable + blocks handed out and not yet in an entry; it never exceeds the budget;
- an entry is in the list of exactly the generation it names, a pinned one in none;
- blocks for un-flushed bytes stop at `unflushed_share_max`, so that reads go on and a restart has room to spare;
- the parts of all containers, or what a container holds if that is more, sum up to `claimed_bytes`;
- below its part a container always has room for the rest of it: `claimed_bytes` grows beyond `limit_bytes` only by a
  recovery, by what is charged after the fact, and when another container opens and the parts become smaller.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from containers.cache.cache_entry import PINNED, CacheEntry
from containers.cache.cache_storage import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    CacheBlock,
    CacheStorage,
)
from segmentstore.contracts.errors import CacheFullError

GUARANTEED_SHARE = 0.5
"""Of the room for un-flushed bytes. The rest is what a single container may have beyond its part."""


@dataclass(frozen=True, slots=True)
class CacheManagerSettings:
    """Shares of the budget, between 0 and 1."""

    high_mark_share: float = 0.9
    """Above it every allocation evicts a little more than it needs."""
    unflushed_share_max: float = 0.9
    """Un-flushed bytes may occupy no more; recovery alone may go beyond."""
    generation_share: float = 1 / 32
    """A generation ends after this much of the budget was used in it."""
    eviction_batch: int = 32
    """Most entries evicted by one allocation above the high mark; it evicts some more than it needs."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A snapshot for throttling and metrics, in bytes of occupied memory."""

    budget_bytes: int
    resident_bytes: int
    occupied_bytes: int
    unflushed_bytes: int
    evictable_bytes: int
    evicted_bytes: int
    """Since the process began."""
    charged_bytes: int
    """Outside the cache, and taken from its budget."""
    generation: int


class CacheShares:
    """The containers that share a cache, and how its room for un-flushed bytes is divided among them."""

    def __init__(self, *, limit_bytes: int) -> None:
        """`limit_bytes`: for un-flushed bytes and charges of all containers together."""
        self.limit_bytes = limit_bytes
        self.guaranteed_bytes = self._part_of(1)
        """The part of each container."""
        self.claimed_bytes = 0
        self.charged_bytes = 0
        self._shares: dict[CacheShare, None] = {}

    @property
    def common_bytes(self) -> int:
        """What no container is guaranteed; with its own part, the most that one container can ever have is no less."""
        return self.limit_bytes - int(self.limit_bytes * GUARANTEED_SHARE)

    def open(self) -> "CacheShare":
        """A container begins; the parts of the others become smaller."""
        share = CacheShare(self)
        self._shares[share] = None
        self._divide()
        return share

    def close(self, share: "CacheShare") -> None:
        """The container has ended and given everything back; closing again is fine."""
        if share in self._shares:
            assert not share.unflushed_bytes, f"{share.unflushed_bytes} bytes of an ended container"
            share.charge(0)
            del self._shares[share]
            self._divide()

    def _part_of(self, share_count: int) -> int:
        return int(self.limit_bytes * GUARANTEED_SHARE) // share_count

    def _divide(self) -> None:
        self.guaranteed_bytes = self._part_of(max(1, len(self._shares)))
        self.claimed_bytes = self._claimed()

    def _claimed(self) -> int:
        return sum(max(share.used_bytes, self.guaranteed_bytes) for share in self._shares)

    def check(self) -> None:
        """Prove the invariants; O(containers)."""
        assert self.claimed_bytes == self._claimed(), f"{self.claimed_bytes} != {self._claimed()}"
        charged = sum(share.charged_bytes for share in self._shares)
        assert charged == self.charged_bytes, f"{charged} charged, counted {self.charged_bytes}"
        for share in self._shares:
            used = share.unflushed_bytes + share.charged_bytes
            assert used == share.used_bytes, f"{used} used, counted {share.used_bytes}"


class CacheShare:
    """One container's part, and what it uses of that and beyond. All of it in bytes of memory, not of data."""

    __slots__ = ("_shares", "charged_bytes", "unflushed_bytes", "used_bytes")

    def __init__(self, shares: CacheShares) -> None:
        self._shares = shares
        self.unflushed_bytes = 0
        """In blocks of the cache."""
        self.charged_bytes = 0
        """Outside the cache."""
        self.used_bytes = 0
        """Both."""

    def grow(self, byte_difference: int) -> None:
        """So many more (or fewer) bytes of blocks are un-flushed."""
        self.unflushed_bytes += byte_difference
        self._use(byte_difference)

    def charge(self, size_bytes: int) -> bool:
        """What is used outside the cache is this much now, allowed or not. Whether that made room."""
        difference = size_bytes - self.charged_bytes
        if difference:
            self.charged_bytes = size_bytes
            self._shares.charged_bytes += difference
            self._use(difference)
        return difference < 0

    def _use(self, byte_difference: int) -> None:
        shares = self._shares
        before = self.used_bytes
        used = self.used_bytes = before + byte_difference
        guaranteed = shares.guaranteed_bytes
        if used > guaranteed or before > guaranteed:
            shares.claimed_bytes += max(used, guaranteed) - max(before, guaranteed)

    def room_bytes(self, *, spare_bytes: int = 0) -> int:
        """What it may still take: the rest of its part, and what is left for all and `spare_bytes` beyond."""
        shares = self._shares
        part = max(0, shares.guaranteed_bytes - self.used_bytes)
        return part + max(0, shares.limit_bytes + spare_bytes - shares.claimed_bytes)

    @property
    def fullness(self) -> float:
        """From 0 to 1 (no room): what it uses, of what it could use if the others stayed as they are."""
        reachable = self.used_bytes + self.room_bytes()
        return self.used_bytes / reachable if reachable else 1.0


class CacheManager:
    """Allocates for all read indexes of a process and evicts across them."""

    def __init__(
        self, *, storage: CacheStorage, settings: CacheManagerSettings | None = None
    ) -> None:
        self._storage = storage
        self._settings = settings or CacheManagerSettings()
        budget = storage.budget_bytes
        self._high_mark_bytes = int(budget * self._settings.high_mark_share)
        self._unflushed_bytes_max = int(budget * self._settings.unflushed_share_max)
        self._eviction_bytes = min(BLOCK_BYTES_MAX, budget // 256)
        self.shares = CacheShares(limit_bytes=self._unflushed_bytes_max)
        self._generation_bytes_max = max(1, int(budget * self._settings.generation_share))
        self.on_space_freed: list[Callable[[], None]] = []
        """Called, in the turn of the loop that made the room, when memory became free or evictable.
        They only schedule: staging bytes from here would re-enter the index that is at work."""
        self.generation = 1
        self.unflushed_bytes = 0
        """Memory in pinned entries."""
        self._evictable_bytes = 0
        self._evicted_bytes = 0
        self._generation_bytes = 0
        self._generations: OrderedDict[int, OrderedDict[CacheEntry, None]] = OrderedDict()

    def utilisation(self, share: CacheShare) -> float:
        """How full the cache is for this container: at `unflushed_share_max` it has no room without Tier 2's help.

        For a container that is alone: un-flushed bytes and charges as a share of the budget.
        """
        return share.fullness * self._unflushed_bytes_max / self._storage.budget_bytes

    @property
    def budget_bytes(self) -> int:
        return self._storage.budget_bytes

    @property
    def append_bytes_max(self) -> int:
        """The largest append for which there is room when everything else is in Tier 2, however many containers."""
        return self.shares.common_bytes // BLOCK_BYTES_MIN * BLOCK_BYTES_MIN

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            budget_bytes=self._storage.budget_bytes,
            resident_bytes=self._storage.resident_bytes,
            occupied_bytes=self._storage.occupied_bytes,
            unflushed_bytes=self.unflushed_bytes,
            evictable_bytes=self._evictable_bytes,
            evicted_bytes=self._evicted_bytes,
            charged_bytes=self.shares.charged_bytes,
            generation=self.generation,
        )

    # --- blocks -------------------------------------------------------------------------------

    def allocate_unflushed(
        self, size_bytes: int, *, share: CacheShare, recovering: bool = False
    ) -> CacheBlock:
        """A block for bytes that only Tier 1 has; smaller than asked for when memory is short or split up.

        Raises CacheFullError when nothing can be evicted any more, or when the container has no room. Recovering, it
        may use what lies beyond `unflushed_share_max` too. The block counts as un-flushed until it is released or its
        entry becomes evictable.
        """
        if self.shares.claimed_bytes + size_bytes > self.shares.limit_bytes:
            size_bytes = self._fitting(size_bytes, share=share, recovering=recovering)
        block = self._allocate(size_bytes)
        size_bytes = block.size_bytes
        self.unflushed_bytes += size_bytes
        share.grow(size_bytes)
        return block

    def _fitting(self, size_bytes: int, *, share: CacheShare, recovering: bool) -> int:
        """What the container may have of it, now that there is not enough for all. Raises CacheFullError."""
        spare_bytes = self._storage.budget_bytes - self._unflushed_bytes_max if recovering else 0
        left = share.room_bytes(spare_bytes=spare_bytes)
        if left < BLOCK_BYTES_MIN:
            raise CacheFullError(
                f"un-flushed bytes are at their limit bytes={self.unflushed_bytes}"
                f" of_this_container={share.unflushed_bytes} charged={share.charged_bytes}"
            )
        while size_bytes > left:
            size_bytes //= 2
        return size_bytes

    def return_unflushed(self, block: CacheBlock, *, share: CacheShare) -> None:
        """Free a block of allocate_unflushed() that never came into an entry."""
        self.unflushed_bytes -= block.size_bytes
        share.grow(-block.size_bytes)
        self._storage.free(block)

    def allocate_fetched(self, size_bytes: int) -> CacheBlock | None:
        """A block for bytes that Tier 2 has; None if the cache is full of un-flushed bytes."""
        try:
            return self._allocate(size_bytes)
        except CacheFullError:
            return None

    def can_hold(self, size_bytes: int) -> bool:
        """Whether fetched bytes of this size would find room, evicting older ones at most."""
        held = self.unflushed_bytes + self.shares.charged_bytes
        return held + size_bytes <= self._unflushed_bytes_max

    def _allocate(self, size_bytes: int) -> CacheBlock:
        taken = self._storage.occupied_bytes + self.shares.charged_bytes + size_bytes
        excess = taken - self._high_mark_bytes
        if excess > 0:
            block = self._oldest_of_size(size_bytes) if excess <= size_bytes else None
            if block is not None:
                return block
            # Some more at a time: one by one costs a search for the oldest each.
            self._evict(excess + self._eviction_bytes, self._settings.eviction_batch)
        over = excess + self._high_mark_bytes - self._storage.budget_bytes
        if over > 0 and self.shares.charged_bytes:
            self._evict_for_charges(size_bytes)
        block = self._storage.try_allocate(size_bytes)
        if block is not None:
            return block
        # Freed blocks need their buddies to become large: twice the size is a fair try, no more.
        self._evict(2 * size_bytes)
        largest = self._storage.largest_free_bytes()
        return self._storage.allocate(min(size_bytes, max(largest, BLOCK_BYTES_MIN)))

    def _oldest_of_size(self, size_bytes: int) -> CacheBlock | None:
        """The block of the entry that is evicted next, if it is just what is asked for.

        It changes hands without being joined with its buddies and split again.
        """
        for generation, entries in self._generations.items():
            entry = next(iter(entries))
            block = entry.block
            assert block is not None, f"{entry!r} was released and is still in a generation"
            if block.size_bytes != size_bytes:
                return None
            del entries[entry]
            if not entries:
                del self._generations[generation]
            if entry.owner is not None:
                entry.owner.evicted(entry)
            entry.forget_block()
            self._evictable_bytes -= size_bytes
            self._evicted_bytes += size_bytes
            return block
        return None

    def _evict_for_charges(self, size_bytes: int) -> None:
        """Blocks end at the budget by themselves; blocks and charges together have to be told."""
        taken = self._storage.occupied_bytes + self.shares.charged_bytes + size_bytes
        over = taken - self._storage.budget_bytes
        if over > 0 and self._evict(over) < over:
            raise CacheFullError(
                f"no memory is left beside what is charged charged={self.shares.charged_bytes}"
                f" occupied_bytes={self._storage.occupied_bytes}"
            )

    # --- entries ------------------------------------------------------------------------------

    def add_fetched(self, entry: CacheEntry) -> None:
        """An entry on a block of allocate_fetched(): evictable from the start."""
        assert entry.generation == PINNED, f"{entry!r} is in a generation already"
        self._enter_generation(entry)

    def make_evictable(self, entry: CacheEntry, *, share: CacheShare) -> None:
        """All bytes of the entry are in Tier 2 under its owner now; it takes nothing of the container's share."""
        assert entry.generation == PINNED, f"{entry!r} is in a generation already"
        assert entry.block is not None, f"{entry!r} was released"
        self.unflushed_bytes -= entry.block.size_bytes
        share.grow(-entry.block.size_bytes)
        self._enter_generation(entry)

    def touch(self, entry: CacheEntry) -> None:
        """The entry was used. Callers skip the call if it is pinned or of this generation."""
        if entry.generation not in (PINNED, self.generation):
            self._leave_generation(entry)
            self._enter_generation(entry)

    def release(self, entry: CacheEntry, *, share: CacheShare) -> None:
        """Free the entry's block; a released entry may be released again. Its index must not find it any more."""
        block = entry.block
        if block is None:
            return
        if entry.generation == PINNED:
            self.unflushed_bytes -= block.size_bytes
            share.grow(-block.size_bytes)
        else:
            self._leave_generation(entry)
        self._free(entry, block)

    def _free(self, entry: CacheEntry, block: CacheBlock) -> None:
        """Of an entry that is in no generation any more."""
        entry.forget_block()
        self._storage.free(block)

    def space_freed(self) -> None:
        """Tell the containers that wait for room. Called once by each operation that released or un-pinned entries."""
        for callback in self.on_space_freed:
            callback()

    # --- eviction -----------------------------------------------------------------------------

    def evict(self, bytes_needed: int) -> int:
        """Evict oldest entries until `bytes_needed` bytes of memory are freed or none is left; the bytes freed."""
        freed = self._evict(bytes_needed)
        if freed:
            self.space_freed()
        return freed

    def _evict(self, bytes_needed: int, entry_count_max: int | None = None) -> int:
        freed = 0
        count = 0
        generations = self._generations
        while freed < bytes_needed and count != entry_count_max and generations:
            generation, entries = next(iter(generations.items()))
            while entries and freed < bytes_needed and count != entry_count_max:
                entry, _ = entries.popitem(last=False)
                block = entry.block
                owner = entry.owner
                assert block is not None, f"{entry!r} was released and is still in a generation"
                freed += block.size_bytes
                count += 1
                if owner is not None:
                    owner.evicted(entry)
                entry.forget_block()
                self._storage.free(block)
            if not entries:
                del generations[generation]
        self._evictable_bytes -= freed
        self._evicted_bytes += freed
        return freed

    def _enter_generation(self, entry: CacheEntry) -> None:
        block = entry.block
        assert block is not None, f"{entry!r} was released"
        entries = self._generations.get(self.generation)
        if entries is None:
            entries = self._generations[self.generation] = OrderedDict()
        entries[entry] = None
        entry.generation = self.generation
        self._evictable_bytes += block.size_bytes
        self._generation_bytes += block.size_bytes
        if self._generation_bytes >= self._generation_bytes_max:
            self._generation_bytes = 0
            self.generation += 1

    def _leave_generation(self, entry: CacheEntry) -> None:
        block = entry.block
        assert block is not None, f"{entry!r} was released"
        entries = self._generations[entry.generation]
        del entries[entry]
        if not entries:
            del self._generations[entry.generation]
        self._evictable_bytes -= block.size_bytes

    def check(self) -> None:
        """Prove the invariants; O(entries)."""
        self._storage.check()
        self.shares.check()
        evictable = 0
        previous = PINNED
        for generation, entries in self._generations.items():
            assert previous < generation <= self.generation, f"{generation} behind {previous}"
            assert entries, f"generation {generation} is empty"
            previous = generation
            for entry in entries:
                assert entry.generation == generation, f"{entry!r} is in {generation}"
                assert entry.block is not None, f"{entry!r} was released"
                evictable += entry.block.size_bytes
        assert evictable == self._evictable_bytes, f"{evictable} is not {self._evictable_bytes}"
        occupied = self._storage.occupied_bytes
        assert evictable + self.unflushed_bytes == occupied, (
            f"evictable {evictable} + un-flushed {self.unflushed_bytes} is not occupied {occupied}"
        )
