"""How a segment, and a key of a table, answer one operation after another.

A model says which state follows when an operation is done in a state and answers as it did; None: no such answer is
possible there. An operation of unknown outcome is done as if it had been asked for then; None where it would have been
refused, and where it changes nothing: such an operation need not have happened at all.

A refusal is right if what it claims is so. Of several true reasons the store may give any.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from tests.linearizability.operation import NO_ENTRY, Operation, Outcome, Verb

State = TypeVar("State")


class Model(Protocol[State]):
    """States are hashable."""

    @property
    def first(self) -> State: ...

    def step(self, state: State, operation: Operation) -> State | None: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One append behind those before it. Compared by the digest of all of them."""

    before: "Piece | None"
    content: bytes
    end: int
    digest: int

    def __hash__(self) -> int:
        return self.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and (self.digest, self.end) == (other.digest, other.end)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """`piece` is the last one; a segment that does not exist has no other field of meaning."""

    exists: bool = False
    sealed: bool = False
    start: int = 0
    piece: Piece | None = None

    @property
    def length(self) -> int:
        return 0 if self.piece is None else self.piece.end

    def appended(self, content: bytes) -> "SegmentState":
        digest = hash((None if self.piece is None else self.piece.digest, content))
        return replace(self, piece=Piece(self.piece, content, self.length + len(content), digest))

    def content(self, begin: int, end: int) -> bytes:
        """Costs a step for each append between `begin` and the end of the segment."""
        pieces: list[bytes] = []
        piece = self.piece
        while piece is not None and piece.end > begin:
            pieces.append(piece.content)
            piece = piece.before
        found = 0 if piece is None else piece.end
        return b"".join(reversed(pieces))[begin - found : end - found]


class SegmentModel:
    """Of one name; it does not exist in the beginning.

    It is made for the operations that are to be checked, and leaves out of account what cannot be part of an order of
    them, or need not be:

    - An append to a place where a read saw other bytes, as long as the segment was made once only: a later read of
      that place would be refused.
    - An append of unknown outcome to a place behind everything that any answer tells of. Take it, and all that follows
      it of its kind, out of a right order: no answer tells of them, so what remains is right as well. An answer that
      the length was *not* a certain one tells of an append to exactly that place.
    """

    first = SegmentState()

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._seen_length = max(map(_told_length, operations), default=0)
        self._not_lengths = {
            each.offset
            for each in operations
            if each.outcome is Outcome.BAD_OFFSET and each.length is None
        }
        placeless = [
            each for each in operations if each.verb is Verb.APPEND and each.length is None
        ]
        if self._not_lengths and any(each.outcome is Outcome.OK for each in placeless):
            # Without an append, these would move to places that a refusal may exclude.
            self._seen_length = sum(len(each.content or b"") for each in operations)
        creates = [each for each in operations if each.verb is Verb.CREATE]
        made = [each for each in creates if each.outcome is not Outcome.EXISTS]
        self._seen: bytearray | None = bytearray(self._seen_length) if len(made) == 1 else None
        self._is_seen = bytearray(self._seen_length)
        for each in operations:
            if each.verb is Verb.READ and each.content and self._seen is not None:
                self._note(each.offset or 0, each.content)

    def step(self, state: SegmentState, operation: Operation) -> SegmentState | None:
        if operation.verb is Verb.CREATE:
            return self._create(state, operation)
        if not state.exists:
            return state if operation.outcome is Outcome.ABSENT else None
        if operation.outcome is Outcome.ABSENT:
            return None
        match operation.verb:
            case Verb.APPEND:
                return self._append(state, operation)
            case Verb.SEAL:
                if operation.outcome is Outcome.UNKNOWN:
                    return None if state.sealed else replace(state, sealed=True)
                return replace(state, sealed=True) if _agrees(state, operation) else None
            case Verb.TRUNCATE:
                return self._truncate(state, operation)
            case Verb.INFO:
                return state if _agrees(state, operation) else None
            case Verb.READ:
                return state if self._read(state, operation) else None
            case Verb.DELETE:
                return self.first
        raise AssertionError(f"no verb of segments: {operation}")

    def _create(self, state: SegmentState, operation: Operation) -> SegmentState | None:
        if operation.outcome is Outcome.EXISTS:
            return state if state.exists else None
        return None if state.exists else SegmentState(exists=True)

    def _append(self, state: SegmentState, operation: Operation) -> SegmentState | None:
        assert operation.content is not None, operation
        meets = operation.offset in (None, state.length)
        match operation.outcome:
            case Outcome.SEALED:
                return state if state.sealed and operation.length in (None, state.length) else None
            case Outcome.BAD_OFFSET:
                return state if not meets and operation.length in (None, state.length) else None
        if state.sealed or not meets or not self._may_follow(state.length, operation):
            return None
        following = state.appended(operation.content)
        return following if operation.length in (None, following.length) else None

    def _truncate(self, state: SegmentState, operation: Operation) -> SegmentState | None:
        assert operation.offset is not None, operation
        if operation.outcome is Outcome.BAD_OFFSET:
            told = operation.length in (None, state.length)
            return state if operation.offset > state.length and told else None
        if operation.offset > state.length:
            return None
        if operation.offset <= state.start:
            return None if operation.outcome is Outcome.UNKNOWN else state
        return replace(state, start=operation.offset)

    @staticmethod
    def _read(state: SegmentState, operation: Operation) -> bool:
        assert operation.offset is not None, operation
        match operation.outcome:
            case Outcome.TRUNCATED:
                return operation.offset < state.start and operation.start in (None, state.start)
            case Outcome.BAD_OFFSET:
                return operation.offset > state.length and operation.length in (None, state.length)
        assert operation.count is not None, operation
        end = min(operation.offset + operation.count, state.length)
        return (
            state.start <= operation.offset <= state.length
            and _agrees(state, operation)
            and operation.content == state.content(operation.offset, end)
        )

    def _note(self, offset: int, content: bytes) -> None:
        assert self._seen is not None, "reads are noted"
        end = offset + len(content)
        known = self._is_seen[offset:end]
        if any(
            is_seen and one != other
            for is_seen, one, other in zip(known, self._seen[offset:end], content, strict=True)
        ):
            # Reads contradict each other: the search is to say so.
            self._seen = None
            return
        self._seen[offset:end] = content
        self._is_seen[offset:end] = b"\1" * len(content)

    def _may_follow(self, length: int, operation: Operation) -> bool:
        assert operation.content is not None, operation
        if (
            operation.outcome is Outcome.UNKNOWN
            and length >= self._seen_length
            and length not in self._not_lengths
        ):
            return False
        if self._seen is None:
            return True
        end = length + len(operation.content)
        known, seen = self._is_seen[length:end], self._seen[length:end]
        if all(known):
            return seen == operation.content[: len(seen)]
        return all(
            not is_seen or one == other
            for is_seen, one, other in zip(known, seen, operation.content, strict=False)
        )


def _agrees(state: SegmentState, operation: Operation) -> bool:
    return (
        operation.outcome is Outcome.OK
        and operation.length in (None, state.length)
        and operation.start in (None, state.start)
        and operation.sealed in (None, state.sealed)
    )


def _told_length(operation: Operation) -> int:
    """The segment was as long as this at some time, by what the operation's answer says."""
    told = [operation.length or 0, operation.start or 0]
    if operation.outcome is Outcome.OK:
        match operation.verb:
            case Verb.READ:
                told.append((operation.offset or 0) + len(operation.content or b""))
            case Verb.TRUNCATE:
                told.append(operation.offset or 0)
            case Verb.APPEND if operation.offset is not None:
                told.append(operation.offset + len(operation.content or b""))
    return max(told)


@dataclass(frozen=True, slots=True)
class EntryState:
    """Of one key; `version` is None behind a put whose answer was lost, until a get tells it."""

    value: bytes | None = None
    version: int | None = None


class EntryModel:
    """Of one key, absent in the beginning. Versions of a key only grow."""

    first = EntryState()

    def step(self, state: EntryState, operation: Operation) -> EntryState | None:
        if operation.verb is Verb.GET:
            return self._get(state, operation)
        meets, fails = _condition(state, operation.version)
        if operation.outcome is Outcome.BAD_VERSION:
            return state if fails else None
        if not meets:
            return None
        if operation.verb is Verb.REMOVE:
            if operation.outcome is Outcome.UNKNOWN and state.value is None:
                return None
            return EntryState()
        assert operation.verb is Verb.PUT, f"no verb of tables: {operation}"
        version = operation.new_version
        if version is not None and state.version is not None and version <= state.version:
            return None
        return EntryState(operation.content, version)

    @staticmethod
    def _get(state: EntryState, operation: Operation) -> EntryState | None:
        if operation.content != state.value:
            return None
        if operation.new_version is None or state.value is None:
            return state
        if state.version not in (None, operation.new_version):
            return None
        return EntryState(state.value, operation.new_version)


def _condition(state: EntryState, version: int | None) -> tuple[bool, bool]:
    """Whether it may hold, and whether it may not."""
    if version is None:
        return True, False
    if version == NO_ENTRY or state.value is None:
        holds = version == NO_ENTRY and state.value is None
        return holds, not holds
    if state.version is None:
        return True, True
    return state.version == version, state.version != version
