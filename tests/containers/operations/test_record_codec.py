"""Records: round trips of every type, golden bytes, and damage that is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.attributes.attribute_updates import merged_source_key
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    AppendOperation,
    DeleteOperation,
    MapSegmentOperation,
    MapTransactionOperation,
    MergeOperation,
    MetadataCheckpointOperation,
    Operation,
    OperationType,
    SealOperation,
    StorageCheckpointOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from containers.operations.record_codec import (
    decode_attributes,
    decode_record,
    encode_attributes,
    encode_record,
)
from containers.operations.snapshot_codec import decode_segment_snapshot, encode_segment_snapshot
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    EVENT_COUNT,
    AttributeKey,
    SegmentId,
    SequenceNumber,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "log_records_v1.hex"

keys = st.binary(min_size=1, max_size=255).map(AttributeKey)
values = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=1024)
changes = st.lists(st.tuples(keys, values), max_size=20)


def segment(segment_id: int, name: str = "a/b") -> SegmentMetadata:
    return SegmentMetadata(segment_id=SegmentId(segment_id), name=name)


def record_of(operation: Operation) -> bytes:
    return b"".join(encode_record(operation))


@given(
    data=st.binary(max_size=300),
    attributes=changes,
    seal=st.booleans(),
    events=st.none() | st.integers(0, (1 << 32) - 1),
    offset=st.integers(0, 1 << 62),
)
def test_an_append_survives_its_record(
    data: bytes,
    attributes: list[tuple[AttributeKey, int | bytes | None]],
    seal: bool,
    events: int | None,
    offset: int,
) -> None:
    operation = AppendOperation(segment(7), data)
    operation.sequence_number = SequenceNumber(12)
    operation.offset = offset
    operation.attributes = attributes or None
    operation.seal = seal
    operation.events = events if attributes else None
    operation.last_modified_ms = 1_700_000_000_123

    record = decode_record(memoryview(record_of(operation)))

    assert record.type is OperationType.APPEND
    assert (record.sequence_number, record.segment_id, record.offset) == (12, 7, offset)
    assert bytes(record.data) == data
    assert list(record.attributes) == attributes
    assert record.seal is seal
    assert record.events == operation.events
    assert record.last_modified_ms == 1_700_000_000_123


def every_operation() -> list[Operation]:
    source, target = segment(3, "s#transaction." + "0" * 32), segment(2, "täst/segment")
    append = AppendOperation(target, b"hello")
    append.offset, append.last_modified_ms, append.seal = 10, 99, True
    append.attributes = [
        (AttributeKey(b"writer"), 5),
        (AttributeKey(b"tag"), b"xyz"),
        (AttributeKey(b"x"), None),
    ]
    seal = SealOperation(source)
    seal.last_modified_ms = 100
    merge = MergeOperation(target, source)
    merge.offset, merge.length, merge.last_modified_ms = 15, 4, 101
    mapped = MapSegmentOperation(target, created=True, snapshot=encode_segment_snapshot(target))
    mapped.attributes = [(AttributeKey(b"k"), -1)]
    transaction = MapTransactionOperation(
        source, created=False, snapshot=encode_segment_snapshot(source), parent_name="s"
    )
    operations: list[Operation] = [
        append,
        seal,
        TruncateOperation(target, 8),
        merge,
        DeleteOperation(target),
        UpdateAttributesOperation(target, [(AttributeKey(b"k"), b"")]),
        mapped,
        transaction,
        MetadataCheckpointOperation([b"head", b"tail"]),
        StorageCheckpointOperation([(SegmentId(2), 15), (SegmentId(3), 0)]),
        declared_events(target),
        remembered_merge(target, source),
        StorageCheckpointOperation([(SegmentId(2), 19)], root_changes=812),
        MetadataCheckpointOperation([b"head", b"tail"], root_changes=813),
    ]
    for number, operation in enumerate(operations, start=1):
        operation.sequence_number = SequenceNumber(number)
    return operations


def declared_events(target: SegmentMetadata) -> AppendOperation:
    append = AppendOperation(target, bytes(24))
    append.offset, append.last_modified_ms, append.events = 19, 102, 3
    append.attributes = [(EVENT_COUNT, 9)]
    return append


def remembered_merge(target: SegmentMetadata, source: SegmentMetadata) -> MergeOperation:
    merge = MergeOperation(target, source)
    merge.offset, merge.length, merge.last_modified_ms = 43, 4, 103
    merge.attributes = [(merged_source_key(source.name), 47), (AttributeKey(b"tag"), None)]
    return merge


def test_every_operation_type_has_golden_bytes() -> None:
    lines = [record_of(operation).hex() for operation in every_operation()]
    assert lines == GOLDEN.read_text().split()


def test_every_golden_record_decodes_to_what_was_written() -> None:
    records = [
        decode_record(memoryview(bytes.fromhex(line))) for line in GOLDEN.read_text().split()
    ]
    assert [record.type for record in records] == [
        operation.type for operation in every_operation()
    ]
    append, seal, truncate, merge, delete, update, mapped, transaction, checkpoint, storage = (
        records[:10]
    )
    declared, remembered, with_changes, checkpoint_with_changes = records[10:]
    assert (checkpoint.root_changes, checkpoint_with_changes.root_changes) == (0, 813)
    assert bytes(checkpoint_with_changes.snapshot) == b"headtail"
    assert (storage.root_changes, with_changes.root_changes) == (0, 812)
    assert with_changes.storage_lengths == [(2, 19)]
    assert (declared.events, bytes(declared.data)) == (3, bytes(24))
    assert list(declared.attributes) == [(EVENT_COUNT, 9)]
    assert (remembered.source_id, remembered.offset, remembered.length) == (3, 43, 4)
    assert [value for _, value in remembered.attributes] == [47, None]
    assert (append.segment_id, append.offset, bytes(append.data), append.seal) == (
        2,
        10,
        b"hello",
        True,
    )
    assert list(append.attributes) == [(b"writer", 5), (b"tag", b"xyz"), (b"x", None)]
    assert (seal.segment_id, seal.last_modified_ms) == (3, 100)
    assert (truncate.segment_id, truncate.offset) == (2, 8)
    assert (merge.segment_id, merge.source_id, merge.offset, merge.length) == (2, 3, 15, 4)
    assert delete.segment_id == 2
    assert list(update.attributes) == [(b"k", b"")]
    assert mapped.created
    assert list(mapped.attributes) == [(b"k", -1)]
    assert decode_segment_snapshot(mapped.snapshot)[0].name == "täst/segment"
    assert not transaction.created
    assert transaction.parent_name == "s"
    assert bytes(checkpoint.snapshot) == b"headtail"
    assert list(storage.storage_lengths) == [(2, 15), (3, 0)]


@pytest.mark.parametrize("cut", [1, 5, 15, 17, 40, 60])
def test_a_record_that_is_cut_short_is_refused(cut: int) -> None:
    whole = record_of(every_operation()[0])
    with pytest.raises(DataCorruptionError):
        decode_record(memoryview(whole[:cut]))


def test_a_record_with_bytes_too_many_is_refused() -> None:
    with pytest.raises(DataCorruptionError):
        decode_record(memoryview(record_of(every_operation()[1]) + b"x"))


def test_a_record_of_unknown_type_is_refused() -> None:
    damaged = bytearray(record_of(every_operation()[4]))
    damaged[4] = 77
    with pytest.raises(DataCorruptionError):
        decode_record(memoryview(damaged))


@given(
    name=st.text(min_size=1, max_size=50),
    numbers=st.lists(st.integers(0, 1 << 62), min_size=3, max_size=3),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    core=st.dictionaries(
        st.binary(min_size=8, max_size=8).map(lambda b: AttributeKey(CORE_ATTRIBUTE_PREFIX + b)),
        st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=20),
        max_size=5,
    ),
)
def test_a_segment_snapshot_survives(
    name: str,
    numbers: list[int],
    flags: tuple[bool, ...],
    core: dict[AttributeKey, int | bytes],
) -> None:
    storage, start, length = sorted(numbers)
    before = SegmentMetadata(segment_id=SegmentId(9), name=name)
    before.length, before.start_offset, before.storage_length = length, start, storage
    before.sealed, before.sealed_in_storage, before.merged, before.deleted, complete = flags
    before.attributes.complete = complete
    before.attributes.core_values.update(core)
    before.reset_pending()

    after, end = decode_segment_snapshot(memoryview(encode_segment_snapshot(before)))

    assert end == len(encode_segment_snapshot(before))
    for field in ("name", "segment_id", "length", "start_offset", "storage_length", "sealed"):
        assert getattr(after, field) == getattr(before, field)
    assert (after.merged, after.deleted) == (before.merged, before.deleted)
    assert after.sealed_in_storage == before.sealed_in_storage
    assert after.attributes.core() == core
    assert after.attributes.complete == complete


def test_h28_a_snapshot_holds_the_pending_state() -> None:
    changed = segment(4)
    changed.pending_length = 10
    changed.pending_sealed = True
    changed.attributes.accept(
        [(AttributeKey(CORE_ATTRIBUTE_PREFIX + b"12345678"), 3)], SequenceNumber(1)
    )

    after, _ = decode_segment_snapshot(memoryview(encode_segment_snapshot(changed)))

    assert (after.length, after.sealed) == (10, True)
    assert list(after.attributes.core().values()) == [3]


@given(st.lists(st.binary(min_size=1, max_size=9000), max_size=4))
def test_attribute_keys_of_any_length_survive(keys: list[bytes]) -> None:
    changes = [(AttributeKey(key), number) for number, key in enumerate(keys)]
    encoded = encode_attributes(changes)
    assert decode_attributes(memoryview(encoded), 0, len(changes)) == (changes, len(encoded))


def test_a_short_attribute_key_in_the_form_of_long_ones_is_corruption() -> None:
    encoded = b"\x00" + (3).to_bytes(2, "little") + b"key\x00"
    with pytest.raises(DataCorruptionError):
        decode_attributes(memoryview(encoded), 0, 1)
