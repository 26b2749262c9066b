"""What a reference store consists of: changes on a disk that knows `written` and `synced`, and memory made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from segmentstore.contracts.errors import LogNotPrimaryError, SegmentNotFoundError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
    SegmentId,
)
from segmentstore.contracts.segments import SegmentProperties


@dataclass(slots=True)
class SegmentState:
    """One segment."""

    segment_id: int
    name: str
    content: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    gone: bool = False
    merged: dict[str, int] = field(default_factory=dict)
    """Sources merged into it -> its length behind the merge."""
    attributes: dict[AttributeKey, AttributeValue] = field(default_factory=dict)

    def properties(self, container_id: ContainerId) -> SegmentProperties:
        """Tier 2 has whatever there is: this store flushes nothing."""
        length = len(self.content)
        return SegmentProperties(
            name=self.name,
            segment_id=SegmentId(self.segment_id),
            container_id=container_id,
            start_offset=self.start,
            length=length,
            storage_length=length,
            sealed=self.sealed,
            sealed_in_storage=self.sealed,
            last_modified_ms=0,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One change, as results: replaying it needs no judgement."""

    kind: str
    segment_id: int
    name: str = ""
    data: bytes = b""
    attributes: Mapping[AttributeKey, AttributeValue | None] = field(default_factory=dict)
    seal: bool = False
    offset: int = 0
    source_id: int = 0


class Memory:
    """Segments by id and by name, after some operations."""

    def __init__(self) -> None:
        self.segments: dict[int, SegmentState] = {}
        self.names: dict[str, int] = {}

    def apply(self, operation: Change, bug: str, *, replaying: bool = False) -> None:
        if operation.kind == "create":
            state = SegmentState(operation.segment_id, operation.name)
            self.segments[state.segment_id] = state
            self.names[state.name] = state.segment_id
        state = self.segments[operation.segment_id]
        if not (replaying and bug == "attribute not logged"):
            for key, value in operation.attributes.items():
                if value is None:
                    state.attributes.pop(key, None)
                else:
                    state.attributes[key] = value
        match operation.kind:
            case "append":
                state.content += operation.data
            case "truncate" if operation.offset > state.start or bug == "truncation goes back":
                state.start = operation.offset
            case "delete":
                self._remove(state)
            case "merge":
                source = self.segments[operation.source_id]
                half = replaying and bug == "half a merge"
                state.content += source.content[: len(source.content) // 2 if half else None]
                state.merged[source.name] = len(state.content)
                self._remove(source)
        if operation.seal and not (replaying and bug == "seal forgotten"):
            state.sealed = True

    def _remove(self, state: SegmentState) -> None:
        state.gone = True
        if self.names.get(state.name) == state.segment_id:
            del self.names[state.name]

    def find(self, name: str) -> SegmentState:
        segment_id = self.names.get(name)
        if segment_id is None:
            raise SegmentNotFoundError(name)
        return self.segments[segment_id]


class ReferenceDisk:
    """Where the operations of one container are."""

    def __init__(self) -> None:
        self.operations: list[Change] = []
        self.synced = 0
        self.epoch = 0
        self.next_segment_id = 1

    def write(self, batch: Sequence[Change], epoch: int, bug: str) -> None:
        if epoch != self.epoch and bug != "zombie acks":
            raise LogNotPrimaryError(f"fenced epoch={epoch} now={self.epoch}")
        if bug == "operations swapped" and len(batch) > 1:
            first, second, *rest = batch
            if first.kind == second.kind == "append":
                batch = [second, first, *rest]
        self.operations.extend(batch)

    def sync(self, epoch: int, bug: str) -> None:
        if epoch != self.epoch and bug != "zombie acks":
            raise LogNotPrimaryError(f"fenced epoch={epoch} now={self.epoch}")
        self.synced = len(self.operations)

    def lose_power(self, keep: int) -> None:
        """Of what was not synced, only the first `keep` operations stay."""
        del self.operations[self.synced + keep :]
