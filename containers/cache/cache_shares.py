"""How the room for bytes that Tier 2 lacks is divided among the containers of a process (H37).

Half of it is guaranteed in equal parts, one for each container that is open; the other half goes to whoever comes
first. What one container holds beyond its part is taken from that other half alone, so a container whose Tier 2 is
slow, or that takes in more than it can flush, never keeps the others from their part.

Invariants (check()):
- the parts of all containers, or what a container holds if that is more, sum up to `claimed_bytes`;
- below its part a container always has room for the rest of it: `claimed_bytes` grows beyond `limit_bytes` only by a
  recovery, by what is charged after the fact, and when another container opens and the parts become smaller.

Memory outside the cache is charged here too, so that it takes room from bytes: items of the in-memory log (H34).
"""

GUARANTEED_SHARE = 0.5
"""Of the room for un-flushed bytes. The rest is what a single container may have beyond its part."""


class CacheShares:
    """The containers that share a cache."""

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
        """What nobody is guaranteed; with its own part, the most that one container can ever have is no less."""
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
