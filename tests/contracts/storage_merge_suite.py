"""What every Storage keeps of segments that are merged, deleted and created again."""

import pytest

from segmentstore.contracts.errors import (
    ServiceHaltError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    SegmentId,
)
from tests.contracts.claimed_storage import ClaimedStorage
from tests.contracts.storage_publications import (
    StorageBacking,
    change,
    data,
    listed,
    merge,
    read_all,
    round_of,
)


class StorageMergeSuite(ClaimedStorage):
    """Part of StorageSuite."""

    async def test_h17_a_merge_moves_the_bytes_and_drops_the_source_in_one_round(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(1, "target", length=3, sequence_number=1, pieces=[data(0, b"abc")]),
                change(
                    2, "source", length=4, sequence_number=2, sealed=True, pieces=[data(0, b"wxyz")]
                ),
            )
        )
        await storage.publish(
            round_of(
                change(
                    1,
                    "target",
                    length=9,
                    sequence_number=5,
                    pieces=[data(3, b"d"), merge(4, 2, 4), data(8, b"e")],
                ),
                change(2, "source", length=4, sequence_number=4, sealed=True, deleted=True),
            )
        )
        for reader in (storage, await self.claimed(backing, 2)):
            assert await reader.find("source") is None
            assert await reader.load([SegmentId(2)]) == {}
            assert await read_all(reader, 1, 0, 9) == b"abcdwxyze"
            assert [record.name for record in await listed(reader)] == ["target"]

    async def test_h17_chains_of_merges_and_unflushed_sources_go_into_one_round(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(1, "a", length=2, sequence_number=1, sealed=True, pieces=[data(0, b"aa")])
            )
        )
        await storage.publish(
            round_of(
                change(3, "c", length=6, sequence_number=8, pieces=[data(0, b"c"), merge(1, 2, 5)]),
                change(
                    2,
                    "b",
                    length=5,
                    sequence_number=7,
                    sealed=True,
                    deleted=True,
                    pieces=[data(0, b"bb"), merge(2, 1, 2), data(4, b"B")],
                ),
                change(1, "a", length=2, sequence_number=6, sealed=True, deleted=True),
            )
        )
        assert await read_all(storage, 3, 0, 6) == b"cbbaaB"
        assert [record.name for record in await listed(storage)] == ["c"]

    async def test_h17_a_moved_segment_can_be_merged_truncated_and_deleted_again(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                *(
                    change(
                        n,
                        f"s{n}",
                        length=3,
                        sequence_number=n,
                        pieces=[data(0, bytes([64 + n]) * 3)],
                    )
                    for n in (1, 2, 3)
                )
            )
        )
        await storage.publish(
            round_of(
                change(2, "s2", length=6, sequence_number=4, pieces=[merge(3, 1, 3)]),
                change(1, "s1", length=3, sequence_number=4, deleted=True),
                highest_id=3,
            )
        )
        await storage.publish(
            round_of(
                change(
                    3, "s3", length=9, sequence_number=5, start_offset=4, pieces=[merge(3, 2, 6)]
                ),
                change(2, "s2", length=6, sequence_number=5, deleted=True),
            )
        )
        assert await read_all(storage, 3, 4, 9) == b"BBAAA"
        await storage.publish(round_of(change(3, "s3", length=9, sequence_number=6, deleted=True)))
        assert await listed(storage) == []

    async def test_a_merge_of_anything_but_the_whole_source_halts(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(1, "t", length=0, sequence_number=1),
                change(2, "s", length=4, sequence_number=2, pieces=[data(0, b"wxyz")]),
            )
        )
        with pytest.raises(ServiceHaltError, match="merges part of a source"):
            await storage.publish(
                round_of(
                    change(1, "t", length=3, sequence_number=4, pieces=[merge(0, 2, 3)]),
                    change(2, "s", length=4, sequence_number=4, deleted=True),
                )
            )

    async def test_h20_a_recreated_name_gets_nothing_of_the_deleted_segment(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        key = AttributeKey(b"writer")
        await storage.publish(
            round_of(
                change(
                    1,
                    "a",
                    length=3,
                    sequence_number=1,
                    pieces=[data(0, b"old")],
                    attributes={key: 1},
                )
            )
        )
        await storage.publish(
            round_of(
                change(1, "a", length=3, sequence_number=2, deleted=True),
                change(2, "a", length=2, sequence_number=3, pieces=[data(0, b"ne")]),
            )
        )
        for reader in (storage, await self.claimed(backing, 2)):
            record = await reader.find("a")
            assert record is not None
            assert (record.segment_id, record.length) == (2, 2)
            assert await reader.load_attributes(SegmentId(2), None) == {}
            assert await reader.load_attributes(SegmentId(1), None) == {}
            assert await reader.load([SegmentId(1)]) == {}

    async def test_h20_a_late_delete_of_the_old_id_leaves_the_new_one_alone(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(round_of(change(1, "a", length=0, sequence_number=1)))
        await storage.publish(round_of(change(2, "a", length=0, sequence_number=3)))
        await storage.publish(
            round_of(
                change(1, "a", length=0, sequence_number=2, deleted=True),
                highest_id=2,
                highest_sequence=3,
            )
        )
        record = await storage.find("a")
        assert record is not None
        assert record.segment_id == 2
        assert [record.segment_id for record in await listed(storage)] == [2]

    async def test_a_segment_that_was_never_published_may_be_deleted(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(round_of(change(1, "a", length=7, sequence_number=1, deleted=True)))
        assert await storage.find("a") is None
