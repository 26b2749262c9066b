"""When a watermark is due and what it says: pure.

A writer **takes part** if it noted a later time than the last watermark's lower one. Others are waited for while they
are alive and not silent for too long; then they are forgotten, and come back with their next note.

A watermark is due when some writers take part and nobody is waited for. Its times are the lowest and highest of those
that take part, its cut the latest position of any of them for every key, and never behind the cut before. Keys that no
position covers are filled with the segments of the newest epoch among those positions, from their start: a reader has
passed the cut there only when it has come that far.

Invariants:

- Lower times grow from one watermark to the next; cuts never go back.
- A cut covers the key space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segmentstore.codec.stream_records.watermark import KeyedSegment
from segmentstore.codec.stream_records.writer_mark_record import WriterMarkRecord
from segmentstore.controller.retention.cut_order import KeyedCut, highest_of, uncovered


@dataclass(frozen=True, slots=True)
class MarkedWriter:
    """A writer, its newest mark, and for how long it has not noted a later time than the last watermark."""

    name: str
    mark: WriterMarkRecord
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Participants:
    """Who decides about the next watermark."""

    taking_part: Sequence[MarkedWriter]
    waited_for: Sequence[str]
    forgotten: Sequence[MarkedWriter]

    @property
    def is_due(self) -> bool:
        return bool(self.taking_part) and not self.waited_for


def participants(
    writers: Sequence[MarkedWriter], *, last_lower_time: int | None, silent_seconds_max: float
) -> Participants:
    """Sort the writers of a stream."""
    taking_part: list[MarkedWriter] = []
    waited_for: list[str] = []
    forgotten: list[MarkedWriter] = []
    for writer in writers:
        if last_lower_time is None or writer.mark.time > last_lower_time:
            taking_part.append(writer)
        elif writer.mark.alive and writer.silent_seconds < silent_seconds_max:
            waited_for.append(writer.name)
        else:
            forgotten.append(writer)
    return Participants(taking_part, waited_for, forgotten)


def joined_cut(
    positions: Sequence[KeyedCut],
    *,
    before: KeyedCut | None,
    newest: Sequence[KeyedSegment],
) -> Mapping[KeyedSegment, int]:
    """The latest of all positions, the cut before among them; gaps are filled from `newest`, a whole epoch.

    `newest` is the epoch in which the newest of the segments in question was created: nothing in it has been replaced
    by any of them, so what it adds never lies before a position. Segments that overlap what is added give way to it.
    """
    cut = highest_of([*positions, *([before] if before is not None else [])])
    # Every round adds segments of one epoch, of which there are finitely many, and removes older ones only.
    for _ in range(len(newest) + 1):
        gaps = uncovered(cut)
        if not gaps:
            return cut
        fillers: dict[KeyedSegment, int] = {
            segment: 0
            for segment in newest
            if any(segment.low < high and low < segment.high for low, high in gaps)
        }
        cut = highest_of([cut, fillers])
    raise AssertionError(f"gaps are never filled cut={cut} newest={newest}")
