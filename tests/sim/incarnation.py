"""One life of one segment, from its create to its delete or merge, as its clients know it.

Knowledge only grows: bytes that were acked or read stay where they are, for ever. Every method that learns something
raises ModelBreachError if it contradicts what was known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import SegmentProperties
from tests.sim.attempts import (
    Append,
    Counter,
    Creation,
    Merge,
    ModelBreachError,
    Outcome,
    Register,
)


@dataclass(frozen=True, slots=True)
class Look:
    """What was known when a client began to look: an answer may not know less."""

    tick: int
    length: int
    start: int
    sealed: bool


class Incarnation:
    """Everything known about one segment id."""

    def __init__(
        self, *, name: str, container_id: int, segment_id: int, born: int, creation: Creation
    ) -> None:
        self.name = name
        self.container_id = container_id
        self.segment_id = segment_id
        self.born = born
        self.creation = creation
        self.appends: list[Append] = []
        self.merges_in: list[Merge] = []
        self.merges_out: list[Merge] = []
        self.start = 0
        """Acked truncations."""
        self.start_max = 0
        """Truncations that may have happened."""
        self.length = 0
        """Some client saw at least this much."""
        self.seal_attempts = 0
        self.sealed = False
        self.gone_attempts = 0
        self.gone_at: int | None = None
        self.registers: dict[AttributeKey, Register] = {}
        self.counters: dict[AttributeKey, Counter] = {}
        self.content = bytearray()
        self.known = bytearray()

    def __repr__(self) -> str:
        return f"{self.name}#{self.container_id}.{self.segment_id}"

    def look(self, tick: int) -> Look:
        return Look(tick, self.length, self.start, self.sealed)

    # --- appends ----------------------------------------------------------------------------------

    def append_acked(self, append: Append, length: int) -> None:
        """The future of the append gave `length`."""
        offset = length - len(append.data)
        if append.offset is not None and offset != append.offset:
            self._breach(f"a conditional append landed elsewhere, at {offset}: {append}")
        if self.gone_at is not None and self.gone_at < append.submitted:
            self._breach(f"an append was acked after the segment was gone: {append}")
        if append.end not in (None, length):
            self._breach(f"an append was seen elsewhere before its ack, now at {offset}: {append}")
        append.outcome = Outcome.ACKED
        append.end = length
        for other in self.appends:
            if other.connection == append.connection and other.end is not None:
                wrong = other.end > offset if other.number < append.number else other.end < length
                if wrong and other is not append:
                    self._breach(f"appends of one connection changed order: {other} and {append}")
        self.learn_bytes(offset, append.data)
        if append.seals:
            self.learn_seal(length)
        self.learn_length(length)

    def append_failed(self, append: Append, error: BaseException) -> None:
        """The future of the append failed: refused for a reason that must be true, or unknown."""
        append.outcome = Outcome.REFUSED
        match error:
            case SegmentSealedError():
                self.learn_seal(error.length)
            case BadOffsetError():
                if append.offset is None or error.expected == append.offset:
                    self._breach(f"an append was refused for its offset: {append} {error}")
                self.learn_length(error.expected)
            case SegmentNotFoundError():
                if not self.gone_attempts:
                    self._breach(f"an append found nothing, yet nobody deleted: {append}")
                self.gone_attempts += 1

    # --- what is learnt ---------------------------------------------------------------------------

    def learn_bytes(self, offset: int, data: bytes | memoryview) -> None:
        """These bytes are there: acked or seen."""
        end = offset + len(data)
        if offset < 0:
            self._breach(f"bytes at a negative offset {offset}")
        if end > len(self.content):
            self.known.extend(bytes(end - len(self.content)))
            self.content.extend(bytes(end - len(self.content)))
        mask = self.known[offset:end]
        if any(mask):
            here = self.content[offset:end]
            for place, known in enumerate(mask):
                if known and here[place] != data[place]:
                    self._breach(f"byte {offset + place} is {data[place]}, was {here[place]}")
        self.content[offset:end] = data
        self.known[offset:end] = b"\x01" * len(data)
        self.learn_length(end)

    def learn_length(self, length: int) -> None:
        """Committed bytes reach at least to `length`, and what was once committed stays."""
        if self.sealed and length > self.length:
            self._breach(f"a sealed segment grew from {self.length} to {length}")
        self.length = max(self.length, length)

    def learn_seal(self, length: int) -> None:
        """The segment is sealed at that length."""
        if not self.seal_attempts:
            self._breach(f"sealed at {length}, yet nobody sealed it")
        if length < self.length or (self.sealed and length != self.length):
            self._breach(f"sealed at {length}, yet its length is {self.length}")
        self.length = length
        self.sealed = True

    def learn_start(self, start: int) -> None:
        """Bytes below `start` are gone."""
        if start > self.start_max:
            self._breach(f"start offset {start}, yet nobody truncated beyond {self.start_max}")
        self.start = max(self.start, start)

    def learn_gone(self, tick: int) -> None:
        if not self.gone_attempts:
            self._breach("gone, yet nobody deleted or merged it")
        if self.gone_at is None:
            self.gone_at = tick

    def learn_info(self, info: SegmentProperties, look: Look) -> None:
        """Properties that were asked for when `look` was taken."""
        self._must_be_alive(look)
        if info.length < look.length:
            self._breach(f"length went back from {look.length} to {info.length}")
        if info.start_offset < look.start:
            self._breach(f"start offset went back from {look.start} to {info.start_offset}")
        if look.sealed and not info.sealed:
            self._breach("the seal went away")
        if not 0 <= info.start_offset <= info.length or info.storage_length > info.length:
            self._breach(f"impossible properties {info}")
        self.learn_start(info.start_offset)
        self.learn_length(info.length)
        if info.sealed:
            self.learn_seal(info.length)

    def learn_read(self, offset: int, data: bytes, look: Look) -> None:
        """A read that began at `look` gave these bytes."""
        self._must_be_alive(look)
        if offset < look.start:
            self._breach(f"read {offset}, below the start offset {look.start}")
        self.learn_bytes(offset, data)

    def learn_attributes(
        self,
        values: Mapping[AttributeKey, AttributeValue],
        keys: list[AttributeKey],
        floors: Mapping[AttributeKey, int],
    ) -> None:
        """Committed values of `keys`; `floors` are the counters' floors when the look began."""
        for key in keys:
            value = values.get(key)
            if key in self.counters:
                number = value if isinstance(value, int) else 0
                counter = self.counters[key]
                if not counter.observe(number, floor=floors.get(key, 0)):
                    self._breach(
                        f"counter {key!r} is {number}, acked={counter.acked} maybe={counter.maybe}"
                    )
            elif key in self.registers and not self.registers[key].observe(value):
                possible = self.registers[key].possible()
                self._breach(f"attribute {key!r} is {value!r}, possible: {possible}")

    def _must_be_alive(self, look: Look) -> None:
        if self.gone_at is not None and self.gone_at < look.tick:
            self._breach("it answers although it is gone")

    def _breach(self, why: str) -> None:
        raise ModelBreachError(f"{self}: {why}")
