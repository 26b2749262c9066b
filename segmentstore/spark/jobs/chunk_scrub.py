"""The work of one task of the `verify` job: has Tier 2 prove chunk images, and walks through their events.

Tier 2 (tier2/offline/image_proof.py) compares checksums and lengths; `FramingWalk` also shows that the bytes of a
segment are the events that its indexes say they are:

    event   int32 0, int32 length, so many bytes; an event may begin in one block and end many blocks later

A walk goes through the blocks of one chunk, from event to event, and compares what it meets with what each block's
index says: where its first event begins, and its number. What a chunk alone cannot tell is left in its `ChunkFraming`,
and `joint_damages` compares neighbours when all chunks of a segment are known.

- Damage is an answer and not an error: a task goes on to its end and says everything that it found.
- Of an image that `moved` the driver that planned the task looks where its bytes are now.
- In a block of which it is not recorded where events lie nothing is concluded; the walk goes on at the next block that
  knows.
- An event header that is cut by the end of a chunk ends the walk: the next chunk's own index takes over.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, NoEventError, skip_events
from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, container_reader, open_for_reading
from tier2.outside_access import (
    EventInformation,
    ExamineBlock,
    ImageProof,
    LayoutEntry,
    SegmentImage,
    prove_images,
)


@dataclass(frozen=True, slots=True)
class ScrubImage:
    """One image to prove: an entry of the layout of a segment."""

    container_id: int
    segment_id: int
    segment_name: str
    entry: LayoutEntry

    @property
    def name(self) -> str:
        """The same for the same bytes at the same place, in every plan."""
        entry = self.entry
        return (
            f"{self.container_id}/{entry.identity}+{entry.position}"
            f"@{self.segment_id}:{entry.start_offset}"
        )

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self.entry.size


@dataclass(frozen=True, slots=True)
class ChunkFraming:
    """What one chunk's walk leaves for its neighbours; offsets are the segment's."""

    start_offset: int
    end_offset: int
    first_offset: int | None = None
    """Of the first event that begins in the chunk; None if none does, or if no block tells it."""
    first_number: int = 0
    first_known: bool = False
    """Whether every block up to that one says where events lie; then `first_offset` None means the inside of one."""
    next_offset: int | None = None
    """Where the event behind the last one begins, perhaps far behind the chunk; None if no block tells it."""
    next_number: int = 0
    events: int = 0
    """That begin in the chunk, as far as they could be counted."""


@dataclass(frozen=True, slots=True)
class ScrubbedImage:
    """What was found in one image."""

    image: ScrubImage
    damages: tuple[str, ...]
    framing: ChunkFraming | None
    """None if the image could not be read to its end."""
    moved: bool = False


def scrub_images(
    place: Tier2Location, framing: bool, images: Sequence[ScrubImage]
) -> list[ScrubbedImage]:
    """All of them, container by container, as they lie in their objects. `framing`: walk through the events as well.

    Raises StorageError.
    """
    with LoopRunner() as runner:
        return runner.run(_scrub_images(place, images, framing=framing, executor=runner.executor))


async def _scrub_images(
    place: Tier2Location, images: Sequence[ScrubImage], *, framing: bool, executor: Executor
) -> list[ScrubbedImage]:
    by_container: dict[int, dict[SegmentImage, ScrubImage]] = {}
    for image in images:
        stored = SegmentImage(SegmentId(image.segment_id), image.entry)
        by_container.setdefault(image.container_id, {})[stored] = image
    found: list[ScrubbedImage] = []
    async with open_for_reading(place, executor) as store:
        for container_id, named in sorted(by_container.items()):
            reader = container_reader(store, container_id, executor)
            walks: dict[SegmentImage, FramingWalk] = {}

            def begin(
                image: SegmentImage, walks: dict[SegmentImage, FramingWalk] = walks
            ) -> ExamineBlock:
                walks[image] = FramingWalk(image.entry.start_offset)
                return walks[image].block

            proving = prove_images(list(named), reader, begin=begin if framing else None)
            async with aclosing(proving) as proofs:
                async for proof in proofs:
                    walk = walks.pop(proof.image, None)
                    found.append(_scrubbed(named[proof.image], proof, walk))
    return found


def _scrubbed(image: ScrubImage, proof: ImageProof, walk: "FramingWalk | None") -> ScrubbedImage:
    place = f"segment={image.segment_name!r} offset={image.entry.start_offset}"
    return ScrubbedImage(
        image=image,
        damages=tuple(f"{damage} {place}" for damage in proof.damages),
        framing=walk.result() if walk is not None and not proof.damages else None,
        moved=proof.is_moved,
    )


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
            missing = EVENT_HEADER_BYTES - len(self._cut_header)
            header = self._cut_header + bytes(content[:missing])
            if len(header) < EVENT_HEADER_BYTES:
                self._cut_header = header
                return ""
            begun = start - len(self._cut_header)
            self._cut_header = b""
            try:
                _, behind = skip_events(header)
            except NoEventError as error:
                return _no_event(begun, error)
            self._count()
            self._next = begun + behind
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
        try:
            count, position = skip_events(content, self._next - start)
        except NoEventError as error:
            return _no_event(start + error.position, error)
        self._number += count
        self._events += count
        self._next = start + position
        if self._next < end:
            self._cut_header, self._next = bytes(content[position:]), None
        return ""

    def _count(self) -> None:
        self._number += 1
        self._events += 1


def _no_event(offset: int, error: NoEventError) -> str:
    return f"what should be an event is none offset={offset} kind={error.event_type} length={error.length}"


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
