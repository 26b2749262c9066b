"""Each container has a part of the room for un-flushed bytes that no other can take."""

from random import Random

import pytest

from containers.cache.cache_entry import CacheEntry
from containers.cache.cache_manager import (
    CacheManager,
    CacheManagerSettings,
    CacheShare,
    CacheShares,
)
from containers.cache.cache_storage import CacheBlock, CacheStorage
from segmentstore.contracts.errors import CacheFullError

MIB = 1024 * 1024
KIB64 = 64 * 1024


def make_manager(budget_mib: int) -> CacheManager:
    return CacheManager(
        storage=CacheStorage(budget_bytes=budget_mib * MIB),
        settings=CacheManagerSettings(high_mark_share=1.0, unflushed_share_max=1.0),
    )


def fill(manager: CacheManager, share: CacheShare, blocks_max: int = 10_000) -> int:
    """Take all that can be had in 64 KiB; how many bytes that were."""
    before = share.unflushed_bytes
    for _ in range(blocks_max):
        try:
            manager.allocate_unflushed(KIB64, share=share)
        except CacheFullError:
            break
    return share.unflushed_bytes - before


def test_h37_a_container_that_takes_all_it_can_get_leaves_the_others_their_parts() -> None:
    manager = make_manager(16)
    greedy, *others = [manager.shares.open() for _ in range(4)]
    assert fill(manager, greedy) == 10 * MIB  # a quarter of one half, and the other half
    with pytest.raises(CacheFullError):
        manager.allocate_unflushed(4096, share=greedy)
    for other in others:
        assert manager.utilisation(other) == 0.0
        assert fill(manager, other) == 2 * MIB
        assert manager.utilisation(other) == 1.0
    manager.check()


def test_h37_a_container_is_as_full_as_what_it_could_still_have() -> None:
    manager = make_manager(16)
    one, other = manager.shares.open(), manager.shares.open()
    fill(manager, one, 64)  # its part, 4 MiB: of 12 that it could have
    assert manager.utilisation(one) == pytest.approx(1 / 3)
    assert fill(manager, other) == 12 * MIB
    assert manager.utilisation(one) == 1.0
    assert manager.utilisation(other) == 1.0


def test_h37_who_is_alone_may_have_everything_and_gives_a_newcomer_its_part_as_it_flushes() -> None:
    manager = make_manager(16)
    first = manager.shares.open()
    assert fill(manager, first) == 16 * MIB
    second = manager.shares.open()
    assert manager.shares.guaranteed_bytes == 4 * MIB
    first.grow(-6 * MIB)
    assert second.room_bytes() == 6 * MIB
    first.grow(-10 * MIB)
    second.grow(4 * MIB)
    manager.shares.close(first)
    assert second.room_bytes() == 12 * MIB
    manager.shares.check()


def test_h34_what_is_charged_takes_room_from_bytes_and_from_what_was_read() -> None:
    manager = make_manager(4)
    share = manager.shares.open()
    assert not share.charge(3 * MIB)
    assert manager.utilisation(share) == 0.75
    assert not manager.can_hold(2 * MIB)
    for _ in range(16):
        block = manager.allocate_fetched(KIB64)
        assert block is not None
        manager.add_fetched(CacheEntry(Forgetful(), 0, block))
    assert manager.allocate_fetched(KIB64) is not None  # for one that left
    assert manager.statistics().occupied_bytes <= MIB
    assert share.charge(0)
    assert share.room_bytes() == 4 * MIB


class Forgetful:
    """An index that does not mind."""

    def evicted(self, entry: CacheEntry) -> None:
        """Nothing to forget."""


@pytest.mark.parametrize("seed", range(20))
def test_h37_whatever_happens_a_container_below_its_part_has_room_for_the_rest(seed: int) -> None:
    random = Random(seed)
    manager = make_manager(4)
    held: dict[CacheShare, list[CacheBlock]] = {}
    for _ in range(400):
        match random.choice(["open", "close", "take", "take", "take", "give", "charge"]):
            case "open" if len(held) < 5 and not manager.shares.charged_bytes:
                for share, blocks in held.items():  # a newcomer is given its part when others flush
                    give_back(manager, share, blocks)
                held[manager.shares.open()] = []
            case "close" if held:
                share = random.choice(list(held))
                give_back(manager, share, held.pop(share))
                manager.shares.close(share)
            case "take" if held:
                share = random.choice(list(held))
                try:
                    size = random.choice([4096, KIB64, MIB])
                    held[share].append(manager.allocate_unflushed(size, share=share))
                except CacheFullError:
                    assert share.used_bytes + 4096 > manager.shares.guaranteed_bytes
            case "give" if held:
                share = random.choice(list(held))
                give_back(manager, share, held[share])
            case "charge" if held:
                share = random.choice(list(held))
                room = share.charged_bytes + share.room_bytes()
                share.charge(random.randrange(room + 1))
        manager.check()
        for share in held:
            part = manager.shares.guaranteed_bytes
            assert share.room_bytes() >= part - share.used_bytes
        assert manager.shares.claimed_bytes <= manager.shares.limit_bytes


def give_back(manager: CacheManager, share: CacheShare, blocks: list[CacheBlock]) -> None:
    """Everything that it holds."""
    for block in blocks:
        manager.return_unflushed(block, share=share)
    blocks.clear()


def test_h37_parts_are_equal_and_half_of_the_room_in_all() -> None:
    shares = CacheShares(limit_bytes=1000)
    assert shares.common_bytes == 500
    opened = [shares.open() for _ in range(5)]
    assert shares.guaranteed_bytes == 100
    assert shares.claimed_bytes == 500
    for share in opened:
        shares.close(share)
        shares.close(share)
    assert shares.claimed_bytes == 0
