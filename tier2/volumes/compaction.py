"""Gives back the space of what was deleted: copies what is needed of a volume, points to the copies, removes it.

    choose a closed volume -> copy slice by slice (compaction_copy.py)
    -> sync -> drop the cache, read back, verify
    -> through the write queue: relocate what still counts -> index.sync() -> nothing of it is live: remove the file

`CompactionPicker` says which volumes are worth it, `Compactor` does the rest: some time after a change, soon when the
disk is full, otherwise never.

Invariants:

- A volume goes only when the index, synced, says that nothing of it is live. A volume with damage stays. On a full disk
  it goes from its end, stretch by stretch, where there is no room for all of its copies.
- At any moment each live record is in a synced volume that the index names: a kill leaves copies that nothing names,
  which are removed like other volumes of which nothing is live.
- A tombstone goes only when no other volume can hold what it is there for: a volume whose records were all made
  or copied after the tombstone cannot, nor can one with no number in [oldest, tombstone).
- One volume after the other: what was decided about a tombstone holds for the volumes that are there then.
- Appends and reads go on: copying is done beside them, and only pointing to the copies takes a place in the queue.
- Bytes per second are bounded, except on a full disk. Nothing runs while nothing changes.
- While the loop is late it goes slower (tier2/background_pace.py), unless garbage is most of what there is.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ParamSpec, TypeVar

from segmentstore.contracts.errors import CorruptedDataError, SegmentStoreError
from segmentstore.runtime.cancellation import run_blocking
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import NO_SPACE_ERRNOS, File
from tier2.background_pace import BackgroundPace
from tier2.volumes.compaction_copy import CopyBatch, PlainCopier, RecordCopier, has_live_record
from tier2.volumes.group_commit import DiskReserve, GroupCommit
from tier2.volumes.index import SEQUENCE_MAX, VolumeRow, decode_volume_row, volume_key
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.mutations import SyncIndex, VolumeRemoved, VolumeShortened
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import (
    DamagedHeaderError,
    DamagedStretch,
    OpenVolume,
    VolumeFiles,
    VolumeScan,
)
from tier2.volumes.write_queue import WriteQueue

_LOGGER = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_URGENT_SECONDS = 1.0
_SHRINKING_STEPS = 4
"""A volume that there is no room to copy is made shorter by this part of the reserve at a time."""
_ROW_OF_UNKNOWN_VOLUME = VolumeRow(0, 0, sequence_lowest=0, sequence_highest=SEQUENCE_MAX)
"""Of a volume of which the index says nothing: it may hold any number."""


@dataclass(slots=True)
class CompactionSummary:
    """What one round did."""

    removed: list[int] = field(default_factory=list)
    """Volumes that are gone."""
    written: list[int] = field(default_factory=list)
    """Volumes that were made."""
    bytes_removed: int = 0
    bytes_written: int = 0
    records_copied: int = 0
    kept: list[int] = field(default_factory=list)
    """Volumes that should have gone and could not: they are damaged, or something of them is live after all."""


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


class Compactor:
    """start(), close(); `compact()` whenever a caller wants it."""

    def __init__(
        self,
        *,
        index: IndexDatabase,
        volumes: VolumeFiles,
        commit: GroupCommit,
        reserve: DiskReserve,
        queue: WriteQueue,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
    ) -> None:
        self._index = index
        self._volumes = volumes
        self._commit = commit
        self._reserve = reserve
        self._queue = queue
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._choice = CompactionPicker(index=index, volumes=volumes, settings=settings)
        self._pace = BackgroundPace(
            busy_share_min=settings.compaction_busy_share_min,
            busy_share_max=settings.compaction_busy_share_max,
        )
        self._one_at_a_time = asyncio.Lock()
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped_by: Exception | None = None
        self._target: OpenVolume | None = None
        self._published_end = 0
        self._unlimited = False
        """Of the round under way."""

    def start(self) -> None:
        assert self._task is None, "the compactor is started already"
        self._task = asyncio.create_task(self._run_in_background(), name="volumes: compaction")

    def note_change(self, urgent: bool) -> None:
        """There may be something to compact; `urgent`: and the disk is full."""
        self._changed.set()
        if urgent:
            self._hurry.set()

    @property
    def complaint(self) -> str:
        """What stopped compaction in the background, for `/health`; "" if it works."""
        if self._stopped_by is None:
            return ""
        return (
            "compaction of the volumes has stopped, and what is deleted takes its space until the next start:"
            f" {self._stopped_by!r}"
        )

    async def close(self) -> None:
        """The step under way ends; what it copied and did not publish is removed after the next start. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def compact(self, *, unlimited: bool = True) -> CompactionSummary:
        """Everything that is worth it now. Raises StorageError, CorruptedDataError, OSError."""
        async with self._one_at_a_time:
            summary = CompactionSummary()
            try:
                lent = self._reserve.size if self._commit.full and self._reserve.held else 0
                candidates = await self._step(self._choice.candidates, lent)
                shrinking = self._choice.too_large if self._commit.full else None
                if lent and (candidates or shrinking is not None):
                    await self._step(self._reserve.lend)
                if candidates or shrinking is not None:
                    # After they were chosen: nothing in them is newer than an index that a power cut leaves.
                    await self._queue.submit_all([SyncIndex()])
                self._pace.hurried = (
                    self._choice.garbage_share > self._settings.compaction_garbage_share_max
                )
                self._unlimited = unlimited
                with self._pace.working():
                    for candidate in candidates:
                        try:
                            await self._compact_one(candidate, summary)
                        except OSError as error:
                            if error.errno not in NO_SPACE_ERRNOS:
                                raise
                            # There was less room than it seemed to need.
                            await self._close_target()
                            await self._step(self._reserve.lend)
                            shrinking = candidate
                            break
                    if shrinking is not None:
                        await self._shrink(shrinking, summary)
            finally:
                await self._close_target()
                self._reserve.take_back()
            return summary

    async def _run_in_background(self) -> None:
        try:
            await self._compact_after_changes()
        except Exception as error:
            # A bug. Compaction leaves the volumes sound at any moment, so they are written and read as before.
            self._stopped_by = error
            _LOGGER.critical("compaction of the volumes stops", exc_info=error)

    async def _compact_after_changes(self) -> None:
        while True:
            await self._wait_for_change()
            try:
                summary = await self.compact(unlimited=self._commit.full)
            except (OSError, SegmentStoreError) as error:
                _LOGGER.warning("compaction of the volumes failed, tried again later: %s", error)
                self.note_change(urgent=False)
                continue
            if summary.removed:
                # Other volumes may have held on to tombstones because of these.
                self.note_change(urgent=False)
                _LOGGER.info(
                    "compacted volumes=%d bytes_removed=%d bytes_written=%d",
                    len(summary.removed),
                    summary.bytes_removed,
                    summary.bytes_written,
                )

    async def _wait_for_change(self) -> None:
        """Until something changes, and then for the interval; or for a second when it is urgent."""
        await self._changed.wait()
        seconds = self._settings.compaction_interval_seconds
        timer = asyncio.get_running_loop().call_later(seconds, self._hurry.set)
        try:
            await asyncio.sleep(min(seconds, _URGENT_SECONDS))
            await self._hurry.wait()
        finally:
            timer.cancel()
        self._changed.clear()
        self._hurry.clear()

    # --- one volume ------------------------------------------------------------------------------

    async def _compact_one(self, candidate: Candidate, summary: CompactionSummary) -> None:
        # The volumes before it may have gone meanwhile, and with them what its tombstones are there for.
        keeps = await self._step(self._choice.tombstone_rule, candidate.number)
        if not candidate.needs_copying:
            await self._remove(candidate, summary)
            return
        source = await self._step(self._volumes.open, candidate.number)
        scan = VolumeScan(source, secret=candidate.secret, size=candidate.size, offset=0)
        try:
            await self._copy_all(candidate, source, scan, keeps, summary)
        except CorruptedDataError as error:
            await self._keep_damaged(candidate, error, summary)
            return
        finally:
            source.close()
        await self._remove(candidate, summary)

    async def _shrink(self, candidate: Candidate, summary: CompactionSummary) -> None:
        """From its end, a stretch at a time: the copies are published, and what they are of is cut off.

        For a full disk, where there is no room for all that is needed of a volume. It is cut between two write batches
        alone, so that what is left ends with a whole one; and only where nothing is live, as the synced index says. Its
        tombstones are kept: what they are there for may stand before them.
        """
        keeps = await self._step(self._choice.tombstone_rule, None)
        source = await self._step(self._volumes.open, candidate.number)
        try:
            step_bytes = max(self._reserve.size // _SHRINKING_STEPS, 1)
            bounds = await self._step(_batch_bounds, candidate, source, step_bytes)
            for start, end in reversed(list(pairwise(bounds))):
                scan = VolumeScan(source, secret=candidate.secret, size=end, offset=start)
                await self._copy_all(candidate, source, scan, keeps, summary)
                await self._queue.submit_all([SyncIndex()])
                checked = VolumeScan(source, secret=candidate.secret, size=end, offset=start)
                if await self._step(has_live_record, self._index, candidate.number, checked):
                    raise CorruptedDataError(f"something is live that was copied offset={start}")
                # Told before: a power cut may leave holes in what was cut off, which are no damage then.
                await self._queue.submit_all(
                    [VolumeShortened(candidate.number, start), SyncIndex()]
                )
                await self._step(self._volumes.cut, candidate.number, start)
                summary.bytes_removed += end - start
        except CorruptedDataError as error:
            await self._keep_damaged(candidate, error, summary)
            return
        finally:
            source.close()
        await self._remove(replace(candidate, size=0), summary)

    async def _keep_damaged(
        self, candidate: Candidate, error: CorruptedDataError, summary: CompactionSummary
    ) -> None:
        _LOGGER.error("volume=%d is not compacted: %s", candidate.number, error)
        self._choice.refuse(candidate.number)
        summary.kept.append(candidate.number)
        # What was copied and not published goes with it: the next copies would make it count, with unknown numbers.
        await self._close_target()

    async def _copy_all(
        self,
        candidate: Candidate,
        source: File,
        scan: VolumeScan,
        keeps: Callable[[int, int], bool],
        summary: CompactionSummary,
    ) -> None:
        plain = PlainCopier(
            index=self._index,
            scan=scan,
            number=candidate.number,
            secret=candidate.secret,
            keeps_tombstone=keeps,
        )
        batch: CopyBatch | None = None
        copier: RecordCopier | None = None
        more = True
        while more:
            target = await self._open_target(summary)
            if copier is None:
                copier = RecordCopier(
                    index=self._index,
                    source=source,
                    source_number=candidate.number,
                    source_secret=candidate.secret,
                    target=target,
                    keeps_tombstone=keeps,
                )
            batch = batch or CopyBatch(source=candidate.number, target=target)
            before = plain.offset + target.end
            more = await self._step(batch.take, plain, copier)
            moved = plain.offset + target.end - before
            await self._rest(at_least=moved / self._settings.compaction_bytes_per_second)
            if batch.count and (not more or batch.is_full(self._settings.compaction_batch_bytes)):
                await self._publish(batch, target)
                summary.records_copied += batch.count
                summary.bytes_written += batch.bytes
                batch = None
                if target.end >= self._settings.volume_bytes_max:
                    await self._close_target()
                    copier = None

    async def _publish(self, batch: CopyBatch, target: OpenVolume) -> None:
        """From here on the copies are what counts."""
        for verify in batch.verification():
            await self._step(verify)
            await self._rest()
        self._published_end = target.end
        try:
            for changes in batch.changes():
                await self._queue.submit_all(changes)
                await self._rest()
        except BaseException:
            self._choice.distrust(target.number)
            raise

    async def _remove(self, candidate: Candidate, summary: CompactionSummary) -> None:
        number = candidate.number
        await self._queue.submit_all([SyncIndex()])
        if not await self._step(self._remove_if_dead, number):
            _LOGGER.error("volume=%d is not removed: something of it is live", number)
            self._choice.refuse(number)
            summary.kept.append(number)
            return
        await self._queue.submit_all([VolumeRemoved(number)])
        summary.removed.append(number)
        summary.bytes_removed += candidate.size

    def _remove_if_dead(self, number: int) -> bool:
        content = self._index.get_certain(volume_key(number))
        if content is not None and decode_volume_row(content).live_bytes:
            return False
        self._volumes.remove(number)
        return True

    # --- the volume that is written ---------------------------------------------------------------

    async def _open_target(self, summary: CompactionSummary) -> OpenVolume:
        if self._target is None:
            self._target = await self._step(
                self._volumes.create,
                now_ms=self._wall_clock.now_ms(),
                sequence_first=self._commit.sequence_applied,
            )
            self._published_end = self._target.end
            summary.written.append(self._target.number)
        return self._target

    async def _close_target(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            await self._step(self._end_target, target, self._published_end)

    def _end_target(self, target: OpenVolume, published_end: int) -> None:
        """Copies to which nothing points must not outlive their originals. In the executor."""
        try:
            if target.end > published_end:
                self._volumes.cut(target.number, published_end)
                target.end = published_end
        except OSError:
            self._choice.distrust(target.number)
        finally:
            self._volumes.release(target)

    async def _rest(self, *, at_least: float = 0.0) -> None:
        if not self._unlimited:
            await self._pace.rest(at_least=at_least)

    async def _step(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """In the executor. A cancelled caller waits for its end: files and index are closed after it."""
        return await run_blocking(self._executor, call, *args, **kwargs)


def _batch_bounds(candidate: Candidate, source: File, step_bytes: int) -> list[int]:
    """Where write batches end in a volume, about every `step_bytes`: from its first record to its end.

    Blocking. Raises CorruptedDataError where something is damaged, OSError.
    """
    scan = VolumeScan(source, secret=candidate.secret, size=candidate.size, offset=0)
    bounds = [scan.offset]
    for one in scan:
        if isinstance(one, DamagedStretch):
            raise CorruptedDataError(
                f"no good record offset={one.offset} length={one.length}: {one.why}"
            )
        if not one.header.batch_left and scan.offset - bounds[-1] >= step_bytes:
            bounds.append(scan.offset)
    if bounds[-1] != candidate.size:
        bounds.append(candidate.size)
    return bounds


@dataclass(frozen=True, slots=True)
class _VolumeFacts:
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


class CompactionPicker:
    """Which volumes are worth compacting, and which tombstones some volume still needs; remembers those that cannot go.

    A volume is worth it when nothing of it is needed, when less than a set share of it is, or when it is one of many
    small ones. Tombstones count as needed as long as any other volume may hold what they are there for.

    Reads one index row and one header for each volume. Blocking; runs in an executor.
    """

    def __init__(
        self, *, index: IndexDatabase, volumes: VolumeFiles, settings: VolumeSettings
    ) -> None:
        self._index = index
        self._volumes = volumes
        self._settings = settings
        self.garbage_share = 0.0
        """What the newest candidates would give back, of the bytes of all volumes."""
        self.too_large: Candidate | None = None
        """The first for whose copies there was no room."""
        self._refused: set[int] = set()
        self._distrusted: set[int] = set()

    def refuse(self, number: int) -> None:
        """Not again in this run of the process."""
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
        self.too_large = None
        for one in chosen:
            if one.needed_bytes and one.needed_bytes > room:
                self.too_large = one
                break
            room += one.size - one.needed_bytes
            affordable.append(one)
        garbage = sum(one.size - one.needed_bytes for one in affordable)
        self.garbage_share = garbage / max(sum(volume.size for volume in volumes), 1)
        return affordable

    def tombstone_rule(self, leaving: int | None) -> Callable[[int, int], bool]:
        """Whether a tombstone of that number, there for records from `oldest` on, is needed when a volume leaves."""
        others = [volume for volume in self._look() if volume.number != leaving]

        def keeps(tombstone: int, oldest: int) -> bool:
            return any(volume.may_hold(oldest, tombstone) for volume in others)

        return keeps

    def _needed_bytes(self, volume: _VolumeFacts, volumes: list[_VolumeFacts]) -> int:
        row = volume.row
        if not row.tombstone_bytes:
            return row.live_bytes
        needs_tombstones = any(
            other.may_hold(row.tombstone_oldest, row.sequence_highest)
            for other in volumes
            if other.number != volume.number
        )
        return row.live_bytes + row.tombstone_bytes * needs_tombstones

    def _look(self) -> list[_VolumeFacts]:
        found: list[_VolumeFacts] = []
        for number in self._volumes.numbers():
            content = self._index.get_certain(volume_key(number))
            row = _ROW_OF_UNKNOWN_VOLUME if content is None else decode_volume_row(content)
            if number in self._distrusted:
                row = replace(row, sequence_lowest=0, sequence_highest=SEQUENCE_MAX)
            try:
                header = self._volumes.header(number)
                size = self._volumes.size(number)
            except FileNotFoundError:
                continue
            except DamagedHeaderError:
                # What is in it is not known: it stays, and so do all tombstones it may need.
                self._refused.add(number)
                found.append(_VolumeFacts(number, 0, 0, 0, _ROW_OF_UNKNOWN_VOLUME))
                continue
            if header is None:
                # Its creation was cut off: there is no record in it.
                found.append(_VolumeFacts(number, 0, 0, SEQUENCE_MAX, row))
                continue
            found.append(_VolumeFacts(number, header.secret, size, header.sequence_first, row))
        return found
