"""Offsets of groups and ids of producers over a real container: they are there after it was recovered."""

from random import Random
from uuid import UUID

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.groups.committed_offsets import TopicPartition
from segmentstore.topics.groups.errors import GroupError
from segmentstore.topics.groups.groups import Groups, OffsetToCommit
from segmentstore.topics.groups.settings import GroupSettings
from segmentstore.topics.producer_ids import ProducerIds
from tests.containers.node import MemoryTiers, running
from tests.containers.test_ownership import SwitchedLease


async def started_groups(container: StreamSegmentContainer) -> Groups:
    groups = Groups(
        tables=container,
        wall_clock=SystemWallClock(),
        random=Random(1),
        topic_id_of=lambda name: UUID(int=1),
        settings=GroupSettings(),
    )
    await groups.start()
    return groups


async def commit(groups: Groups, group: str, count: int, *, first: int) -> None:
    offsets = {
        TopicPartition("topic", number): OffsetToCommit(offset=first + number)
        for number in range(count)
    }
    refused = await groups.commit(group, member_id="", generation=-1, offsets=offsets)
    assert not refused


async def test_offsets_survive_the_recovery_of_their_container() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        groups = await started_groups(container)
        await commit(groups, "many", 1_500, first=0)
        await commit(groups, "many", 1_500, first=10)
        await commit(groups, "few", 1, first=5)
        await commit(groups, "deleted", 3, first=5)
        await groups.delete("deleted")
    async with running(tiers) as container:
        groups = await started_groups(container)
        assert sorted(each.group_id for each in groups.listing()) == ["few", "many"]
        found = await groups.committed("many")
        assert {place.partition: each.offset for place, each in found.items()} == {
            number: 10 + number for number in range(1_500)
        }
        place = TopicPartition("topic", 0)
        assert (await groups.committed("few", [place]))[place].offset == 5
        assert await groups.committed("deleted") == {}
        groups.check()


@pytest.mark.parametrize("places", [[TopicPartition("topic", 0)], None])
async def test_h83_nothing_is_committed_is_not_the_word_of_a_coordinator_whose_lease_is_over(
    places: list[TopicPartition] | None,
) -> None:
    """A consumer would begin at the end of a partition whose offset the next coordinator has."""
    lease = SwitchedLease()
    async with running(MemoryTiers(), lease=lease) as container:
        groups = await started_groups(container)
        assert await groups.committed("g", places) == {}
        lease.valid = False
        with pytest.raises(GroupError):
            await groups.committed("g", places)


async def test_producer_ids_do_not_come_again_after_the_recovery_of_their_container() -> None:
    tiers = MemoryTiers()
    given: list[int] = []
    for _ in range(3):
        async with running(tiers) as container:
            ids = ProducerIds(tables=container, wall_clock=SystemWallClock())
            await ids.start()
            given += [await ids.next() for _ in range(1_001)]
    assert given == sorted(set(given))
