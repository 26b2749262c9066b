"""Which volumes are worth compacting, and which tombstones some volume still needs.

A volume is worth it when nothing of it is needed, when less than a set share of it is, or when it is one of many small
ones. Tombstones count as needed as long as any other volume may hold what they are there for.

Reads one index row and one header for each volume. Blocking; runs in an executor.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_rows import (
    SEQUENCE_MAX,
    VolumeRow,
    decode_volume_row,
    volume_key,
)
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import DamagedHeaderError, VolumeFiles

_UNKNOWN = VolumeRow(0, 0, sequence_lowest=0, sequence_highest=SEQUENCE_MAX)
"""Of a volume of which the index says nothing: it may hold any number."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A closed volume that should go."""

    number: int
    secret: int
    size: int
    needed_bytes: int

    @property
    def needs_copying(self) -> bool:
        return self.needed_bytes > 0


@dataclass(frozen=True, slots=True)
class _Volume:
    number: int
    secret: int
    size: int
    sequence_first: int
    row: VolumeRow

    def may_hold(self, oldest: int, tombstone: int) -> bool:
        """Whether a record from `oldest` on that the tombstone is there for may stand in it."""
        return (
            self.sequence_first <= tombstone
            and self.row.sequence_lowest < tombstone
            and self.row.sequence_highest >= oldest
        )


class CompactionChoice:
    """Looks at all volumes; remembers those that cannot go."""

    def __init__(
        self, *, index: IndexDatabase, volumes: VolumeFiles, settings: VolumeSettings
    ) -> None:
        self._index = index
        self._volumes = volumes
        self._settings = settings
        self.garbage_share = 0.0
        """What the newest candidates would give back, of the bytes of all volumes."""
        self._refused: set[int] = set()
        self._distrusted: set[int] = set()

    def refuse(self, number: int) -> None:
        """Not again in this life."""
        self._refused.add(number)

    def distrust(self, number: int) -> None:
        """It may hold copies of which the index does not know: numbers of any age, until the next start."""
        self._distrusted.add(number)

    def candidates(self, lent_bytes: int) -> list[Candidate]:
        """Those with the least to copy first: on a full disk they make the room for the others. Raises OSError.

        `lent_bytes` will be free beside what is free now.
        """
        volumes = self._look()
        closed = [
            volume
            for volume in volumes
            if volume.number not in self._volumes.written_now and volume.number not in self._refused
        ]
        needed = {volume.number: self._needed_bytes(volume, volumes) for volume in closed}
        small_bytes = self._settings.volume_bytes_max * self._settings.compaction_small_share
        small = [volume for volume in closed if volume.size < small_bytes]
        joins_small = len(small) >= self._settings.compaction_small_count
        chosen = [
            Candidate(volume.number, volume.secret, volume.size, needed[volume.number])
            for volume in closed
            if needed[volume.number] == 0
            or needed[volume.number] < volume.size * self._settings.compaction_live_share_max
            or (joins_small and volume.size < small_bytes)
        ]
        chosen.sort(key=lambda one: (one.needed_bytes, one.number))
        # Some is left for the index and for tombstones.
        room = self._volumes.free_bytes() + lent_bytes - self._settings.reserve_bytes // 8
        affordable = []
        for one in chosen:
            if one.needed_bytes and one.needed_bytes > room:
                break
            room += one.size - one.needed_bytes
            affordable.append(one)
        garbage = sum(one.size - one.needed_bytes for one in affordable)
        self.garbage_share = garbage / max(sum(volume.size for volume in volumes), 1)
        return affordable

    def tombstone_rule(self, leaving: int) -> Callable[[int, int], bool]:
        """Whether a tombstone of that number, there for records from `oldest` on, is needed when a volume leaves."""
        others = [volume for volume in self._look() if volume.number != leaving]

        def keeps(tombstone: int, oldest: int) -> bool:
            return any(volume.may_hold(oldest, tombstone) for volume in others)

        return keeps

    def _needed_bytes(self, volume: _Volume, volumes: list[_Volume]) -> int:
        row = volume.row
        if not row.tombstone_bytes:
            return row.live_bytes
        needs_tombstones = any(
            other.may_hold(row.tombstone_oldest, row.sequence_highest)
            for other in volumes
            if other.number != volume.number
        )
        return row.live_bytes + row.tombstone_bytes * needs_tombstones

    def _look(self) -> list[_Volume]:
        found: list[_Volume] = []
        for number in self._volumes.numbers():
            content = self._index.get(volume_key(number))
            row = _UNKNOWN if content is None else decode_volume_row(content)
            if number in self._distrusted:
                row = replace(row, sequence_lowest=0, sequence_highest=SEQUENCE_MAX)
            try:
                header = self._volumes.header(number)
                size = self._volumes.size(number)
            except FileNotFoundError:
                continue
            except DamagedHeaderError:
                # Nobody knows what is in it: it stays, and so do all tombstones it may need.
                self._refused.add(number)
                found.append(_Volume(number, 0, 0, 0, _UNKNOWN))
                continue
            if header is None:
                # Its creation was cut off: there is no record in it.
                found.append(_Volume(number, 0, 0, SEQUENCE_MAX, row))
                continue
            found.append(_Volume(number, header.secret, size, header.sequence_first, row))
        return found
