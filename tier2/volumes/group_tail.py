"""Where the last whole group of a volume ends: what a cut left of the one behind it was never answered.

A group is one write. A power cut keeps any part of it, so records behind a hole may be whole; yet none of them was
acknowledged, and one may refer to another that is lost. So the group is there whole or not at all.

Invariant: damage that another group follows is no torn write, since that group was written after a sync: nothing is
cut then, and the damage is reported.
"""

from tier2.volumes.volume_scan import DamagedStretch, ScannedRecord


class GroupTail:
    """Follows one scan."""

    def __init__(self, start: int) -> None:
        """`start`: where the scan begins, at the end of a group."""
        self._group_start = start
        self._torn_at: int | None = None
        """Start of the group in which there is damage."""
        self._ends_behind_damage = 0
        """Groups that end with the damage or behind it."""
        self._open = False

    def see(self, one: ScannedRecord | DamagedStretch) -> None:
        """The next item of the scan."""
        if isinstance(one, DamagedStretch):
            self._torn_at = self._group_start
            self._ends_behind_damage = 0
        # A record whose body alone is bad says as well whether its group ends with it.
        header = one.header
        if header is None:
            return
        self._open = header.group_left > 0
        if not self._open:
            self._group_start = one.offset + header.total_length
            self._ends_behind_damage += 1

    def pass_over(self, end: int, groups: int) -> None:
        """So many whole groups came next, the last of which ends at `end`."""
        assert not self._open, "groups that begin inside another one"
        self._group_start = end
        self._ends_behind_damage += groups

    @property
    def cut_at(self) -> int | None:
        """Where the volume has to end, or None if its last group is whole."""
        if self._torn_at is not None and self._ends_behind_damage <= 1:
            return self._torn_at
        return self._group_start if self._open else None
