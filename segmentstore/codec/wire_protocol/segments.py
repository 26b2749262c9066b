"""How segments are created, sealed, truncated, merged and deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import (
    CLIENT_LIST_ITEMS_MAX,
    INT64,
    TEXT,
    Field,
    FieldCursor,
    Int8,
    Int32,
    Int64,
    ProtocolError,
    Text,
    list_of,
)


@dataclass(frozen=True, slots=True)
class AttributeChange:
    """A condition on an attribute of a merge target, and what it becomes.

    Bytes: attribute id (16), update type (1), new value (8), old value (8).
    """

    attribute_id: bytes
    update_type: int
    """0 none, 1 replace, 2 replace if greater, 3 accumulate, 4 replace if equals."""
    new_value: int
    old_value: int


def _write_change(change: AttributeChange) -> bytes:
    if len(change.attribute_id) != 16 or not 0 <= change.update_type <= 4:
        raise ProtocolError(f"not an attribute change {change!r}")
    return (
        change.attribute_id
        + change.update_type.to_bytes(1, "big")
        + INT64.write(change.new_value)
        + INT64.write(change.old_value)
    )


def _read_change(cursor: FieldCursor) -> AttributeChange:
    attribute_id = cursor.take(16)
    update_type = cursor.int8()
    if not 0 <= update_type <= 4:
        raise ProtocolError(f"unknown kind of attribute update type={update_type}")
    return AttributeChange(attribute_id, update_type, cursor.int64(), cursor.int64())


Sources: TypeAlias = Annotated[
    Sequence[str], list_of(TEXT, item_bytes_min=2, items_max=CLIENT_LIST_ITEMS_MAX)
]


@dataclass(frozen=True, slots=True)
class MergedSource:
    """One source of a batch and the target's length behind it. Bytes: name (text), length (8)."""

    segment: str
    target_length: int


def _write_source(source: MergedSource) -> bytes:
    return TEXT.write(source.segment) + INT64.write(source.target_length)


def _read_source(cursor: FieldCursor) -> MergedSource:
    return MergedSource(cursor.text(), cursor.int64())


AttributeChanges: TypeAlias = Annotated[
    Sequence[AttributeChange],
    list_of(
        Field(_write_change, _read_change),
        item_bytes_min=33,
        items_max=CLIENT_LIST_ITEMS_MAX,
    ),
]
MergedSources: TypeAlias = Annotated[
    Sequence[MergedSource], list_of(Field(_write_source, _read_source), item_bytes_min=10)
]


@dataclass(frozen=True, slots=True)
class CreateSegment(Command):
    """Answer: SegmentCreated. Scale types: 0 fixed, 1 kilobytes per second, 2 events per second."""

    type: ClassVar[int] = 20
    request_id: Int64
    segment: Text
    target_rate: Int32
    scale_type: Int8
    delegation_token: Text
    rollover_bytes: Int64 = 0


@dataclass(frozen=True, slots=True)
class SegmentCreated(Command):
    """A segment exists now."""

    type: ClassVar[int] = 21
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class SealSegment(Command):
    """No appends any more. Answer: SegmentSealed."""

    type: ClassVar[int] = 28
    request_id: Int64
    segment: Text
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentSealed(Command):
    """The segment is sealed."""

    type: ClassVar[int] = 29
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class DeleteSegment(Command):
    """Answer: SegmentDeleted."""

    type: ClassVar[int] = 30
    request_id: Int64
    segment: Text
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentDeleted(Command):
    """The segment, table or not, is gone."""

    type: ClassVar[int] = 31
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class UpdateSegmentPolicy(Command):
    """Answer: SegmentPolicyUpdated."""

    type: ClassVar[int] = 32
    request_id: Int64
    segment: Text
    target_rate: Int32
    scale_type: Int8
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentPolicyUpdated(Command):
    """The scale policy is stored."""

    type: ClassVar[int] = 33
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class TruncateSegment(Command):
    """Drop what lies below an offset. Answer: SegmentTruncated."""

    type: ClassVar[int] = 38
    request_id: Int64
    segment: Text
    truncation_offset: Int64
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentTruncated(Command):
    """The segment starts where it was asked to."""

    type: ClassVar[int] = 39
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class MergeSegments(Command):
    """Append a source to a target and remove it, atomically. Answer: SegmentsMerged; SegmentAttributeUpdated without
    success if an attribute is not as a change wants it."""

    type: ClassVar[int] = 58
    request_id: Int64
    target: Text
    source: Text
    delegation_token: Text
    attribute_changes: AttributeChanges = ()


@dataclass(frozen=True, slots=True)
class SegmentsMerged(Command):
    """The source is part of the target now."""

    type: ClassVar[int] = 59
    request_id: Int64
    target: Text
    source: Text
    target_length: Int64


@dataclass(frozen=True, slots=True)
class MergeSegmentsBatch(Command):
    """Merge several sources in order. Answer: SegmentsBatchMerged."""

    type: ClassVar[int] = 90
    request_id: Int64
    target: Text
    sources: Sources
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class SegmentsBatchMerged(Command):
    """The target's length behind each source; a source that was gone before counts as merged."""

    type: ClassVar[int] = 91
    request_id: Int64
    target: Text
    sources: MergedSources
