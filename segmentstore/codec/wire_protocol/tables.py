"""Table segments: keys, values and versions."""

from dataclasses import dataclass
from typing import ClassVar, Final

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import Blob, Flag, Int32, Int64, Int64s, Text
from segmentstore.codec.wire_protocol.table_entries import Entries, Iterator, Keys

NO_TABLE_OFFSET: Final = -1
"""As the expected length of a table: whatever it is."""


@dataclass(frozen=True, slots=True)
class CreateTableSegment(Command):
    """Answer: SegmentCreated. A key length of 0 asks for the hash layout."""

    type: ClassVar[int] = 70
    request_id: Int64
    segment: Text
    delegation_token: Text
    sorted_deprecated: Flag = False
    key_length: Int32 = 0
    rollover_bytes: Int64 = 0


@dataclass(frozen=True, slots=True)
class DeleteTableSegment(Command):
    """Answer: SegmentDeleted."""

    type: ClassVar[int] = 71
    request_id: Int64
    segment: Text
    must_be_empty: Flag
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class GetTableSegmentInfo(Command):
    """Answer: TableSegmentInfo."""

    type: ClassVar[int] = 68
    request_id: Int64
    segment: Text
    delegation_token: Text


@dataclass(frozen=True, slots=True)
class TableSegmentInfo(Command):
    """The state of a table."""

    type: ClassVar[int] = 69
    request_id: Int64
    segment: Text
    start_offset: Int64
    length: Int64
    entry_count: Int64
    key_length: Int32


@dataclass(frozen=True, slots=True)
class UpdateTableEntries(Command):
    """Set entries, all or none. Answer: TableEntriesUpdated."""

    type: ClassVar[int] = 74
    request_id: Int64
    segment: Text
    delegation_token: Text
    entries: Entries
    table_offset: Int64 = NO_TABLE_OFFSET


@dataclass(frozen=True, slots=True)
class TableEntriesUpdated(Command):
    """The new version of each entry, in order."""

    type: ClassVar[int] = 75
    request_id: Int64
    versions: Int64s


@dataclass(frozen=True, slots=True)
class RemoveTableKeys(Command):
    """Remove keys, all or none. Answer: TableKeysRemoved."""

    type: ClassVar[int] = 76
    request_id: Int64
    segment: Text
    delegation_token: Text
    keys: Keys
    table_offset: Int64 = NO_TABLE_OFFSET


@dataclass(frozen=True, slots=True)
class TableKeysRemoved(Command):
    """The keys are gone."""

    type: ClassVar[int] = 77
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class ReadTable(Command):
    """Look up keys. Answer: TableRead."""

    type: ClassVar[int] = 78
    request_id: Int64
    segment: Text
    delegation_token: Text
    keys: Keys


@dataclass(frozen=True, slots=True)
class TableRead(Command):
    """An entry for every key, in order; a missing one has version -1 and no value."""

    type: ClassVar[int] = 79
    request_id: Int64
    segment: Text
    entries: Entries


@dataclass(frozen=True, slots=True)
class ReadTableKeys(Command):
    """Some keys of an iteration. Answer: TableKeysRead."""

    type: ClassVar[int] = 83
    request_id: Int64
    segment: Text
    delegation_token: Text
    suggested_count: Int32
    iterator: Iterator


@dataclass(frozen=True, slots=True)
class TableKeysRead(Command):
    """Keys with their versions, and where the iteration goes on."""

    type: ClassVar[int] = 84
    request_id: Int64
    segment: Text
    keys: Keys
    continuation_token: Blob


@dataclass(frozen=True, slots=True)
class ReadTableEntries(Command):
    """Some entries of an iteration. Answer: TableEntriesRead."""

    type: ClassVar[int] = 85
    request_id: Int64
    segment: Text
    delegation_token: Text
    suggested_count: Int32
    iterator: Iterator


@dataclass(frozen=True, slots=True)
class TableEntriesRead(Command):
    """Entries with their versions, and where the iteration goes on."""

    type: ClassVar[int] = 86
    request_id: Int64
    segment: Text
    entries: Entries
    continuation_token: Blob


@dataclass(frozen=True, slots=True)
class TableEntriesDeltaRead(Command):
    """What changed behind a position."""

    type: ClassVar[int] = 87
    request_id: Int64
    segment: Text
    entries: Entries
    should_clear: Flag
    reached_end: Flag
    last_position: Int64


@dataclass(frozen=True, slots=True)
class ReadTableEntriesDelta(Command):
    """Changes from a position on. Answer: TableEntriesDeltaRead."""

    type: ClassVar[int] = 88
    request_id: Int64
    segment: Text
    delegation_token: Text
    from_position: Int64
    suggested_count: Int32
