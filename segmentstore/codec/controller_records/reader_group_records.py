"""What the controller remembers of a reader group and of how far it has consumed a stream.

    group    version 1; unsigned state; text id; unsigned generation, retention type; signed refresh time and
             checkpoint interval in ms, outstanding checkpoints, rollover size in bytes;
             list of starting cuts, list of ending cuts: text scope, text stream, offsets
    consumed version 1; text group id; unsigned generation; offsets

A group with a retention type other than NONE is a subscriber of every stream among its starting cuts: there is no
second record that could disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter
from segmentstore.codec.controller_records.scope_records import ScopeItemState

_GROUP_VERSION = 1
_CONSUMED_CUT_VERSION = 1


class StreamDataRetention(IntEnum):
    """Whether the group's position holds back retention. Persistent, and the protocol's: never renumber."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC = 2


@dataclass(frozen=True, slots=True)
class GroupCut:
    """A stream of a group and a position in it."""

    scope: str
    stream: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroupRecord:
    """One group; scope and name stand in its key."""

    state: ScopeItemState
    group_id: str
    generation: int
    retention_type: StreamDataRetention
    refresh_ms: int
    checkpoint_interval_ms: int
    outstanding_checkpoints_max: int
    rollover_bytes: int
    starting_cuts: tuple[GroupCut, ...]
    ending_cuts: tuple[GroupCut, ...]

    def subscribes_to(self, scope: str, stream: str) -> bool:
        """Whether what the group has consumed bounds the stream's retention."""
        return (
            self.state is ScopeItemState.ACTIVE
            and self.retention_type is not StreamDataRetention.NONE
            and any(cut.scope == scope and cut.stream == stream for cut in self.starting_cuts)
        )

    def with_state(self, state: ScopeItemState) -> Self:
        """The same in another state."""
        return replace(self, state=state)

    def encode(self) -> bytes:
        fields = FieldWriter(_GROUP_VERSION)
        fields.unsigned(self.state)
        fields.text(self.group_id)
        fields.unsigned(self.generation)
        fields.unsigned(self.retention_type)
        fields.signed(self.refresh_ms)
        fields.signed(self.checkpoint_interval_ms)
        fields.signed(self.outstanding_checkpoints_max)
        fields.signed(self.rollover_bytes)

        def write(cut: GroupCut) -> None:
            fields.text(cut.scope)
            fields.text(cut.stream)
            fields.offsets(cut.offsets)

        fields.list_of(self.starting_cuts, write)
        fields.list_of(self.ending_cuts, write)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "ReaderGroupRecord":
        fields = FieldReader(content, what="reader group record", version_max=_GROUP_VERSION)

        def read() -> GroupCut:
            return GroupCut(fields.text(), fields.text(), fields.offsets())

        record = ReaderGroupRecord(
            state=fields.choice(ScopeItemState),
            group_id=fields.text(),
            generation=fields.unsigned(),
            retention_type=fields.choice(StreamDataRetention),
            refresh_ms=fields.signed(),
            checkpoint_interval_ms=fields.signed(),
            outstanding_checkpoints_max=fields.signed(),
            rollover_bytes=fields.signed(),
            starting_cuts=fields.list_of(read),
            ending_cuts=fields.list_of(read),
        )
        fields.end()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedCutRecord:
    """How far a subscriber has consumed a stream; group and stream stand in its key."""

    group_id: str
    """Of the group that said so: a group that was deleted and created again starts afresh."""
    generation: int
    offsets: Mapping[int, int]

    def encode(self) -> bytes:
        fields = FieldWriter(_CONSUMED_CUT_VERSION)
        fields.text(self.group_id)
        fields.unsigned(self.generation)
        fields.offsets(self.offsets)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "ConsumedCutRecord":
        fields = FieldReader(content, what="consumed cut", version_max=_CONSUMED_CUT_VERSION)
        record = ConsumedCutRecord(
            group_id=fields.text(), generation=fields.unsigned(), offsets=fields.offsets()
        )
        fields.end()
        return record
