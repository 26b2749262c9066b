"""Whether the bytes of a segment are the events that its indexes say they are.

    event   int32 0, int32 length, so many bytes; an event may begin in one block and end many blocks later

A walk goes through the blocks of one chunk, from event to event, and compares what it meets with what each block's
index says: where its first event begins, and its number. What a chunk alone cannot tell is left in its `ChunkFraming`,
and `joint_damages` compares neighbours when all chunks of a segment are known.

- Where nobody said where events lie, nothing is concluded; the walk goes on at the next block that knows.
- An event header that is cut by the end of a chunk ends the walk: the next chunk's own index takes over.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from segmentstore.contracts.identifiers import BufferView
from tier2.format.chunk_index import EventInformation

_HEADER = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class ChunkFraming:
    """What one chunk's walk leaves for its neighbours; offsets are the segment's."""

    start_offset: int
    end_offset: int
    first_offset: int | None = None
    """Of the first event that begins in the chunk; None if none does, or if nobody knows."""
    first_number: int = 0
    first_known: bool = False
    """Whether every block up to that one says where events lie; then `first_offset` None means the inside of one."""
    next_offset: int | None = None
    """Where the event behind the last one begins, perhaps far behind the chunk; None if nobody knows."""
    next_number: int = 0
    events: int = 0
    """That begin in the chunk, as far as they could be counted."""


class FramingWalk:
    """Goes through the blocks of one chunk in order."""

    def __init__(self, start_offset: int) -> None:
        """`start_offset`: of the chunk in its segment."""
        self._start_offset = start_offset
        self._offset = start_offset
        self._next: int | None = None
        self._number = 0
        self._cut_header = b""
        self._first: tuple[int, int] | None = None
        self._first_known = True
        self._events = 0

    def block(self, content: BufferView, events: EventInformation | None) -> str:
        """A sentence if the block contradicts itself or those before it, else empty. O(events)."""
        start, end = self._offset, self._offset + len(content)
        self._offset = end
        if events is None:
            self._first_known = self._first_known and self._first is not None
            self._next, self._cut_header = None, b""
            return ""
        sentence = self._resume(content, events, start, end)
        if self._next is not None and not sentence:
            sentence = self._walk(content, start, end)
        if sentence:
            self._next, self._cut_header = None, b""
        return sentence

    def result(self) -> ChunkFraming:
        """After the last block."""
        first, number = self._first if self._first is not None else (None, 0)
        return ChunkFraming(
            start_offset=self._start_offset,
            end_offset=self._offset,
            first_offset=first,
            first_number=number,
            first_known=self._first_known,
            next_offset=self._next,
            next_number=self._number,
            events=self._events,
        )

    def _resume(self, content: BufferView, events: EventInformation, start: int, end: int) -> str:
        """Bring what is expected and what the index says together."""
        position = events.first_event_position
        told = None if position is None else start + position
        if self._cut_header:
            missing = _HEADER.size - len(self._cut_header)
            header = self._cut_header + bytes(content[:missing])
            if len(header) < _HEADER.size:
                self._cut_header = header
                return ""
            begun = start - len(self._cut_header)
            self._cut_header = b""
            kind, length = _HEADER.unpack(header)
            if kind != 0 or length < 0:
                return _no_event(begun, kind, length)
            self._count()
            self._next = begun + _HEADER.size + length
        expected = self._next if self._next is not None and self._next < end else None
        if self._next is not None and expected != told:
            return f"an event begins at {expected} and not at {told} as the index says"
        if told is not None:
            if self._next is not None and events.first_event_number != self._number:
                return (
                    f"the event at {told} is number {self._number} and not"
                    f" {events.first_event_number} as the index says"
                )
            self._next, self._number = told, events.first_event_number
            if self._first is None:
                self._first = told, events.first_event_number
        return ""

    def _walk(self, content: BufferView, start: int, end: int) -> str:
        assert self._next is not None, "a walk begins at an event"
        unpack = _HEADER.unpack_from
        last = end - start - _HEADER.size
        position = self._next - start
        count = 0
        while position <= last:
            kind, length = unpack(content, position)
            if kind != 0 or length < 0:
                return _no_event(start + position, kind, length)
            position += 8 + length
            count += 1
        self._number += count
        self._events += count
        self._next = start + position
        if self._next < end:
            self._cut_header, self._next = bytes(content[position:]), None
        return ""

    def _count(self) -> None:
        self._number += 1
        self._events += 1


def joint_damages(chunks: Sequence[ChunkFraming], *, sealed_length: int | None) -> list[str]:
    """Contradictions between neighbouring chunks of one segment, in offset order. `sealed_length`: where a sealed
    segment ends, so that no event may be left open there. O(chunks)."""
    damages: list[str] = []
    for before, after in pairwise(chunks):
        if before.next_offset is None or not after.first_known:
            continue
        if before.end_offset != after.start_offset:
            continue  # a hole, or a chunk that could not be read, is reported as such
        inside = before.next_offset < after.end_offset
        expected = (before.next_offset, before.next_number) if inside else None
        found = None if after.first_offset is None else (after.first_offset, after.first_number)
        if expected != found:
            damages.append(
                f"events do not go on from chunk to chunk at={after.start_offset}"
                f" expected={expected} found={found}"
            )
    last = chunks[-1] if chunks else None
    if (
        last is not None
        and sealed_length is not None
        and last.end_offset == sealed_length
        and last.next_offset not in (None, sealed_length)
    ):
        damages.append(f"the last event is cut off length={sealed_length} end={last.next_offset}")
    return damages


def _no_event(offset: int, kind: int, length: int) -> str:
    return f"what should be an event is none offset={offset} {kind=} {length=}"
