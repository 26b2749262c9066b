"""What every Storage keeps of attributes and names, and what it says of itself."""

from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    SegmentId,
)
from tests.contracts.claimed_storage import ClaimedStorage
from tests.contracts.storage_publications import (
    StorageBacking,
    change,
    data,
    listed,
    read_all,
    round_of,
)


class StorageAttributeSuite(ClaimedStorage):
    """Part of StorageSuite."""

    async def test_attributes_change_with_their_round_and_none_removes_one(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        number, text, gone = AttributeKey(b"n"), AttributeKey(b"t" * 255), AttributeKey(b"g")
        core = AttributeKey(CORE_ATTRIBUTE_PREFIX + bytes(8))
        await storage.publish(
            round_of(
                change(
                    1,
                    "a",
                    length=0,
                    sequence_number=1,
                    attributes={number: -5, text: b"x" * 1024, gone: 1},
                    core_attributes={core: 1 << 62},
                )
            )
        )
        await storage.publish(
            round_of(
                change(
                    1,
                    "a",
                    length=0,
                    sequence_number=2,
                    attributes={number: 6, gone: None},
                    core_attributes={core: -(1 << 63)},
                )
            )
        )
        for reader in (storage, await self.claimed(backing, 2)):
            assert await reader.load_attributes(SegmentId(1), None) == {
                number: 6,
                text: b"x" * 1024,
            }
            assert await reader.load_attributes(SegmentId(1), [gone, number]) == {number: 6}
            record = await reader.find("a")
            assert record is not None
            assert record.core_attributes == {core: -(1 << 63)}
            assert not record.extended_attribute_count_is_zero

    async def test_h67_attributes_are_scanned_in_key_order_over_all_rounds(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        truth: dict[AttributeKey, int] = {}
        for number in range(1, 8):
            changes: dict[AttributeKey, int | None] = {
                AttributeKey(b"k%02d" % (n * number % 50)): number for n in range(20)
            }
            changes[AttributeKey(b"k%02d" % number)] = None
            changes[AttributeKey(b"l" * 8000)] = number
            truth.update({key: value for key, value in changes.items() if value is not None})
            truth.pop(AttributeKey(b"k%02d" % number), None)
            await storage.publish(
                round_of(
                    change(1, "a", length=0, sequence_number=number, attributes=changes),
                    change(2, "b", length=0, sequence_number=number, attributes=changes),
                )
            )
        first, end = AttributeKey(b"k1"), AttributeKey(b"l" * 8001)
        expected = [(key, value) for key, value in sorted(truth.items()) if first <= key < end]
        for reader in (storage, await self.claimed(backing, 2)):
            for count in (1, 3, 1000):
                found: list[tuple[AttributeKey, object]] = []
                start: AttributeKey | None = first
                while start is not None:
                    page = await reader.scan_attributes(
                        SegmentId(1), start=start, end=end, count=count
                    )
                    assert page.following is None or page.following > start
                    found += page.values
                    start = page.following
                assert found == expected
            nothing = await reader.scan_attributes(SegmentId(9), start=first, end=end, count=5)
            assert (list(nothing.values), nothing.following) == ([], None)

    async def test_a_record_says_whether_an_extended_attribute_was_ever_published(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        key = AttributeKey(b"k")
        await storage.publish(round_of(change(1, "a", length=0, sequence_number=1)))
        assert (await storage.load([SegmentId(1)]))[SegmentId(1)].extended_attribute_count_is_zero
        await storage.publish(
            round_of(change(1, "a", length=0, sequence_number=2, attributes={key: 1}))
        )
        await storage.publish(
            round_of(change(1, "a", length=0, sequence_number=3, attributes={key: None}))
        )
        record = (await storage.load([SegmentId(1)]))[SegmentId(1)]
        assert not record.extended_attribute_count_is_zero

    async def test_segments_are_listed_by_prefix_from_a_name_on(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        names = ["", "a", "a/b", "a/b/c", "ab", "b", "ä", "\U0001f600"]
        await storage.publish(
            round_of(
                *(
                    change(n, name, length=0, sequence_number=n)
                    for n, name in enumerate(names, start=1)
                    if name
                )
            )
        )
        ordered = sorted(names[1:])
        assert [record.name for record in await listed(storage)] == ordered
        for prefix, start_after in (("a", ""), ("a/", "a/b"), ("a", "a/b"), ("", "b"), ("a", "z")):
            assert [record.name for record in await listed(storage, prefix, start_after)] == [
                name for name in ordered if name.startswith(prefix) and name > start_after
            ]

    async def test_maintenance_changes_nothing_that_can_be_read(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        key = AttributeKey(b"k")
        for number in range(1, 60):
            await storage.publish(
                round_of(
                    change(
                        1,
                        "a",
                        length=number,
                        sequence_number=number,
                        pieces=[data(number - 1, bytes([number]))],
                        attributes={key: number},
                    ),
                    change(number + 1, f"s{number}", length=0, sequence_number=number),
                )
            )
            while await storage.maintain():
                pass
        assert storage.statistics().run_count < 20
        for reader in (storage, await self.claimed(backing, 2)):
            assert await read_all(reader, 1, 0, 59) == bytes(range(1, 60))
            assert await reader.load_attributes(SegmentId(1), None) == {key: 59}
            assert len(await listed(reader)) == 60

    async def test_statistics_say_what_was_stored(self, backing: StorageBacking) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(change(1, "a", length=9000, sequence_number=1, pieces=[data(0, b"x" * 9000)]))
        )
        statistics = storage.statistics()
        assert statistics.root_version == 2
        assert statistics.run_count == 1
        assert statistics.stored_bytes_before_compression == 9000
        assert 0 < statistics.stored_bytes_after_compression < 9000
        assert statistics.puts >= 3
        assert statistics.checksum_failures == 0
