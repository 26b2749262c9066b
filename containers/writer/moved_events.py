"""The events of a merged source, as its target counts them (H76).

The target's event count grows in the merge's own operation. If it grew, the source's own numbers go on from the first
event that the target had not counted. If nobody declared what the source's bytes are, they begin with that event, and
if the count grew by one, they are that event, however many appends brought them. If it did not grow, nothing is known
of the events in those bytes.
"""

from dataclasses import replace

from containers.writer.planned_piece import RunSlice
from segmentstore.contracts.storage import MergePiece, RunEvents


class MovedEvents:
    """The events of one merge."""

    def __init__(self, count_before: int, count_after: int, *, declared: int) -> None:
        """The target's event count before and after the merge, and the source's own."""
        self._first = count_before
        self._count = count_after - count_before
        self._undeclared = declared == 0

    def in_piece(self, piece: MergePiece, offset: int, *, begins: bool) -> MergePiece:
        """The piece of the source at `offset` of the target; `begins`: it is the source's beginning."""
        if self._count <= 0 or piece.first_event is None:
            return replace(piece, offset=offset, first_event=None, begins_event=False)
        return replace(
            piece,
            offset=offset,
            first_event=piece.first_event + self._first,
            begins_event=piece.begins_event or (begins and self._undeclared),
        )

    def count_in_slice(self, item: RunSlice, *, begins: bool) -> None:
        """The same for bytes that Tier 2 does not have yet."""
        known = item.events
        number: int | None
        if self._count <= 0:
            item.events = None
            return
        if known is not None:
            number = None if known.first_number is None else known.first_number + self._first
        elif self._undeclared and begins:
            number = self._first
        elif self._undeclared and self._count == 1:
            number = None
        else:
            return
        item.events = RunEvents(number, item.lowest_time_ms, item.highest_time_ms)
