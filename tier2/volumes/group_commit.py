"""A group of changes made durable in one step: judged, appended, synced, indexed. The only writer of the index.

    judge each mutation against the index and the group before it (group) -> records into the open volume, one vectored
    write -> fdatasync -> one index transaction -> outcomes

Invariants:

- The index never says what the volume does not hold synced (H72); an outcome is given only after both.
- A refusal judged against an earlier mutation of the same group is given with that mutation's own outcome.
- After a failed write or sync the volume is never written again (H48), and nothing else is committed before the records
  of the failed group are durably cut off: no later rebuild finds what was never answered. Their numbers never return
  (H33).
- When the disk is full, the reserve is given up and only what frees space goes on, until the reserves are held.
- After a failed assertion nothing is committed any more.

Blocking; runs in an executor, one call at a time.
"""

import errno
import logging
from collections.abc import Mapping, Sequence

from segmentstore.contracts.errors import StorageUnavailableError
from tier2.volumes.blob_record import seed_of
from tier2.volumes.buffered_index import BufferedIndex
from tier2.volumes.disk_reserve import DiskReserve
from tier2.volumes.group import Group, Outcome, rows_asked_for
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_rows import NEXT_SEQUENCE, encode_sequence
from tier2.volumes.mutations import IndexSynced, Mutation, Put
from tier2.volumes.new_objects import GroupPlace, Prepared, seal_at
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import PAST_CACHE_BYTES_MIN, OpenVolume, VolumeFiles

_LOGGER = logging.getLogger(__name__)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class GroupCommit:
    """Holds the open volume and the next sequence number."""

    def __init__(
        self,
        *,
        index: BufferedIndex,
        volumes: VolumeFiles,
        reserve: DiskReserve,
        compaction_reserve: DiskReserve,
        settings: VolumeSettings,
        sequence_next: int,
    ) -> None:
        self._index = index
        self._volumes = volumes
        self._reserve = reserve
        self._compaction_reserve = compaction_reserve
        self._settings = settings
        self._sequence_next = sequence_next
        self._sequence_applied = sequence_next
        self._open: OpenVolume | None = None
        self._to_cut: tuple[int, int] | None = None
        """A volume with records of a failed group, and where they begin."""
        self._abandoned: list[int] = []
        self._broken: BaseException | None = None
        self._next_place: GroupPlace | None = None
        """Where the group behind the one that is written will begin, if nothing comes in between. For any thread."""

    @property
    def sequence_applied(self) -> int:
        """Every change with a lower number is in the index, or never happened."""
        return self._sequence_applied

    @property
    def full(self) -> bool:
        """Puts are refused."""
        return not (self._reserve.held and self._compaction_reserve.held)

    def hold_reserves(self) -> bool:
        """Whether both are held: compaction's first, since it makes the room for the other."""
        return self._compaction_reserve.hold() and self._reserve.hold()

    def prepare(self, puts: Sequence[Put], now_ms: int) -> Prepared:
        """What can be done for their group before it is judged. In any thread, beside a group. Raises StorageError.

        It is taken to be the next one: if it is not, or not these puts alone, its records are made anew.
        """
        rows = self._index.read_ahead(rows_asked_for(puts))
        place = self._next_place
        if place is None or any(row is not None for row in rows.rows.values()):
            return Prepared(puts, rows)
        return Prepared(puts, rows, place, seal_at(puts, place, now_ms))

    def commit(
        self,
        mutations: Sequence[Mutation],
        now_ms: int,
        ahead: Sequence[Prepared | None],
    ) -> list[Outcome]:
        """One outcome per mutation: its record, None, or why it was refused.

        `ahead`: what was read for each of them before, if anything.
        Raises OSError: the outcome is unknown then; StorageUnavailableError.
        """
        if self._broken is not None:
            raise StorageUnavailableError(
                f"the volumes stopped: {self._broken}", state="index_failed"
            )
        self._cut_failed_group()
        full = not self.hold_reserves()
        try:
            return self._commit(mutations, now_ms, ahead, full=full)
        except OSError as error:
            if error.errno not in NO_SPACE or full:
                raise
        except AssertionError as error:
            self._broken = error
            raise
        self._reserve.give_up()
        self._cut_failed_group()
        return self._commit(mutations, now_ms, ahead, full=True)

    def flush_index(self) -> None:
        """Other processes may read what was committed. If it fails, the next group meets the error."""
        try:
            self._index.flush()
        except OSError as error:
            _LOGGER.warning("the index of the volumes could not be written: %s", error)

    def close(self) -> None:
        """Nothing is written to the open volume any more."""
        opened, self._open = self._open, None
        if opened is not None:
            self._volumes.release(opened)

    def _commit(
        self,
        mutations: Sequence[Mutation],
        now_ms: int,
        ahead: Sequence[Prepared | None],
        *,
        full: bool,
    ) -> list[Outcome]:
        group = Group(
            changes=IndexChanges(self._index),
            open_volume=lambda: self._volume(now_ms),
            sequence=self._sequence_next,
            now_ms=now_ms,
            full=full,
        )
        first = group.sequence
        self._look_ahead(group, mutations, ahead)
        outcomes = group.judge_all(mutations, _of_all(ahead))
        if group.has_records:
            self._write(group, first)
        changes = group.changes.take()
        if changes:
            self._apply(changes)
        self._sequence_applied = self._sequence_next
        if any(isinstance(mutation, IndexSynced) for mutation in mutations):
            self._index.sync()
        return outcomes

    def _look_ahead(
        self, group: Group, mutations: Sequence[Mutation], ahead: Sequence[Prepared | None]
    ) -> None:
        unread: list[Mutation] = []
        last: Prepared | None = None
        rows: Mapping[bytes, bytes | None] = {}
        for mutation, one in zip(mutations, ahead, strict=True):
            if one is not last:
                last = one
                rows = {} if one is None else self._index.still_true(one.rows)
                group.changes.know(rows)
            if not rows:
                unread.append(mutation)
        group.look_ahead(unread)

    def _write(self, group: Group, first: int) -> None:
        volume = self._open
        assert volume is not None, "records without a volume"
        self._sequence_next = group.sequence
        start = volume.end
        self._to_cut = (volume.number, start)
        try:
            past_cache = group.unique_bytes >= PAST_CACHE_BYTES_MIN
            encoded = group.encode(volume.secret)
            self._next_place = GroupPlace(
                volume.number, start + group.length, seed_of(volume.secret), group.sequence
            )
            volume.write(encoded, group.length, past_cache=past_cache)
        except BaseException:
            self._abandon()
            raise
        assert volume.end == start + group.length, f"{volume.end=} {start=} {group.length=}"
        group.changes.note_written(
            volume.number, end=volume.end, lowest=first, highest=group.sequence - 1
        )
        group.changes.put(NEXT_SEQUENCE, encode_sequence(group.sequence))

    def _apply(self, changes: Mapping[bytes, bytes | None]) -> None:
        try:
            self._index.apply(changes.items())
        except BaseException:
            # Nothing of the group is visible: its records must not be found later either.
            self._abandon()
            raise
        self._to_cut = None

    def _abandon(self) -> None:
        """Written no more; its file stays, also without records, until what failed is cut off."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()
            self._abandoned.append(opened.number)

    def _cut_failed_group(self) -> None:
        if self._to_cut is not None:
            self._volumes.cut(*self._to_cut)
            self._to_cut = None
        # Only now may compaction have them.
        self._volumes.written_now.difference_update(self._abandoned)
        self._abandoned.clear()

    def _volume(self, now_ms: int) -> OpenVolume:
        if self._open is not None and self._open.end >= self._settings.volume_bytes_max:
            self.close()
        if self._open is None:
            self._open = self._volumes.create(now_ms=now_ms, sequence_first=self._sequence_next)
        return self._open


def _of_all(ahead: Sequence[Prepared | None]) -> Prepared | None:
    """If one is of all of them."""
    first = ahead[0] if ahead else None
    return first if all(one is first for one in ahead) else None
