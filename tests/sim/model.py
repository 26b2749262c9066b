"""The model: what all clients together know about the store, by name and by segment id.

A segment id is an *incarnation* of a name (tests/sim/incarnation.py). Verbs by name may meet any incarnation that can
be alive while they run; what they changed is certain only if there was one candidate.

Everything here is pure: no clock, no loop, no randomness. `tick` orders what clients learnt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from segmentstore.contracts.errors import (
    ErrorKind,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import SegmentProperties
from tests.sim.attempts import Append, Creation, Merge, ModelBreachError, Outcome, make_payload
from tests.sim.incarnation import Incarnation

_UNKNOWN_KINDS = (ErrorKind.UNAVAILABLE, ErrorKind.FENCED, ErrorKind.CORRUPT)


class Verb(Enum):
    """Verbs that name a segment and change it."""

    SEAL = "seal"
    TRUNCATE = "truncate"
    DELETE = "delete"
    MERGE = "merge"


@dataclass(slots=True, eq=False)
class NameAttempt:
    """A verb by name under way, or of unknown outcome."""

    verb: Verb
    name: str
    began: int
    candidates: list[Incarnation]
    offset: int = 0
    """Of a truncation."""
    outcome: Outcome = Outcome.PENDING
    ended: int | None = None
    crowded: bool = False
    """Another incarnation may have been created while it ran."""


@dataclass(slots=True)
class _Name:
    """What is known about one name."""

    incarnations: list[Incarnation] = field(default_factory=list)
    creations: list[Creation] = field(default_factory=list)
    """Those that may have created an incarnation nobody has seen yet."""
    attempts: list[NameAttempt] = field(default_factory=list)
    """Pending, and ended ones that may have met an incarnation nobody has seen yet."""

    def alive(self) -> list[Incarnation]:
        return [life for life in self.incarnations if life.gone_at is None]


class Model:
    """What the clients of one world know."""

    def __init__(self) -> None:
        self.tick = 0
        self.incarnations: dict[tuple[int, int], Incarnation] = {}
        self.appends: dict[int, Append] = {}
        self._names: dict[str, _Name] = {}
        self._connections = 0

    def names(self) -> list[str]:
        return list(self._names)

    def alive(self, name: str) -> list[Incarnation]:
        """Incarnations of the name that may exist now, the oldest first."""
        return self._name(name).alive()

    def next_tick(self) -> int:
        self.tick += 1
        return self.tick

    def new_connection(self) -> int:
        self._connections += 1
        return self._connections

    # --- create and open --------------------------------------------------------------------------

    def create_begins(self, name: str) -> Creation:
        creation = Creation(name, self.next_tick())
        known = self._name(name)
        known.creations.append(creation)
        for attempt in known.attempts:
            attempt.crowded = True
        return creation

    def created(self, creation: Creation, info: SegmentProperties) -> Incarnation:
        creation.outcome = Outcome.ACKED
        life = self.incarnations.get((info.container_id, int(info.segment_id)))
        if life is None:
            return self._adopt(creation, info)
        by = life.creation
        if life.name != creation.name or (by.outcome is Outcome.ACKED and by is not creation):
            raise ModelBreachError(f"id given twice: {life} and a create of {creation.name}")
        if by is not creation:
            # It was opened before its create was answered, and taken for the work of another create.
            known = self._name(creation.name)
            if creation in known.creations:
                known.creations.remove(creation)
            if by.outcome is Outcome.PENDING:
                known.creations.append(by)
            life.creation = creation
        return life

    def create_failed(self, creation: Creation, error: BaseException) -> None:
        known = self._name(creation.name)
        creation.ended = self.next_tick()
        if is_unknown(error):
            creation.outcome = Outcome.UNKNOWN
            return
        creation.outcome = Outcome.REFUSED
        if creation in known.creations:
            known.creations.remove(creation)
        if isinstance(error, SegmentExistsError):
            lives = [i for i in known.incarnations if not self._gone_before(i, creation.began)]
            if not lives and not known.creations:
                raise ModelBreachError(f"create of {creation.name}: nothing of that name exists")

    def opened(self, name: str, info: SegmentProperties, began: int) -> Incarnation:
        """A resolution of the name that began at tick `began` led to this segment."""
        key = (info.container_id, int(info.segment_id))
        life = self.incarnations.get(key)
        if life is not None:
            if life.name != name:
                raise ModelBreachError(f"{name} led to {life}")
            if self._gone_before(life, began):
                raise ModelBreachError(f"{life} is back although it was gone")
            _forget_creations(self._name(name), began)
            return life
        known = self._name(name)
        if not known.creations:
            raise ModelBreachError(f"{name} led to unknown id {key}, yet nobody created it")
        life = self._adopt(known.creations[0], info)
        _forget_creations(known, began)
        return life

    def not_found(self, name: str, began: int) -> None:
        """The name led nowhere, in an answer to a request that began at `began`."""
        known = self._name(name)
        for life in known.alive():
            if life.born < began and not life.gone_attempts:
                raise ModelBreachError(f"{life} is lost: not found, yet nobody deleted it")
            if life.born < began:
                life.learn_gone(self.next_tick())
        _forget_creations(known, began)

    def _adopt(self, creation: Creation, info: SegmentProperties) -> Incarnation:
        known = self._name(creation.name)
        key = (info.container_id, int(info.segment_id))
        if creation in known.creations:
            known.creations.remove(creation)
        life = Incarnation(
            name=creation.name,
            container_id=key[0],
            segment_id=key[1],
            born=self.next_tick(),
            creation=creation,
        )
        for older in known.alive():
            if older.segment_id > life.segment_id:
                continue
            older.learn_gone(self.tick)
        for attempt in known.attempts:
            if attempt.ended is None or creation.began < attempt.ended:
                attempt.candidates.append(life)
                self._mark(attempt, life)
        _forget_creations(known, creation.began)
        known.incarnations.append(life)
        self.incarnations[key] = life
        return life

    # --- appends ----------------------------------------------------------------------------------

    def append_begins(
        self,
        life: Incarnation,
        *,
        connection: int,
        length: int,
        offset: int | None = None,
        writer: AttributeKey | None = None,
        event: int = 0,
        seals: bool = False,
    ) -> Append:
        """Register the attempt and make up its bytes. A length of 0 makes an append without bytes."""
        number = len(self.appends) + 1
        data = make_payload(number, length) if length else b""
        append = Append(
            number, life, connection, data, self.next_tick(), offset, writer, event, seals
        )
        self.appends[number] = append
        life.appends.append(append)
        life.seal_attempts += seals
        return append

    def append_acked(self, append: Append, length: int) -> None:
        self.next_tick()
        append.incarnation.append_acked(append, length)

    def append_failed(self, append: Append, error: BaseException) -> None:
        self.next_tick()
        if is_unknown(error):
            append.outcome = Outcome.UNKNOWN
        else:
            append.incarnation.append_failed(append, error)

    # --- verbs by name ----------------------------------------------------------------------------

    def verb_begins(self, verb: Verb, name: str, offset: int = 0) -> NameAttempt:
        known = self._name(name)
        attempt = NameAttempt(verb, name, self.next_tick(), known.alive(), offset)
        attempt.crowded = bool(known.creations)
        known.attempts.append(attempt)
        for life in attempt.candidates:
            self._mark(attempt, life)
        return attempt

    def verb_acked(self, attempt: NameAttempt, length: int = 0) -> None:
        """The verb is done; `length` is what a seal gave."""
        tick = self.next_tick()
        attempt.outcome = Outcome.ACKED
        attempt.ended = tick
        if not attempt.crowded:
            self._name(attempt.name).attempts.remove(attempt)
        if not attempt.candidates and not attempt.crowded:
            raise ModelBreachError(
                f"{attempt.verb.value} of {attempt.name} met nothing, yet went well"
            )
        if len(attempt.candidates) != 1 or attempt.crowded:
            return
        (life,) = attempt.candidates
        if self._gone_before(life, attempt.began):
            raise ModelBreachError(f"{attempt.verb.value} went well on {life}, which is gone")
        match attempt.verb:
            case Verb.SEAL:
                life.learn_seal(length)
            case Verb.TRUNCATE:
                life.learn_start(attempt.offset)
            case Verb.DELETE | Verb.MERGE:
                life.learn_gone(tick)

    def verb_failed(self, attempt: NameAttempt, error: BaseException) -> None:
        attempt.ended = self.next_tick()
        known = self._name(attempt.name)
        if is_unknown(error):
            attempt.outcome = Outcome.UNKNOWN
            if not attempt.crowded:
                known.attempts.remove(attempt)
            return
        attempt.outcome = Outcome.REFUSED
        known.attempts.remove(attempt)
        match error:
            case SegmentNotFoundError() if error.name == attempt.name:
                self._unmark(attempt)
                self.not_found(attempt.name, attempt.began)
            case SegmentSealedError() if attempt.verb is Verb.SEAL:
                raise ModelBreachError(f"a second seal was refused {error}")
            case _:
                self._unmark(attempt)

    def merge_begins(self, target: Incarnation, source: Incarnation) -> Merge:
        """The attempts on both names are made apart, with verb_begins(MERGE, source)."""
        if not source.sealed:
            raise ValueError(f"seal it for certain before it is merged {source}")
        merge = Merge(target, source, source.length)
        target.merges_in.append(merge)
        source.merges_out.append(merge)
        return merge

    def merge_acked(self, merge: Merge, length: int) -> None:
        merge.outcome = Outcome.ACKED
        merge.end = length
        for other in merge.source.merges_out:
            if other is not merge:
                # All attempts together merged it once: this one stands for whichever did it.
                other.outcome = Outcome.REFUSED
        start = length - merge.length
        source = merge.source
        for place in range(merge.length):
            if place < len(source.known) and source.known[place]:
                merge.target.learn_bytes(start + place, bytes(source.content[place : place + 1]))
        merge.target.learn_length(length)

    def merge_failed(self, merge: Merge, error: BaseException) -> None:
        merge.outcome = Outcome.UNKNOWN if is_unknown(error) else Outcome.REFUSED

    # --- inside -----------------------------------------------------------------------------------

    def _name(self, name: str) -> _Name:
        return self._names.setdefault(name, _Name())

    @staticmethod
    def _gone_before(life: Incarnation, tick: int) -> bool:
        return life.gone_at is not None and life.gone_at < tick

    @staticmethod
    def _mark(attempt: NameAttempt, life: Incarnation) -> None:
        match attempt.verb:
            case Verb.SEAL:
                life.seal_attempts += 1
            case Verb.TRUNCATE:
                life.start_max = max(life.start_max, attempt.offset)
            case Verb.DELETE | Verb.MERGE:
                life.gone_attempts += 1

    @staticmethod
    def _unmark(attempt: NameAttempt) -> None:
        """A refused verb changed nothing: what it alone might have done is not possible any more."""
        for life in attempt.candidates:
            if attempt.verb is Verb.SEAL:
                life.seal_attempts -= 1
            elif attempt.verb in (Verb.DELETE, Verb.MERGE):
                life.gone_attempts -= 1


def _forget_creations(known: _Name, tick: int) -> None:
    """Creates of unknown outcome whose container was gone before that tick have no effect any more."""
    known.creations = [c for c in known.creations if c.ended is None or c.ended >= tick]
    if not known.creations:
        known.attempts = [attempt for attempt in known.attempts if attempt.ended is None]


def is_unknown(error: BaseException) -> bool:
    """Whether a failed request may have happened, or may happen yet."""
    return not isinstance(error, SegmentStoreError) or error.kind in _UNKNOWN_KINDS
