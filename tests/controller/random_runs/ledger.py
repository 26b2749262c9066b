"""What clients were told of events, transactions and segments, and whether what is read fits it.

An event is bytes of its own, so content is explained by looking each event up. A segment's name is never used twice, so
what is known of a segment stays true until the end of the world.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from segmentstore.codec.routing_hash import event_position
from tests.sim.attempts import ModelBreachError

_HEADER = struct.Struct(">ii")


class Fate(Enum):
    """What clients know of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Somebody asked for an end, and was not answered; or its lease may have ended."""


@dataclass(slots=True, eq=False)
class KnownTransaction:
    """A transaction as its owner knows it."""

    transaction_id: int
    stream: str
    fate: Fate = Fate.OPEN
    events: list["KnownEvent"] = field(default_factory=list)
    shown: "Callable[[KnownEvent], None] | None" = None
    """Told of every event that is read in the stream; of stages."""

    def learn(self, fate: Fate) -> None:
        """Raises ModelBreachError if it has ended in another way."""
        ends = (Fate.COMMITTED, Fate.ABORTED)
        if self.fate in ends and fate in ends and fate is not self.fate:
            raise ModelBreachError(f"{self} is {fate.value}")
        if self.fate not in ends:
            self.fate = fate
        if self.fate is Fate.ABORTED:
            for event in self.events:
                if event.found is not None:
                    raise ModelBreachError(f"{self} has {event} in its stream")

    def __str__(self) -> str:
        return f"transaction {self.transaction_id:032x} of {self.stream} ({self.fate.value})"


@dataclass(slots=True, eq=False)
class KnownEvent:
    """One event, and where it may be."""

    number: int
    key: str
    """Unique to a session of one writer."""
    sequence: int
    """Of its key."""
    frame: bytes
    born: float
    """Loop time before which nobody can have stored it."""
    tick: int
    """The same as a moment of the ledger."""
    transaction: KnownTransaction | None = None
    sent_to: dict[str, None] = field(default_factory=dict)
    """Segments; for a transaction's event the stream's segments do not count."""
    acked_in: str | None = None
    acked_at: int | None = None
    """Offset, if the answer told it."""
    refused: bool = False
    """Somebody was told that it is nowhere."""
    found: tuple[str, int] | None = None

    @property
    def position(self) -> float:
        return event_position(self.key)

    @property
    def place(self) -> tuple[str, int] | None:
        """Segment of the stream and offset, if anybody knows."""
        if self.found is not None or self.transaction is not None:
            return self.found
        if self.acked_in is None or self.acked_at is None:
            return None
        return self.acked_in, self.acked_at

    def ack(self, segment: str, offset: int | None) -> None:
        if self.acked_in is not None and self.acked_in != segment:
            raise ModelBreachError(f"{self} was taken by {segment} too")
        self.acked_in = segment
        self.acked_at = offset
        self._check_place()

    def find(self, segment: str, offset: int) -> None:
        """Somebody has read it in the stream."""
        if self.found is not None and self.found != (segment, offset):
            raise ModelBreachError(f"{self} is in {segment} at {offset} too")
        self.found = (segment, offset)
        if self.refused:
            raise ModelBreachError(f"{self} was refused")
        transaction = self.transaction
        if transaction is None:
            if segment not in self.sent_to:
                raise ModelBreachError(f"{self} was never sent to {segment}")
            self._check_place()
        elif transaction.fate is Fate.ABORTED:
            raise ModelBreachError(f"{self} is there although aborted: {transaction}")
        elif transaction.fate is Fate.OPEN:
            raise ModelBreachError(f"{self} is there before its commit: {transaction}")
        elif transaction.shown is not None:
            transaction.shown(self)

    def _check_place(self) -> None:
        if self.found is None or self.acked_in is None or self.transaction is not None:
            return
        segment, offset = self.found
        if segment != self.acked_in or self.acked_at not in (None, offset):
            raise ModelBreachError(f"{self} is elsewhere than it was acknowledged")

    def __str__(self) -> str:
        place = f" acked in {self.acked_in} at {self.acked_at}" if self.acked_in else ""
        found = f" found in {self.found}" if self.found else ""
        return f"event {self.number} of {self.key}/{self.sequence}{place}{found}"


@dataclass(slots=True, eq=False)
class KnownSegment:
    """A segment of a stream: what anybody has read of it."""

    name: str
    start: int = 0
    """Offset of the first byte of `content`."""
    content: bytearray = field(default_factory=bytearray)
    parsed: int = 0
    """Offset behind the last whole event."""
    sealed_length: int | None = None
    gone: bool = False
    sequences: dict[str, int] = field(default_factory=dict)
    """Key -> sequence of the last event that was read."""
    events: dict[int, "KnownEvent"] = field(default_factory=dict)
    """Offset -> event."""

    @property
    def end(self) -> int:
        return self.start + len(self.content)

    def look(self) -> "Look":
        """What is known before a request is sent: its answer may not be older."""
        return Look(self.end, self.sealed_length, self.gone)

    def learn_length(self, length: int, look: "Look", *, sealed: bool) -> None:
        if look.gone:
            raise ModelBreachError(f"{self.name} is back")
        if length < look.end:
            raise ModelBreachError(f"{self.name} lost bytes length={length} read={look.end}")
        if look.sealed_length is not None and (length != look.sealed_length or not sealed):
            raise ModelBreachError(
                f"{self.name} grows behind its end {look.sealed_length} {length}"
            )
        if sealed:
            if self.sealed_length not in (None, length):
                raise ModelBreachError(f"{self.name} ends twice {self.sealed_length} {length}")
            self.sealed_length = length
        elif self.sealed_length is not None and length > self.sealed_length:
            raise ModelBreachError(f"{self.name} was longer {length} > {self.sealed_length}")


@dataclass(frozen=True, slots=True)
class Look:
    """A segment as it was known at one moment."""

    end: int
    sealed_length: int | None
    gone: bool


class Ledger:
    """Everything that clients know of bytes."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self.events: list[KnownEvent] = []
        self.segments: dict[str, KnownSegment] = {}
        self.transactions: list[KnownTransaction] = []
        self._ticks = 0

    def tick(self) -> int:
        """A moment, later than all before."""
        self._ticks += 1
        return self._ticks

    def segment(self, name: str) -> KnownSegment:
        known = self.segments.get(name)
        if known is None:
            known = self.segments[name] = KnownSegment(name)
        return known

    def new_event(
        self, key: str, sequence: int, length: int, transaction: KnownTransaction | None = None
    ) -> KnownEvent:
        number = len(self.events)
        body = f"{number}:".encode().ljust(length, b".")
        frame = _HEADER.pack(0, len(body)) + body
        event = KnownEvent(
            number, key, sequence, frame, self._now(), self.tick(), transaction=transaction
        )
        self.events.append(event)
        if transaction is not None:
            transaction.events.append(event)
        return event

    def learn_content(self, name: str, offset: int, data: bytes) -> None:
        """Somebody has read these bytes."""
        segment = self.segment(name)
        if offset > segment.end:
            # What lies between was truncated away before anybody read it.
            segment.start, segment.content, segment.parsed = offset, bytearray(), offset
            segment.sequences.clear()
        if offset < segment.start:
            # Read before they were truncated away.
            return
        known = segment.content[offset - segment.start : offset - segment.start + len(data)]
        if known != data[: len(known)]:
            raise ModelBreachError(f"{name} reads other bytes than before at {offset}")
        segment.content += data[len(known) :]
        self._parse(segment)

    def _parse(self, segment: KnownSegment) -> None:
        while True:
            at = segment.parsed - segment.start
            if len(segment.content) < at + _HEADER.size:
                return
            kind, length = _HEADER.unpack_from(segment.content, at)
            frame = bytes(segment.content[at : at + _HEADER.size + length])
            if kind or length < 2:
                raise ModelBreachError(f"{segment.name} has no event at {segment.parsed}")
            if len(frame) < _HEADER.size + length:
                return
            self._found(segment, self._event_of(segment, frame))
            segment.parsed += len(frame)

    def _event_of(self, segment: KnownSegment, frame: bytes) -> KnownEvent:
        number = frame[_HEADER.size :].partition(b":")[0]
        if not number.isdigit() or int(number) >= len(self.events):
            raise ModelBreachError(f"{segment.name} has foreign bytes at {segment.parsed}")
        event = self.events[int(number)]
        if event.frame != frame:
            raise ModelBreachError(f"{segment.name} has other bytes than were sent: {event}")
        return event

    def _found(self, segment: KnownSegment, event: KnownEvent) -> None:
        event.find(segment.name, segment.parsed)
        before = segment.sequences.get(event.key, -1)
        if event.sequence <= before:
            raise ModelBreachError(f"{event} comes behind number {before} of its key")
        segment.sequences[event.key] = event.sequence
        segment.events[segment.parsed] = event
