"""What every Storage keeps (segmentstore/contracts/storage.py, S1 to S5). Subclass StorageSuite and hand in a backing.

The tests speak the door alone: whatever they know of the store behind it comes from another owner or reader.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentTruncatedError,
    ServiceHaltError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    AttributeValue,
    Epoch,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import (
    DataPiece,
    MergePiece,
    Piece,
    Publication,
    ReadOnlyStorage,
    SegmentPublication,
    SegmentRecord,
    Storage,
)

LOG_ID = b"\x11" * 16


class StorageBacking(Protocol):
    """Where owners come from: each new one finds what the earlier ones published."""

    def new_owner(self) -> Storage: ...

    def new_owner_of_another_store(self) -> Storage:
        """With another store id over the same objects."""

    def new_owner_with_another_count(self) -> Storage:
        """With another container count."""


def change(
    segment_id: int,
    name: str,
    *,
    length: int,
    sequence_number: int,
    pieces: Sequence[Piece] = (),
    start_offset: int = 0,
    sealed: bool = False,
    deleted: bool = False,
    attributes: Mapping[AttributeKey, AttributeValue | None] | None = None,
    core_attributes: Mapping[AttributeKey, AttributeValue] | None = None,
) -> SegmentPublication:
    """A publication of one segment."""
    record = SegmentRecord(
        segment_id=SegmentId(segment_id),
        name=name,
        start_offset=start_offset,
        length=length,
        sealed=sealed,
        last_modified_ms=1_700_000_000_000 + sequence_number,
        sequence_number=SequenceNumber(sequence_number),
        core_attributes=core_attributes or {},
    )
    return SegmentPublication(
        record=record, pieces=pieces, attributes=attributes or {}, deleted=deleted
    )


def round_of(
    *segments: SegmentPublication, highest_id: int = 0, highest_sequence: int = 0
) -> Publication:
    """One flush round; the highest numbers are those of its segments unless they are given."""
    ids = [segment.record.segment_id for segment in segments]
    sequences = [segment.record.sequence_number for segment in segments]
    return Publication(
        segments=segments,
        highest_segment_id=SegmentId(max([*ids, highest_id])),
        highest_sequence_number=SequenceNumber(max([*sequences, highest_sequence])),
    )


def data(offset: int, *runs: bytes) -> DataPiece:
    return DataPiece(offset=offset, runs=runs)


def merge(offset: int, source_id: int, length: int) -> MergePiece:
    return MergePiece(offset=offset, source_id=SegmentId(source_id), length=length)


async def read_all(
    storage: ReadOnlyStorage, segment_id: int, start: int, end: int, *, step: int = 1 << 20
) -> bytes:
    """The bytes [start, end) by as many reads as it takes; every read must be right as a whole."""
    found = bytearray()
    offset = start
    while offset < end:
        read = await storage.read(SegmentId(segment_id), offset, min(step, end - offset))
        piece = read.content[offset - read.offset :]
        assert len(piece) > 0
        piece = piece[: end - offset]
        found += piece
        offset += len(piece)
    return bytes(found)


async def listed(
    storage: ReadOnlyStorage, prefix: str = "", start_after: str = ""
) -> list[SegmentRecord]:
    async with aclosing(storage.list_segments(prefix, start_after)) as records:
        return [record async for record in records]


def wrong(
    *,
    name: str = "a",
    length: int = 5,
    sequence_number: int = 2,
    start_offset: int = 2,
    pieces: Sequence[Piece] = (),
) -> SegmentPublication:
    """A change of segment 1 where everything that is not given would be right."""
    return change(
        1,
        name,
        length=length,
        sequence_number=sequence_number,
        start_offset=start_offset,
        pieces=pieces,
    )


class StorageSuite:
    """Subclasses provide the fixture `backing`."""

    async def claimed(self, backing: StorageBacking, epoch: int = 1) -> Storage:
        storage = backing.new_owner()
        await storage.claim(epoch=Epoch(epoch), log_id=LOG_ID)
        return storage

    async def test_the_first_claim_creates_the_root_and_the_next_one_finds_it(
        self, backing: StorageBacking
    ) -> None:
        first = await backing.new_owner().claim(epoch=Epoch(3), log_id=LOG_ID)
        second = await backing.new_owner().claim(epoch=Epoch(4), log_id=LOG_ID)
        assert (first.created, first.epoch) == (True, 3)
        assert (second.created, second.epoch) == (False, 4)
        assert second.version > first.version

    async def test_what_was_published_is_found_loaded_and_read(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(7, "a/b", length=8, sequence_number=5, pieces=[data(0, b"abc", b"defgh")])
            )
        )
        for reader in (storage, await self.claimed(backing, 2)):
            record = await reader.find("a/b")
            assert record is not None
            assert (record.segment_id, record.length, record.sequence_number) == (7, 8, 5)
            assert await reader.load([SegmentId(7), SegmentId(8)]) == {7: record}
            assert await read_all(reader, 7, 0, 8) == b"abcdefgh"
            assert await read_all(reader, 7, 3, 5) == b"de"
            assert await reader.find("a") is None

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

    async def test_h62_a_claim_with_another_container_count_is_refused(
        self, backing: StorageBacking
    ) -> None:
        await self.claimed(backing)
        with pytest.raises(InvalidRequestError, match="container count differs"):
            await backing.new_owner_with_another_count().claim(epoch=Epoch(2), log_id=LOG_ID)

    async def test_bytes_grow_round_by_round_and_read_back_from_any_offset(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        whole = b""
        for number in range(1, 12):
            piece = bytes([number]) * (number * 37)
            whole_before, whole = whole, whole + piece
            await storage.publish(
                round_of(
                    change(
                        1,
                        "a",
                        length=len(whole),
                        sequence_number=number,
                        pieces=[data(len(whole_before), piece)],
                    )
                )
            )
        for offset in range(0, len(whole), 111):
            assert await read_all(storage, 1, offset, len(whole)) == whole[offset:]

    @pytest.mark.parametrize(
        ("refused", "why"),
        [
            (wrong(length=4), "shrinks"),
            (wrong(length=8), "ends before its length"),
            (wrong(length=9, pieces=[data(6, b"xyz")]), "gap"),
            (wrong(length=7, pieces=[data(4, b"xyz")]), "gap"),
            (wrong(length=6, pieces=[data(5, b"xyz")]), "ends before"),
            (wrong(name="b"), "another name"),
            (wrong(sequence_number=0), "sequence number goes back"),
            (wrong(start_offset=1), "start offset goes back"),
            (wrong(start_offset=6), "past the end"),
            (
                change(2, "t", length=5, sequence_number=2, pieces=[merge(0, 1, 5)]),
                "source that stays",
            ),
        ],
    )
    async def test_s3_a_publication_that_contradicts_what_is_published_halts(
        self, backing: StorageBacking, refused: SegmentPublication, why: str
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(
                    1, "a", length=5, sequence_number=1, start_offset=2, pieces=[data(0, b"01234")]
                )
            )
        )
        with pytest.raises(ServiceHaltError, match=why):
            await storage.publish(round_of(refused, highest_sequence=2))
        assert await read_all(storage, 1, 2, 5) == b"234"

    async def test_a_sealed_segment_takes_no_more_bytes(self, backing: StorageBacking) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(
                change(1, "a", length=1, sequence_number=1, sealed=True, pieces=[data(0, b"x")])
            )
        )
        record = await storage.find("a")
        assert record is not None
        assert record.sealed
        with pytest.raises(ServiceHaltError, match="is sealed"):
            await storage.publish(
                round_of(
                    change(1, "a", length=2, sequence_number=2, sealed=True, pieces=[data(1, b"y")])
                )
            )

    async def test_a_read_outside_the_published_bytes_is_refused(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(change(1, "a", length=3, sequence_number=1, pieces=[data(0, b"abc")]))
        )
        for segment_id, offset, length in ((1, 3, 1), (1, 9, 1), (1, 0, 0), (2, 0, 1)):
            with pytest.raises(ValueError, match="publi"):
                await storage.read(SegmentId(segment_id), offset, length)

    async def test_h19_truncated_bytes_are_never_served_and_the_rest_is(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        for number in range(3):
            await storage.publish(
                round_of(
                    change(
                        1,
                        "a",
                        length=4 * (number + 1),
                        sequence_number=number + 1,
                        pieces=[data(4 * number, bytes([number]) * 4)],
                    )
                )
            )
        await storage.publish(
            round_of(change(1, "a", length=12, sequence_number=4, start_offset=5))
        )
        for reader in (storage, await self.claimed(backing, 2)):
            with pytest.raises(SegmentTruncatedError):
                await reader.read(SegmentId(1), 4, 1)
            read = await reader.read(SegmentId(1), 5, 100)
            assert read.offset == 5
            assert await read_all(reader, 1, 5, 12) == b"\x01\x01\x01\x02\x02\x02\x02"

    async def test_h19_bytes_truncated_before_they_were_flushed_are_skipped_by_one_publication(
        self, backing: StorageBacking
    ) -> None:
        storage = await self.claimed(backing)
        await storage.publish(
            round_of(change(1, "a", length=4, sequence_number=1, pieces=[data(0, b"0123")]))
        )
        await storage.publish(
            round_of(
                change(
                    1, "a", length=12, sequence_number=2, start_offset=9, pieces=[data(9, b"9ab")]
                )
            )
        )
        assert await read_all(storage, 1, 9, 12) == b"9ab"
        with pytest.raises(SegmentTruncatedError):
            await storage.read(SegmentId(1), 8, 1)

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
