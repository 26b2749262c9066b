"""A write batch made durable in one step: judged, appended, synced, indexed. The only writer of the index.

    judge each mutation against the index and the batch before it -> records into the open volume, one vectored
    write -> fdatasync -> one index transaction -> outcomes

Invariants:

- The index never says what the volume does not hold synced; an outcome is given only after both.
- A refusal judged against an earlier mutation of the same batch is given with that mutation's own outcome.
- After a failed write or sync the volume is never written again, and nothing else is committed before the records
  of the failed batch are durably cut off: no later rebuild finds what was never answered. Their numbers never return.
- A change that was applied is answered with its outcome, whatever fails behind it: a sync that compaction asked for
  fails for compaction alone.
- When the disk is full, the reserve is given up and only what frees space goes on, until the reserves are held.
- After an error that is neither the disk's nor a refusal nothing is committed any more, in whichever attempt it came.

Blocking; runs in an executor, one call at a time.
"""

import logging
from collections.abc import Mapping, Sequence

from segmentstore.contracts.errors import (
    SegmentStoreError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import NO_SPACE_ERRNOS, FileSystem
from tier2.volumes.index import (
    NEW_VOLUME_ROW,
    NEXT_SEQUENCE,
    IndexChanges,
    decode_volume_row,
    encode_sequence,
    encode_volume_row,
    volume_key,
)
from tier2.volumes.index_database import BufferedIndex
from tier2.volumes.mutations import Mutation, Put, SyncIndex
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import (
    PAST_CACHE_BYTES_MIN,
    OpenVolume,
    VolumeFiles,
    storage_error_of,
)
from tier2.volumes.volume_format import seed_of
from tier2.volumes.write_batch import (
    BatchPlace,
    Outcome,
    PreparedBatch,
    SealedBatch,
    WriteBatch,
    rows_asked_for,
    seal_batch,
)

_LOGGER = logging.getLogger(__name__)
_RESERVE_STEP = bytes(1 << 20)


class DiskReserve:
    """A file of zeros that is given up when the disk is full.

    An engine has two: one for the tombstones of deletes, another for the copies of compaction, so that deletes cannot
    take the room that it takes to make room.

    Invariant: it is made anew only when there is room for it twice over, so that service returns for longer than a
    moment.

    Blocking; made for an executor.
    """

    def __init__(self, path: str, *, files: FileSystem, size: int) -> None:
        self._path = path
        self._directory = path.rsplit("/", 1)[0]
        self._files = files
        self._size = size
        self.held = False
        self._lent = False

    @property
    def size(self) -> int:
        return self._size

    def lend(self) -> None:
        """Give it up until `take_back`: until then it is not held again. Raises OSError."""
        self._lent = True
        self.give_up()

    def take_back(self) -> None:
        """It may be held again, when there is room."""
        self._lent = False

    def hold(self) -> bool:
        """Make the file unless it is there; whether it is there now."""
        if self.held or self._lent:
            return self.held
        try:
            present = self._files.size(self._path) if self._files.exists(self._path) else 0
            if present < self._size:
                if self._files.free_bytes(self._directory) < 2 * self._size:
                    return False
                self._write()
            self.held = True
        except OSError:
            # No room, or a disk that fails: the next write will say which.
            self.give_up()
        return self.held

    def give_up(self) -> None:
        """Its bytes are free. Raises OSError."""
        self.held = False
        if self._files.exists(self._path):
            self._files.remove(self._path)
            self._files.sync_directory(self._directory)

    def _write(self) -> None:
        file = self._files.open(self._path, create=True)
        try:
            for offset in range(0, self._size, len(_RESERVE_STEP)):
                file.write_at(offset, [_RESERVE_STEP[: self._size - offset]])
            file.sync_data()
        finally:
            file.close()


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
        """A volume with records of a failed batch, and where they begin."""
        self._abandoned: list[int] = []
        self._broken: BaseException | None = None
        self._next_place: BatchPlace | None = None
        """Where the batch behind the one that is written will begin, if nothing comes in between. For any thread."""

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

    def prepare(self, puts: Sequence[Put], now_ms: int) -> PreparedBatch:
        """What can be done for their batch before it is judged. In any thread, beside a batch. Raises StorageError.

        It is taken to be the next one: if it is not, or not these puts alone, its records are made anew.
        """
        wanted = rows_asked_for(puts)
        rows = self._index.prefetch(wanted)
        place = self._next_place
        if (
            place is None
            or not _are_puts_of_new_objects(puts)
            or not _are_rows_absent(wanted, rows.rows)
        ):
            return PreparedBatch(rows)
        return PreparedBatch(rows, seal_batch(puts, place, now_ms))

    def commit(
        self,
        mutations: Sequence[Mutation],
        now_ms: int,
        ahead: Sequence[PreparedBatch | None],
    ) -> list[Outcome]:
        """One outcome per mutation: its record, None, or why it was refused.

        `ahead`: what was read for each of them before, if anything.
        Raises OSError: the outcome is unknown then; StorageUnavailableError.
        """
        if self._broken is not None:
            raise StorageUnavailableError(
                f"the volumes stopped: {self._broken}", state="index_failed"
            )
        self._cut_failed_batch()
        full = not self.hold_reserves()
        try:
            return self._attempt(mutations, now_ms, ahead, full=full)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRNOS or full:
                raise
        self._reserve.give_up()
        self._cut_failed_batch()
        return self._attempt(mutations, now_ms, ahead, full=True)

    def flush_index(self) -> None:
        """Other processes may read what was committed. If it fails, the next batch meets the error."""
        try:
            self._index.flush()
        except (OSError, SegmentStoreError) as error:
            _LOGGER.warning("the index of the volumes could not be written: %s", error)

    def close(self) -> None:
        """Nothing is written to the open volume any more."""
        opened, self._open = self._open, None
        if opened is not None:
            self._volumes.release(opened)

    def _attempt(
        self,
        mutations: Sequence[Mutation],
        now_ms: int,
        ahead: Sequence[PreparedBatch | None],
        *,
        full: bool,
    ) -> list[Outcome]:
        try:
            return self._commit(mutations, now_ms, ahead, full=full)
        except (OSError, SegmentStoreError):
            if self._to_cut is not None:
                # Also of an index that could not be read behind the write: nothing may follow where this will be cut.
                self._abandon()
                # Before its callers are told: a kill now would leave it to the next start, which would apply it.
                self._cut_failed_batch()
            raise
        except BaseException as error:
            self._broken = error
            raise

    def _commit(
        self,
        mutations: Sequence[Mutation],
        now_ms: int,
        ahead: Sequence[PreparedBatch | None],
        *,
        full: bool,
    ) -> list[Outcome]:
        sealed = None if full else self._sealed(mutations, now_ms, ahead)
        if sealed is not None:
            return self._commit_sealed(sealed)
        batch = WriteBatch(
            changes=IndexChanges(self._index),
            open_volume=lambda: self._volume(now_ms),
            sequence=self._sequence_next,
            now_ms=now_ms,
            full=full,
        )
        first = batch.sequence
        self._look_ahead(batch, mutations, ahead)
        outcomes = [batch.judge(mutation) for mutation in mutations]
        if batch.has_records:
            volume = self._opened()
            encoded = batch.encode(volume.secret)
            self._write(encoded, batch.length, batch.unique_bytes, batch.sequence)
            batch.changes.note_written(
                volume.number, end=volume.end, lowest=first, highest=batch.sequence - 1
            )
            batch.changes.put(NEXT_SEQUENCE, encode_sequence(batch.sequence))
        changes = batch.changes.take()
        if changes:
            self._apply(changes)
        self._sequence_applied = self._sequence_next
        if any(isinstance(mutation, SyncIndex) for mutation in mutations):
            failure = self._sync_index()
            if failure is not None:
                pairs = zip(mutations, outcomes, strict=True)
                return [failure if isinstance(one, SyncIndex) else found for one, found in pairs]
        return outcomes

    def _sync_index(self) -> SegmentStoreError | None:
        """Why it could not be synced. What the batch changed is applied: it is neither refused nor made again."""
        try:
            try:
                self._index.sync()
            except OSError as error:
                if error.errno not in NO_SPACE_ERRNOS or not self._reserve.held:
                    raise
                self._reserve.give_up()
                self._index.sync()
        except SegmentStoreError as error:
            return error
        except OSError as error:
            return storage_error_of(error, "the index of the volumes cannot be synced")
        return None

    def _look_ahead(
        self,
        batch: WriteBatch,
        mutations: Sequence[Mutation],
        ahead: Sequence[PreparedBatch | None],
    ) -> None:
        unread: list[Mutation] = []
        last: PreparedBatch | None = None
        rows: Mapping[bytes, bytes | None] = {}
        for mutation, one in zip(mutations, ahead, strict=True):
            if one is not last:
                last = one
                rows = {} if one is None else self._index.still_valid(one.rows)
                batch.changes.know(rows)
            if not rows:
                unread.append(mutation)
        batch.prefetch(unread)

    # --- new objects -----------------------------------------------------------------------------

    def _sealed(
        self, mutations: Sequence[Mutation], now_ms: int, ahead: Sequence[PreparedBatch | None]
    ) -> SealedBatch | None:
        """The batch, if all of it is new objects. Raises OSError."""
        prepared = _prepared_for_all(ahead)
        if prepared is not None and prepared.sealed is not None:
            sealed = prepared.sealed
            if len(sealed.records) == len(mutations) and self._is_next(sealed.place):
                rows = self._index.still_valid(prepared.rows)
                if rows and not any(rows.values()):
                    return sealed
        puts = [one for one in mutations if type(one) is Put]
        if len(puts) < len(mutations) or not _are_puts_of_new_objects(puts):
            return None
        wanted = rows_asked_for(puts)
        found = dict(zip(wanted, self._index.get_many(wanted), strict=True))
        if not _are_rows_absent(wanted, found):
            return None
        volume = self._volume(now_ms)
        seed = seed_of(volume.secret)
        place = BatchPlace(volume.number, volume.end, seed, self._sequence_next)
        return seal_batch(puts, place, now_ms)

    def _is_next(self, place: BatchPlace) -> bool:
        """Whether a batch begins there now."""
        volume = self._open
        return (
            volume is not None
            and volume.end < self._settings.volume_bytes_max
            and place == (volume.number, volume.end, seed_of(volume.secret), self._sequence_next)
        )

    def _commit_sealed(self, sealed: SealedBatch) -> list[Outcome]:
        number, _, _, first = sealed.place
        following = first + len(sealed.records)
        self._write(sealed.buffers, sealed.length, sealed.unique_bytes, following)
        row_key = volume_key(number)
        stored = self._index.get_certain(row_key)
        row = NEW_VOLUME_ROW if stored is None else decode_volume_row(stored)
        changes = sealed.rows
        changes[row_key] = encode_volume_row(
            row.with_records(
                end=self._opened().end, lowest=first, highest=following - 1, live=sealed.live
            )
        )
        changes[NEXT_SEQUENCE] = encode_sequence(following)
        self._apply(changes)
        self._sequence_applied = following
        return [*sealed.records]

    # --- writing ---------------------------------------------------------------------------------

    def _write(
        self, buffers: Sequence[BufferView], length: int, unique_bytes: int, sequence_next: int
    ) -> None:
        """`sequence_next`: the number behind those of the records."""
        volume = self._opened()
        self._sequence_next = sequence_next
        start = volume.end
        self._to_cut = (volume.number, start)
        self._next_place = BatchPlace(
            volume.number, start + length, seed_of(volume.secret), sequence_next
        )
        try:
            volume.write(buffers, length, past_cache=unique_bytes >= PAST_CACHE_BYTES_MIN)
        except BaseException:
            self._abandon()
            raise
        assert volume.end == start + length, f"{volume.end=} {start=} {length=}"

    def _opened(self) -> OpenVolume:
        assert self._open is not None, "records without a volume"
        return self._open

    def _apply(self, changes: Mapping[bytes, bytes | None]) -> None:
        try:
            self._index.apply(changes.items())
        except BaseException:
            # Nothing of the batch is visible: its records must not be found later either.
            self._abandon()
            raise
        self._to_cut = None

    def _abandon(self) -> None:
        """Written no more; its file stays, also without records, until what failed is cut off."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()
            self._abandoned.append(opened.number)

    def _cut_failed_batch(self) -> None:
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


def _prepared_for_all(ahead: Sequence[PreparedBatch | None]) -> PreparedBatch | None:
    """If one is of all of them."""
    first = ahead[0] if ahead else None
    return first if all(one is first for one in ahead) else None


def _are_puts_of_new_objects(puts: Sequence[Put]) -> bool:
    """As far as one sees without the index."""
    return bool(puts) and all(put.new is not None for put in puts)


def _are_rows_absent(wanted: Sequence[bytes], rows: Mapping[bytes, bytes | None]) -> bool:
    """Whether none of these rows is there, and each is wanted once."""
    return len(rows) == len(wanted) and not any(rows.values())
