"""What every Storage keeps (segmentstore/contracts/storage.py, S1 to S5). Subclass StorageSuite and hand in a backing.

The tests speak the door alone: whatever they know of the store behind it comes from another owner or reader.
"""

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import (
    Epoch,
    SegmentId,
)
from tests.contracts.storage_attribute_suite import StorageAttributeSuite
from tests.contracts.storage_content_suite import StorageContentSuite
from tests.contracts.storage_merge_suite import StorageMergeSuite
from tests.contracts.storage_publications import (
    LOG_ID,
    StorageBacking,
    change,
    data,
    listed,
    round_of,
)


class StorageSuite(StorageContentSuite, StorageMergeSuite, StorageAttributeSuite):
    """Subclasses provide the fixture `backing`."""

    async def test_the_first_claim_creates_the_root_and_the_next_one_finds_it(
        self, backing: StorageBacking
    ) -> None:
        first = await backing.new_owner().claim(epoch=Epoch(3), log_id=LOG_ID)
        second = await backing.new_owner().claim(epoch=Epoch(4), log_id=LOG_ID)
        assert (first.created, first.epoch) == (True, 3)
        assert (second.created, second.epoch) == (False, 4)
        assert second.version > first.version

    async def test_s1_a_round_of_many_segments_is_visible_as_a_whole_after_reopening(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                *(
                    change(n, f"s{n:04}", length=n, sequence_number=n, pieces=[data(0, b"x" * n)])
                    for n in range(1, 200)
                )
            )
        )
        reopened = await self.claimed(backing, 2)
        records = await reopened.load([SegmentId(n) for n in range(1, 200)])
        assert {n: record.length for n, record in records.items()} == {n: n for n in range(1, 200)}
        assert [record.name for record in await listed(reopened)] == [
            f"s{n:04}" for n in range(1, 200)
        ]

    async def test_the_claim_says_the_highest_numbers_published(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(2, "a", length=0, sequence_number=9), highest_id=40, highest_sequence=70
            )
        )
        claimed = await backing.new_owner().claim(epoch=Epoch(2), log_id=LOG_ID)
        assert (claimed.highest_segment_id, claimed.highest_sequence_number) == (40, 70)

    async def test_s2_an_owner_of_a_smaller_epoch_publishes_nothing(
        self, backing: StorageBacking
    ) -> None:
        zombie = await self.claimed(backing, 1)
        owner = await self.claimed(backing, 2)
        with pytest.raises(StorageNotPrimaryError):
            await zombie.publish(round_of(change(1, "a", length=0, sequence_number=1)))
        assert await owner.find("a") is None
        with pytest.raises(StorageNotPrimaryError):
            await zombie.publish(round_of(change(1, "a", length=0, sequence_number=1)))

    async def test_h7_a_claim_needs_a_greater_epoch(self, backing: StorageBacking) -> None:
        await self.claimed(backing, 5)
        for epoch in (4, 5):
            with pytest.raises(StorageNotPrimaryError, match="recover --from-tier2"):
                await self.claimed(backing, epoch)

    async def test_h7_a_claim_of_another_log_or_store_is_refused_with_a_way_out(
        self, backing: StorageBacking
    ) -> None:
        await self.claimed(backing, 57)
        with pytest.raises(InvalidRequestError, match="recover --from-tier2"):
            await backing.new_owner().claim(epoch=Epoch(58), log_id=b"\x22" * 16)
        with pytest.raises(InvalidRequestError, match="store id differs"):
            await backing.new_owner_of_another_store().claim(epoch=Epoch(58), log_id=LOG_ID)

    async def test_h7_a_log_that_follows_a_lost_one_has_its_root_for_good(
        self, backing: StorageBacking
    ) -> None:
        follower = b"\x33" * 16
        lost = await self.claimed(backing, 5)
        with pytest.raises(InvalidRequestError, match="log id differs"):
            await backing.new_owner().claim(epoch=Epoch(58), log_id=follower, follows=b"\x22" * 16)
        with pytest.raises(StorageNotPrimaryError):
            await backing.new_owner().claim(epoch=Epoch(5), log_id=follower, follows=LOG_ID)
        await lost.publish(round_of(change(1, "a", length=0, sequence_number=1)))
        for epoch in (6, 7):
            owner = backing.new_owner()
            await owner.claim(epoch=Epoch(epoch), log_id=follower, follows=LOG_ID)
            assert await owner.find("a") is not None
            with pytest.raises(StorageNotPrimaryError):
                await lost.publish(round_of(change(2, "b", length=0, sequence_number=2)))
        with pytest.raises(InvalidRequestError, match="a recovery gave it to another"):
            await self.claimed(backing, 1_000)

    async def test_h62_a_claim_with_another_container_count_is_refused(
        self, backing: StorageBacking
    ) -> None:
        await self.claimed(backing)
        with pytest.raises(InvalidRequestError, match="container count differs"):
            await backing.new_owner_with_another_count().claim(epoch=Epoch(2), log_id=LOG_ID)
