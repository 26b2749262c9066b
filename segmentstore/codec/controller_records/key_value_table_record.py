"""What the controller remembers of a key-value table.

version 1 or 2; unsigned state, partition count; unsigned primary and secondary key length; signed rollover size in
bytes; version 2 only: unsigned first segment number

- The partitions have the segment numbers from the first one on. A record of version 1 counts from 0.
"""

from dataclasses import dataclass, replace
from typing import Self

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter
from segmentstore.codec.controller_records.scope_records import ScopeItemState

_TABLE_VERSION = 1
_NUMBERED_TABLE_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueTableRecord:
    """One table; scope and name stand in its key."""

    state: ScopeItemState
    partition_count: int
    primary_key_bytes: int
    secondary_key_bytes: int
    rollover_bytes: int
    first_number: int = 0

    @property
    def numbers(self) -> range:
        """The segment numbers of the partitions, in the order of their parts of the key space."""
        return range(self.first_number, self.first_number + self.partition_count)

    @property
    def key_bytes(self) -> int:
        """Length of every key in the table's segments."""
        return self.primary_key_bytes + self.secondary_key_bytes

    def with_state(self, state: ScopeItemState) -> Self:
        """The same in another state."""
        return replace(self, state=state)

    def encode(self) -> bytes:
        fields = FieldWriter(_NUMBERED_TABLE_VERSION if self.first_number else _TABLE_VERSION)
        fields.unsigned(self.state)
        fields.unsigned(self.partition_count)
        fields.unsigned(self.primary_key_bytes)
        fields.unsigned(self.secondary_key_bytes)
        fields.signed(self.rollover_bytes)
        if self.first_number:
            fields.unsigned(self.first_number)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "KeyValueTableRecord":
        fields = FieldReader(
            content, what="key-value table record", version_max=_NUMBERED_TABLE_VERSION
        )
        record = KeyValueTableRecord(
            state=fields.choice(ScopeItemState),
            partition_count=fields.unsigned(),
            primary_key_bytes=fields.unsigned(),
            secondary_key_bytes=fields.unsigned(),
            rollover_bytes=fields.signed(),
            first_number=(fields.unsigned() if fields.version >= _NUMBERED_TABLE_VERSION else 0),
        )
        fields.end()
        return record
