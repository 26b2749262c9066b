"""What clients tried, and what they know about how it ended.

An attempt ends ACKED (it happened), REFUSED (it did not and never will) or UNKNOWN (its container stopped, its node
died: it happened whole or not at all). PENDING may still become any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from segmentstore.contracts.identifiers import AttributeKey, AttributeValue

if TYPE_CHECKING:
    from tests.sim.incarnation import Incarnation

_HEADER_BYTES = 5


class ModelBreachError(Exception):
    """The store did what the model says no correct store can do."""


class Outcome(Enum):
    """What the client knows about an attempt."""

    PENDING = "pending"
    ACKED = "acked"
    REFUSED = "refused"
    UNKNOWN = "unknown"

    @property
    def maybe(self) -> bool:
        """It may be there and it may not."""
        return self in (Outcome.PENDING, Outcome.UNKNOWN)


@dataclass(slots=True, eq=False)
class Append:
    """One append: bytes that tell their own number, so that they are recognised wherever they turn up."""

    number: int
    incarnation: Incarnation
    connection: int
    """Appends of one connection are ordered, and a later one implies every earlier one."""
    data: bytes
    submitted: int
    """Tick of the model."""
    offset: int | None = None
    """The length it was conditional on."""
    writer: AttributeKey | None = None
    event: int = 0
    """Number of the event of that writer; its attribute says so in the same operation."""
    seals: bool = False
    outcome: Outcome = Outcome.PENDING
    end: int | None = None
    """Where it ends, once it is known."""

    def __repr__(self) -> str:
        return (
            f"append {self.number} of {self.incarnation} bytes={len(self.data)} {self.outcome.value} "
            f"end={self.end} connection={self.connection} event={self.event}"
        )


@dataclass(slots=True, eq=False)
class Merge:
    """One merge of a sealed source of known length."""

    target: Incarnation
    source: Incarnation
    length: int
    outcome: Outcome = Outcome.PENDING
    end: int | None = None

    def __repr__(self) -> str:
        return f"merge of {self.source} into {self.target} {self.outcome.value} end={self.end}"


def make_payload(number: int, length: int) -> bytes:
    """Bytes that name their append: three bytes of number, two of length, then a filler that depends on both."""
    length = max(length, _HEADER_BYTES)
    header = number.to_bytes(3, "big") + length.to_bytes(2, "big")
    rest = length - _HEADER_BYTES
    pattern = bytes((number * 31 + place * 7) & 0xFF for place in range(min(rest, 251)))
    filler = (pattern * (rest // 251 + 1))[:rest] if rest else b""
    return header + filler


def payload_number(data: bytes | memoryview) -> int | None:
    """The number in a payload's header, None if there are not even enough bytes for one."""
    return int.from_bytes(data[:3], "big") if len(data) >= _HEADER_BYTES else None


@dataclass(slots=True, eq=False)
class Creation:
    """A create under way, or of unknown outcome."""

    name: str
    began: int
    ended: int | None = None
    outcome: Outcome = Outcome.PENDING


@dataclass(slots=True, eq=False)
class RegisterWrite:
    """One value given to an attribute by the only actor that writes it."""

    value: AttributeValue | None
    outcome: Outcome = Outcome.PENDING


class Register:
    """An attribute with one writer: what it may hold now.

    The last value known to be there, or any later one that may have arrived.
    """

    def __init__(self) -> None:
        self._writes: list[RegisterWrite] = [RegisterWrite(None, Outcome.ACKED)]
        self._floor = 0

    def write(self, value: AttributeValue | None) -> RegisterWrite:
        attempt = RegisterWrite(value)
        self._writes.append(attempt)
        return attempt

    def acked(self, attempt: RegisterWrite) -> None:
        attempt.outcome = Outcome.ACKED
        self._floor = max(self._floor, self._writes.index(attempt))

    def possible(self) -> list[AttributeValue | None]:
        floor = self._writes[self._floor]
        later = [w.value for w in self._writes[self._floor + 1 :] if w.outcome.maybe]
        return [floor.value, *later]

    def observe(self, value: AttributeValue | None) -> bool:
        """Whether that value can be there; if so it is known from now on."""
        for place in range(self._floor, len(self._writes)):
            write = self._writes[place]
            if write.value == value and (place == self._floor or write.outcome.maybe):
                self._floor = place
                return True
        return False


class Counter:
    """An attribute that many actors add one to: between what was acked and what may have arrived."""

    def __init__(self) -> None:
        self.acked = 0
        self.maybe = 0
        self._seen = 0

    def observe(self, value: int, *, floor: int) -> bool:
        """`floor`: what floor said when the look began."""
        fits = floor <= value <= self.acked + self.maybe
        self._seen = max(self._seen, value)
        return fits

    @property
    def floor(self) -> int:
        return max(self.acked, self._seen)
