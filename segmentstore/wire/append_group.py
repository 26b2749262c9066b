"""Joins appends of one writer that were received together into one append.

A client with little on its way sends many small blocks, and each append costs the container the same whatever its
length. Joined, they are stored and told as one: an acknowledgement names the last, which stands for all, and a refusal
names the first.

Only neighbours are joined whose outcome can be told together: the same request, event numbers that grow, no expected
offset; and of one kind, so that bytes that only look like events are never counted as events (H76).
"""

from typing import Final

from segmentstore.wire.append_unit import AppendUnit

_JOINED_BYTES_MAX: Final = 64 * 1024
"""Longer appends gain nothing: they would only be copied once more."""


class AppendGroup:
    """add() while it takes more, then joined()."""

    __slots__ = ("_byte_count", "_event_count", "_units")

    def __init__(self, first: AppendUnit) -> None:
        self._units = [first]
        self._byte_count = len(first.data)
        self._event_count = first.event_count

    def add(self, unit: AppendUnit) -> bool:
        """Whether it can be told together with those before it. O(1)."""
        last = self._units[-1]
        byte_count = self._byte_count + len(unit.data)
        if (
            byte_count > _JOINED_BYTES_MAX
            or unit.request_id != last.request_id
            or unit.last_event_number <= last.last_event_number
            or unit.is_framed != last.is_framed
            or unit.expected_offset is not None
            or last.expected_offset is not None
        ):
            return False
        self._units.append(unit)
        self._byte_count = byte_count
        self._event_count += unit.event_count
        return True

    def joined(self) -> AppendUnit:
        """All of them as one append."""
        units = self._units
        last = units[-1]
        if len(units) == 1:
            return last
        joined = AppendUnit(
            last.writer_id,
            b"".join([unit.data for unit in units]),
            self._event_count,
            last.last_event_number,
            last.request_id,
        )
        joined.is_framed = last.is_framed
        joined.unit_count = len(units)
        joined.first_event_number = units[0].first_event_number
        return joined
