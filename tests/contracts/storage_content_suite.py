"""What every Storage keeps of bytes: S3 and the rules of truncation."""

import pytest

from segmentstore.contracts.errors import (
    SegmentNotFoundError,
    SegmentTruncatedError,
    ServiceHaltError,
)
from segmentstore.contracts.identifiers import (
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import (
    Publication,
    SegmentPublication,
)
from tests.contracts.claimed_storage import ClaimedStorage
from tests.contracts.storage_publications import (
    StorageBacking,
    change,
    data,
    merge,
    read_all,
    round_of,
    wrong,
)


class StorageContentSuite(ClaimedStorage):
    """Part of StorageSuite."""

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

    @pytest.mark.parametrize(("segment_id", "sequence_number"), [(3, 2), (2, 3), (0, 2)])
    async def test_s3_numbers_above_the_highest_named_halt(
        self, backing: StorageBacking, segment_id: int, sequence_number: int
    ) -> None:
        """A recovery from Tier 2 alone goes on above the highest: it would give these out again."""
        storage = await self.claimed(backing)
        above = change(segment_id, "a", length=0, sequence_number=sequence_number)
        with pytest.raises(ServiceHaltError, match="above the highest named"):
            await storage.publish(Publication([above], SegmentId(2), SequenceNumber(2)))
        assert await storage.find("a") is None

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
        for offset, length in ((3, 1), (9, 1), (0, 0)):
            with pytest.raises(ValueError, match="publi"):
                await storage.read(SegmentId(1), offset, length)
        with pytest.raises(SegmentNotFoundError):
            await storage.read(SegmentId(2), 0, 1)

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
