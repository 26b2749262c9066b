"""Histories of random clients on a store in memory that is right, and on one that lies in a certain way.

Each operation is done at one moment between its beginning and its answer; some answers are lost, and of these some
operations are done much later or never.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from random import Random

from tests.linearizability.operation import NO_ENTRY, Operation, Outcome, Verb


@dataclass(slots=True)
class ReferenceStore:
    """One segment or one entry. `perform` fills in the answer to what was asked."""

    content: bytearray | None = None
    start: int = 0
    sealed: bool = False
    value: bytes | None = None
    version: int = 0

    def perform(self, asked: Operation) -> Operation:
        match asked.verb:
            case Verb.PUT | Verb.REMOVE | Verb.GET:
                return self._entry(asked)
            case Verb.CREATE:
                if self.content is not None:
                    return replace(asked, outcome=Outcome.EXISTS)
                self.content, self.start, self.sealed = bytearray(), 0, False
                return replace(asked, outcome=Outcome.OK)
        if self.content is None:
            return replace(asked, outcome=Outcome.ABSENT)
        length = len(self.content)
        match asked.verb:
            case Verb.APPEND:
                return self._append(asked, self.content)
            case Verb.SEAL:
                self.sealed = True
                return replace(asked, outcome=Outcome.OK, length=length)
            case Verb.TRUNCATE:
                assert asked.offset is not None, asked
                if asked.offset > length:
                    return replace(asked, outcome=Outcome.BAD_OFFSET, length=length)
                self.start = max(self.start, asked.offset)
                return replace(asked, outcome=Outcome.OK)
            case Verb.INFO:
                return replace(
                    asked,
                    outcome=Outcome.OK,
                    length=length,
                    start=self.start,
                    sealed=self.sealed,
                )
            case Verb.READ:
                return self._read(asked, self.content)
        self.content = None
        return replace(asked, outcome=Outcome.OK)

    def _append(self, asked: Operation, content: bytearray) -> Operation:
        assert asked.content is not None, asked
        if self.sealed:
            return replace(asked, outcome=Outcome.SEALED, length=len(content))
        if asked.offset not in (None, len(content)):
            return replace(asked, outcome=Outcome.BAD_OFFSET, length=len(content))
        content += asked.content
        return replace(asked, outcome=Outcome.OK, length=len(content))

    def _read(self, asked: Operation, content: bytearray) -> Operation:
        assert asked.offset is not None, asked
        assert asked.count is not None, asked
        if asked.offset > len(content):
            return replace(asked, outcome=Outcome.BAD_OFFSET, length=len(content))
        if asked.offset < self.start:
            return replace(asked, outcome=Outcome.TRUNCATED, start=self.start)
        read = bytes(content[asked.offset : asked.offset + asked.count])
        return replace(
            asked, outcome=Outcome.OK, content=read, length=len(content), sealed=self.sealed
        )

    def _entry(self, asked: Operation) -> Operation:
        if asked.verb is Verb.GET:
            version = None if self.value is None else self.version
            return replace(asked, outcome=Outcome.OK, content=self.value, new_version=version)
        present = NO_ENTRY if self.value is None else self.version
        if asked.version not in (None, present):
            return replace(asked, outcome=Outcome.BAD_VERSION)
        if asked.verb is Verb.REMOVE:
            self.value = None
            return replace(asked, outcome=Outcome.OK)
        self.value, self.version = asked.content, self.version + 1
        return replace(asked, outcome=Outcome.OK, new_version=self.version)


class LyingStore:
    """Right but for one operation in so many, which it answers, or does, in a wrong way."""

    def __init__(self, lie: str, random: Random) -> None:
        self._store = ReferenceStore()
        self._lie = LIES[lie]
        self._random = random
        self._old: list[ReferenceStore] = []

    def perform(self, asked: Operation) -> Operation:
        self._old.append(copied(self._store))
        if self._random.random() < 0.2:
            old = self._old[-min(len(self._old), 12)]
            answer = self._lie(self._store, old, asked)
            if answer is not None:
                return answer
        return self._store.perform(asked)


def copied(store: ReferenceStore) -> ReferenceStore:
    content = None if store.content is None else bytearray(store.content)
    return replace(store, content=content)


def lost_append(store: ReferenceStore, _old: ReferenceStore, asked: Operation) -> Operation | None:
    return copied(store).perform(asked) if asked.verb in (Verb.APPEND, Verb.PUT) else None


def repeated_append(
    store: ReferenceStore, _old: ReferenceStore, asked: Operation
) -> Operation | None:
    if asked.verb is not Verb.APPEND:
        return None
    answer = store.perform(asked)
    if answer.outcome is Outcome.OK and store.content is not None:
        store.content += asked.content or b""
    return answer


def moved_append(store: ReferenceStore, _old: ReferenceStore, asked: Operation) -> Operation | None:
    """Its bytes come to stand before those of the append before it."""
    if asked.verb is not Verb.APPEND or not store.content:
        return None
    place = max(len(store.content) - 5, 0)
    tail = bytes(store.content[place:])
    answer = store.perform(asked)
    if answer.outcome is Outcome.OK:
        store.content[place:] = (asked.content or b"") + tail
    return answer


def old_answer(_store: ReferenceStore, old: ReferenceStore, asked: Operation) -> Operation | None:
    if asked.verb not in (Verb.INFO, Verb.READ, Verb.GET):
        return None
    return copied(old).perform(asked)


def old_refusal(_store: ReferenceStore, old: ReferenceStore, asked: Operation) -> Operation | None:
    """A refusal by what was so a while ago; nothing is done."""
    answer = copied(old).perform(asked)
    return None if answer.outcome is Outcome.OK else answer


def append_behind_seal(
    store: ReferenceStore, _old: ReferenceStore, asked: Operation
) -> Operation | None:
    if asked.verb is not Verb.APPEND or not store.sealed:
        return None
    store.sealed = False
    answer = store.perform(asked)
    store.sealed = True
    return answer


LIES: Mapping[str, Callable[[ReferenceStore, ReferenceStore, Operation], Operation | None]] = {
    each.__name__: each
    for each in (
        lost_append,
        repeated_append,
        moved_append,
        old_answer,
        old_refusal,
        append_behind_seal,
    )
}


@dataclass(slots=True)
class Clients:
    """Draws a history of some clients on one target. Time is that of the draw: seconds from zero on."""

    random: Random
    store: ReferenceStore | LyingStore
    client_count: int = 4
    operation_count: int = 50
    is_table: bool = False
    told: Operation | None = None
    """An answer that clients go by when they name offsets and versions."""
    _numbers: "count[int]" = field(default_factory=count)

    def history(self) -> list[Operation]:
        """In the order in which the operations were done."""
        events: list[tuple[float, int, Operation]] = []
        done: list[Operation] = []
        left = self.operation_count
        if not self.is_table:
            heappush(events, (0.0, -1, Operation(0, "target", Verb.CREATE, Outcome.OK, 0.0)))
        for client in range(self.client_count):
            self._send(events, client, self.random.random())
        while events:
            moment, _, asked = heappop(events)
            answer = self.store.perform(asked)
            if asked.outcome is Outcome.UNKNOWN:
                done.append(asked)
                continue
            self.told = answer
            done.append(replace(answer, answered=moment + self.random.random()))
            left -= 1
            if left > 0:
                self._send(events, asked.client, done[-1].answered + self.random.random() / 10)
        return done

    def _send(self, events: list[tuple[float, int, Operation]], client: int, at: float) -> None:
        asked = replace(self._asked(), client=client, invoked=at)
        number = next(self._numbers)
        if self.random.random() < 0.1:
            # Its client goes on at once; it is done now, later or never.
            if self.random.random() < 0.7:
                later = at + self.random.choice((0.5, 5.0)) * self.random.random()
                lost = replace(asked, outcome=Outcome.UNKNOWN, answered=math.inf)
                heappush(events, (later, number, lost))
            self._send(events, client, at + 0.2)
            return
        heappush(events, (at + self.random.random(), number, asked))

    def _asked(self) -> Operation:
        verb = self.random.choices(*(_TABLE_MIX if self.is_table else _SEGMENT_MIX))[0]
        asked = Operation(0, "target", verb, Outcome.OK, 0.0)
        content = b"%d" % next(self._numbers) + b"." * self.random.randrange(4)
        told = self.told
        length = (told.length if told is not None else None) or 0
        match verb:
            case Verb.APPEND:
                offset = length if self.random.random() < 0.4 else None
                return replace(asked, content=content, offset=offset)
            case Verb.TRUNCATE:
                return replace(asked, offset=self.random.randrange(length + 2))
            case Verb.READ:
                offset = self.random.choice((0, self.random.randrange(length + 2)))
                return replace(asked, offset=offset, count=self.random.choice((4, 1000)))
            case Verb.PUT | Verb.REMOVE:
                known = None if told is None else told.new_version
                version = self.random.choice((None, known, known, NO_ENTRY))
                put = content if verb is Verb.PUT else None
                return replace(asked, content=put, version=version)
        return asked


_SEGMENT_MIX = (
    (Verb.CREATE, Verb.APPEND, Verb.SEAL, Verb.TRUNCATE, Verb.INFO, Verb.READ, Verb.DELETE),
    (8, 50, 1.5, 3, 15, 20, 1),
)
_TABLE_MIX = ((Verb.PUT, Verb.REMOVE, Verb.GET), (50, 10, 40))


def random_history(seed: int, *, lie: str = "", operation_count: int = 50) -> list[Operation]:
    """Of one target: a segment, or with every fourth seed an entry of a table."""
    random = Random(seed)
    store = LyingStore(lie, random) if lie else ReferenceStore()
    clients = Clients(
        random,
        store,
        client_count=random.randrange(2, 6),
        operation_count=operation_count,
        is_table=seed % 4 == 0,
    )
    return clients.history()
