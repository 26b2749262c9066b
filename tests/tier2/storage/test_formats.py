"""Stored bytes: golden samples of the manifest and of a run, and what parsing refuses."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, NewerFormatError
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    ContainerId,
    Epoch,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import SegmentRecord
from tier2.container_objects import ObjectIdentity, ObjectKind, ObjectNames
from tier2.layout_entry import LayoutEntry
from tier2.manifest.manifest import Manifest, decode_manifest
from tier2.sst.keyspace import (
    attribute_key,
    catalog_key,
    decode_attribute,
    decode_record,
    encode_attribute,
    encode_garbage,
    encode_id,
    encode_record,
    garbage_key,
    layout_key,
    record_key,
    reference_key,
)
from tier2.sst.sst_format import (
    SstBlock,
    SstBuilder,
    SstPart,
    SstPartImage,
    SstPartIndex,
    encode_block,
    seal,
    unseal,
    verify_part,
)

GOLDEN = Path(__file__).parents[2] / "golden"
IDENTITY = ObjectIdentity(5, 0x9F3A01C2, 17)
RECORD = SegmentRecord(
    segment_id=SegmentId(7),
    name="scope/stream/0",
    start_offset=3,
    length=1 << 40,
    sealed=True,
    last_modified_ms=1_700_000_000_000,
    sequence_number=SequenceNumber(99),
    core_attributes={AttributeKey(CORE_ATTRIBUTE_PREFIX + bytes(8)): -2},
    extended_attribute_count_is_zero=True,
)
ENTRY = LayoutEntry(3, 1 << 40, IDENTITY, 4096, 65536, 0xDEADBEEF, 0)


def sample_root() -> Manifest:
    part = SstPart(IDENTITY, 4711, 0x01020304, 12, 4000, b"ca", b"s\xff")
    other = SstPart(ObjectIdentity(6, 1, 2), 100, 5, 1, 50, b"t", b"t")
    return Manifest(
        store_id=b"S" * 16,
        log_id=b"L" * 20,
        container_id=ContainerId(3),
        container_count=8,
        epoch=Epoch(6),
        version=41,
        nonce=b"N" * 16,
        highest_segment_id=SegmentId(1000),
        highest_sequence_number=SequenceNumber(123_456_789),
        changes=38,
        ssts=((part, other), (SstPart(ObjectIdentity(1, 1, 1), 9, 9, 9, 9, b"a", b"z"),)),
    )


def sample_part() -> SstPartImage:
    builder = SstBuilder(block_bytes=128, part_bytes=1 << 20)
    value = encode_record(RECORD, no_extended_attribute=True)
    entries: dict[bytes, bytes | None] = {
        catalog_key("scope/stream/0"): encode_id(SegmentId(7)),
        catalog_key("removed"): None,
        garbage_key(ObjectKind.CHUNKS, ObjectIdentity(4, 1, 1)): encode_garbage(40),
        reference_key(IDENTITY, SegmentId(7), 1 << 40): b"",
        record_key(SegmentId(7)): value,
        attribute_key(SegmentId(7), AttributeKey(b"writer")): encode_attribute(-5),
        attribute_key(SegmentId(7), AttributeKey(b"writes")): encode_attribute(b"text"),
        layout_key(SegmentId(7), 1 << 40): ENTRY.encode(),
        record_key(SegmentId(8)): None,
    }
    builder.add(sorted(entries.items()))
    (image,) = builder.finish()
    return image


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / name).read_text())


def test_the_root_is_written_as_it_always_was() -> None:
    assert sample_root().encode() == golden("root_v2.hex")
    assert decode_manifest(golden("root_v2.hex")) == sample_root()


def of_a_later_version(manifest: bytes) -> bytes:
    later = manifest[:4] + b"\x00\x03" + manifest[6:] + b"and more"
    return later[:8] + crc32_of(later[:8] + later[12:]).to_bytes(4, "big") + later[12:]


def test_a_manifest_of_a_later_version_is_no_damage_and_a_flipped_version_is() -> None:
    later = of_a_later_version(sample_root().encode())
    with pytest.raises(NewerFormatError, match="use that version again format=3 known=2"):
        decode_manifest(later)
    with pytest.raises(CorruptedDataError, match="known version"):
        decode_manifest(later[:5] + b"\x07" + later[6:])


def test_a_root_of_before_changes_were_counted_had_as_many_as_versions() -> None:
    assert decode_manifest(golden("root_v1.hex")) == replace(sample_root(), changes=41)


def test_a_claim_is_no_change_of_the_root() -> None:
    manifest = sample_root()
    claimed = manifest.successor(nonce=b"C" * 16, ssts=manifest.ssts, epoch=Epoch(7))
    changed = claimed.successor(nonce=b"D" * 16, ssts=())
    assert [(each.version, each.changes) for each in (manifest, claimed, changed)] == [
        (41, 38),
        (42, 38),
        (43, 39),
    ]


def test_a_run_is_written_and_read_as_it_always_was() -> None:
    stored, image = golden("run_part_v1.hex"), sample_part()
    index_position = int.from_bytes(stored[-32:-24], "big")
    part = replace(
        image.named(IDENTITY),
        size=len(stored),
        file_crc32=int.from_bytes(stored[-8:-4], "big"),
        index_position=index_position,
    )
    verify_part(stored, part)
    assert stored[:8] == b"SSRN\0\1\0\0"
    assert blocks_of(stored, part) == blocks_of(b"".join(image.buffers), image.named(IDENTITY))


def blocks_of(content: bytes, part: SstPart) -> list[bytes]:
    """Uncompressed, because another version of the compressor may find other bytes for the same block."""
    index = SstPartIndex(part, content[part.index_position :])
    places = [index.block_place(number) for number in range(index.block_count)]
    return [unseal(content[position : position + size]) for position, size in places]


def test_every_flipped_bit_of_a_run_is_found() -> None:
    image = sample_part()
    content = b"".join(image.buffers)
    part = image.named(IDENTITY)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptedDataError):
            verify_part(bytes(flipped), part)


@pytest.mark.parametrize("names", [[b"c2", b"c1", b"c3"], [b"c1", b"c2", b"c2"]])
def test_keys_out_of_order_under_a_right_checksum_are_found(names: list[bytes]) -> None:
    builder = SstBuilder(block_bytes=1024, part_bytes=1 << 20)
    builder.add([(name, b"v") for name in names])
    (image,) = builder.finish()
    with pytest.raises(CorruptedDataError, match="out of order"):
        verify_part(b"".join(image.buffers), image.named(IDENTITY))


def test_a_kind_that_does_not_exist_and_a_removal_with_a_value_are_found() -> None:
    content = bytearray(encode_block([(b"a", b"v"), (b"b", None)]))
    kinds_at = 4 + 2 * 8
    for number, kind, found in ((1, 2, "unknown kind"), (0, 0, "has a value")):
        damaged = content[: kinds_at + number] + bytes([kind]) + content[kinds_at + number + 1 :]
        with pytest.raises(CorruptedDataError, match=found):
            SstBlock(bytes(damaged)).check()


def test_records_entries_and_values_come_back_as_they_went_in() -> None:
    value = encode_record(RECORD, no_extended_attribute=True)
    assert decode_record(SegmentId(7), value) == RECORD
    assert LayoutEntry.decode(ENTRY.end_offset, ENTRY.encode()) == ENTRY
    for attribute in (0, -(1 << 63), (1 << 63) - 1, b"", b"x" * 1024):
        assert decode_attribute(encode_attribute(attribute)) == attribute


def test_cut_off_or_longer_values_are_refused() -> None:
    value = encode_record(RECORD, no_extended_attribute=True)
    for damaged in (*(value[:length] for length in range(len(value))), value + b"\0"):
        with pytest.raises(CorruptedDataError):
            decode_record(SegmentId(7), damaged)
    for damaged in (b"", b"\0", b"\1\0\2x", b"\2", encode_attribute(1) + b"\0"):
        with pytest.raises(CorruptedDataError):
            decode_attribute(damaged)


def test_a_block_finds_every_key_and_no_other() -> None:
    entries = [(b"k%03d" % n, None if n % 7 == 0 else b"v" * n) for n in range(0, 300, 3)]
    block = SstBlock(unseal(seal(encode_block(entries))))
    block.check()
    assert block.slice(0, block.count) == entries
    assert block.slice(5, 9) == entries[5:9]
    for n in range(300):
        at = block.find(b"k%03d" % n)
        assert (at is not None) == (n % 3 == 0)
        if at is not None:
            assert (block.key(at), block.value(at)) == entries[at]


def test_a_long_run_goes_on_in_further_parts_in_order() -> None:
    entries = [(b"c%06d" % n, b"x" * 50) for n in range(2_000)]
    builder = SstBuilder(block_bytes=1024, part_bytes=16 << 10)
    for first in range(0, 2_000, 300):
        builder.add(entries[first : first + 300])
    images = builder.finish()
    assert len(images) > 4
    assert sum(image.entry_count for image in images) == 2_000
    for left, right in pairwise(images):
        assert left.last_key < right.first_key
    for number, image in enumerate(images):
        verify_part(b"".join(image.buffers), image.named(ObjectIdentity(1, 1, number)))


def test_object_keys_follow_the_stores_rules_and_come_back() -> None:
    names = ObjectNames(ContainerId(3))
    for kind in ObjectKind:
        key = names.key(kind, IDENTITY)
        assert names.identity(kind, key) == IDENTITY
        assert not key.startswith(names.manifest + "/")
    assert names.identity(ObjectKind.SST, names.key(ObjectKind.CHUNKS, IDENTITY)) is None
    assert names.identity(ObjectKind.SST, "containers/0003/runs/something") is None
    assert ObjectIdentity.decode(IDENTITY.encode()) == IDENTITY
