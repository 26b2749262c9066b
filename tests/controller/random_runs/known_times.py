"""What is known of the times that writers noted in one incarnation of a stream, and of its watermarks.

Invariants:

- Watermarks never change; their lower times grow, their cuts cover the keys and never go back.
- Whoever had noted a later time than a watermark says before the next one was begun takes part in that: its lower time
  is not above what the writer has noted, its cut not before where the writer was.
- Nobody who is alive and has noted nothing since is passed over before the time for that has gone by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from segmentstore.codec.controller_records.stream_records import SegmentWithRange
from segmentstore.codec.controller_records.watermark_records import Watermark
from segmentstore.codec.stream_names import creation_epoch_of
from tests.sim.attempts import ModelBreachError


@dataclass(slots=True, eq=False)
class KnownWriter:
    """A writer that notes times, as it knows itself."""

    name: str
    answered: "Note | None" = None
    asked_time: int = -1
    """The latest that it may have noted."""
    leaves: bool = False
    """It asked not to be waited for."""


@dataclass(frozen=True, slots=True)
class Note:
    """A time and where the writer was."""

    time: int
    position: Mapping[SegmentWithRange, int]


@dataclass(frozen=True, slots=True)
class Glance:
    """What was known before one look at the watermarks was sent."""

    at: float
    """Loop time."""
    notes: Mapping[str, Note]
    """Writer -> its last note that was answered."""


@dataclass(frozen=True, slots=True)
class KnownWatermark:
    """A watermark that somebody has read."""

    watermark: Watermark
    end: int
    """Offset behind it."""
    absent: Glance
    """The last look before it was there."""


@dataclass(slots=True, eq=False)
class KnownTimes:
    """Writers and watermarks."""

    writers: dict[str, KnownWriter] = field(default_factory=dict)
    watermarks: dict[int, KnownWatermark] = field(default_factory=dict)
    """By their offsets, in order."""
    end: int = 0
    """Behind the last one that was read."""
    unbroken: int = 0
    """From this offset on every one was read."""
    last: Glance = Glance(0.0, {})

    def glance(self, now: float) -> Glance:
        notes = {name: each.answered for name, each in self.writers.items() if each.answered}
        return Glance(now, notes)

    def learn(
        self,
        content: Sequence[tuple[int, int, Watermark]],
        glance: Glance,
        *,
        now: float,
        silent_seconds: float,
    ) -> None:
        """Somebody has read these, with their offsets. Looks may be learnt in another order than they were sent."""
        end = content[-1][1] if content else 0
        for offset, behind, watermark in content:
            known = self.watermarks.get(offset)
            if known is not None:
                if known.watermark != watermark:
                    raise ModelBreachError(f"a watermark has changed {known} {watermark}")
                continue
            if offset < self.end:
                if offset >= self.unbroken:
                    raise ModelBreachError(f"a watermark came into the middle {offset} {watermark}")
                continue
            if offset > self.end:
                # Some went before anybody read them.
                self.unbroken = offset
            before = [each for at, each in self.watermarks.items() if at >= self.unbroken][-2:]
            self._check(watermark, before, now=now, silent_seconds=silent_seconds)
            self.watermarks[offset] = KnownWatermark(watermark, behind, self.last)
            self.end = behind
        if end == self.end and glance.at > self.last.at:
            self.last = glance

    def _check(
        self,
        watermark: Watermark,
        before: list[KnownWatermark],
        *,
        now: float,
        silent_seconds: float,
    ) -> None:
        _check_whole(watermark)
        if not before:
            return
        last = before[-1]
        if watermark.lower_time <= last.watermark.lower_time:
            raise ModelBreachError(f"watermarks go back {last.watermark} {watermark}")
        _check_reaches(watermark, last.watermark.cut, "the one before")
        for name, note in last.absent.notes.items():
            writer = self.writers[name]
            if note.time > last.watermark.lower_time:
                if watermark.lower_time > writer.asked_time:
                    raise ModelBreachError(f"{watermark} is later than {writer} has noted")
                _check_reaches(watermark, note.position, name)
            elif (
                len(before) == 2
                and note.time > before[0].watermark.lower_time
                and not writer.leaves
                and writer.asked_time <= last.watermark.lower_time
                and now - last.absent.at < silent_seconds
            ):
                raise ModelBreachError(f"{watermark} did not wait for {writer}")


def _check_whole(watermark: Watermark) -> None:
    edges = sorted((each.low, each.high) for each in watermark.cut)
    whole = (
        edges
        and edges[0][0] == 0.0
        and edges[-1][1] == 1.0
        and all(left[1] == right[0] for left, right in pairwise(edges))
    )
    if not whole or watermark.lower_time > watermark.upper_time:
        raise ModelBreachError(f"a watermark does not cover the keys {watermark}")


def _check_reaches(
    watermark: Watermark, position: Mapping[SegmentWithRange, int], whose: str
) -> None:
    """No key lies before the position."""
    for segment, offset in watermark.cut.items():
        for other, reached in position.items():
            if segment == other:
                fits = offset >= reached
            elif segment.overlaps(other):
                fits = creation_epoch_of(segment.segment_id) > creation_epoch_of(other.segment_id)
            else:
                continue
            if not fits:
                raise ModelBreachError(f"{watermark} lies before {position} of {whose}")
