"""The steps from a directory to a log that takes entries; each blocking step is one executor job.

    lock -> disabled? -> identity -> claim an epoch (durable: earlier owners can acknowledge nothing from here on)
    -> scan -> link -> drop files without frames (room, should the disk be full) -> make the first journal
    -> epoch frame with the copies, synced -> epoch check -> drop files that nothing needs

Invariant: a crash at any step leaves the chain that recovery found, and the next opening finds the same: nothing
of it is removed before the epoch frame that replaces it is durable.
"""

import logging
from concurrent.futures import Executor
from dataclasses import dataclass

from segmentstore.contracts.errors import LogCorruptedError, LogFullError
from segmentstore.runtime.cancellation import run_blocking
from segmentstore.runtime.files import FileSystem
from tier1.file_log.directory import LogDirectory, LogIdentity
from tier1.file_log.frames import (
    PAGE_BYTES,
    FrameEntry,
    FrameHeader,
    FrameKind,
    body_bytes,
    decode_header,
    encode_frame,
    frame_bytes,
)
from tier1.file_log.journals import MARK_PAGES, Journal, JournalPool, NoJournalSpaceError
from tier1.file_log.recovery import (
    WAY_OUT,
    FoundFrame,
    RecoveredChain,
    RecoveryPlan,
    ScannedJournal,
    link_frames,
    plan_recovery,
    read_durable_frame,
    read_frame,
    scan_journal,
)
from tier1.file_log.settings import DurabilityRules, FileLogSettings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """What an opening hands to the log."""

    first: FrameHeader
    """The epoch frame."""
    journals: tuple[Journal, ...]
    """Files that hold live frames, oldest first; the last one is ours."""
    frames: tuple[FoundFrame, ...]
    """What read() goes through: frames in place, then the epoch frame."""
    truncated_up_to: int
    cut_frames: int
    is_new: bool
    """No file had a frame, not even of an owner that appended nothing."""


class LogOpening:
    """One attempt to open a log; its methods are called once, in order."""

    def __init__(
        self,
        *,
        directory: LogDirectory,
        files: FileSystem,
        executor: Executor | None,
        settings: FileLogSettings,
        rules: DurabilityRules,
    ) -> None:
        self._directory = directory
        self._files = files
        self._executor = executor
        self._settings = settings
        self._rules = rules

    async def claim(self, *, epoch_floor: int) -> tuple[LogIdentity, int]:
        """Which log it is, and our epoch.

        Raises LogInUseError, LogDisabledError, LogNotPrimaryError, LogCorruptedError.
        """
        await run_blocking(self._executor, self._directory.lock, takeover=self._settings.takeover)
        await run_blocking(self._executor, self._directory.check_enabled)
        identity = await run_blocking(self._executor, self._directory.read_or_create_identity)
        epoch = await run_blocking(self._executor, self._directory.claim_epoch, floor=epoch_floor)
        return identity, epoch

    async def recover(self, *, log_id: bytes, epoch: int, pool: JournalPool) -> OpenedLog:
        """Find the chain, make it durable and begin the epoch.

        Raises LogCorruptedError, LogFullError, LogNotPrimaryError.
        """
        scanned = [
            await run_blocking(
                self._executor,
                scan_journal,
                self._files,
                self._directory.join(str(name)),
                log_id=log_id,
            )
            for name in await run_blocking(self._executor, self._directory.earlier_journals)
        ]
        self._require_own_journals(scanned)
        chain = await run_blocking(self._executor, self._link, scanned)
        plan = plan_recovery(chain, rules=self._rules, copy_bytes_max=self._settings.copy_bytes_max)
        await run_blocking(
            self._executor,
            self._remove,
            [journal.path for journal in scanned if not journal.frames],
        )
        entries = await run_blocking(self._executor, self._copies, plan, chain)
        body = body_bytes(len(entries), sum(entry.length for entry in entries))
        size_bytes_min = frame_bytes(len(entries), sum(entry.length for entry in entries))
        size_bytes_min += (MARK_PAGES + 2) * PAGE_BYTES
        try:
            journal = await self._make_first(pool, size_bytes_min)
        except NoJournalSpaceError as error:
            raise LogFullError(
                f"no space for the epoch's first journal; free some of the disk path={self._directory.path!r}"
            ) from error
        first = self._epoch_header(log_id, epoch, chain, plan, entry_count=len(entries), body=body)
        try:
            first = await run_blocking(self._executor, self._write_first, journal, first, entries)
        except BaseException:
            journal.close()
            raise
        in_place = _journals_in_place(plan, scanned)
        kept = {journal.path for journal in in_place}
        await run_blocking(
            self._executor,
            self._remove,
            [journal.path for journal in scanned if journal.path not in kept],
        )
        if chain.cut_frames:
            _LOG.warning(
                "cut a torn tail that was never acknowledged frames=%d after_number=%d path=%s",
                chain.cut_frames,
                chain.frames[-1].header.number,
                self._directory.path,
            )
        return OpenedLog(
            first=first,
            journals=(*in_place, journal),
            frames=(*plan.in_place, FoundFrame(first, journal.path)),
            truncated_up_to=chain.truncated_up_to,
            cut_frames=chain.cut_frames,
            is_new=not any(journal.frames for journal in scanned),
        )

    async def _make_first(self, pool: JournalPool, size_bytes_min: int) -> Journal:
        try:
            return await pool.make_first(size_bytes_min=size_bytes_min)
        except NoJournalSpaceError:
            _LOG.warning("the disk is full: opening with the ballast path=%s", self._directory.path)
        await run_blocking(self._executor, self._remove, [self._directory.ballast_path])
        return await pool.make_first(size_bytes_min=size_bytes_min, shrink=True)

    # --- blocking steps ----------------------------------------------------------------------

    def _link(self, scanned: list[ScannedJournal]) -> RecoveredChain:
        return link_frames(
            scanned,
            rules=self._rules,
            reads_back=lambda frame: read_frame(self._files, frame) is not None,
        )

    def _require_own_journals(self, scanned: list[ScannedJournal]) -> None:
        """What has no frame of ours is removed further down: not the journals of another log.

        All files of a log have its id, so a foreign one means that the identity is not that of this log.
        """
        for journal in scanned:
            if journal.is_foreign:
                raise LogCorruptedError(
                    f"a journal is of another log than the identity file says: {WAY_OUT} path={journal.path!r}"
                )

    def _copies(self, plan: RecoveryPlan, chain: RecoveredChain) -> list[FrameEntry]:
        return [
            FrameEntry(address, (payload,), len(payload))
            for frame in plan.copied
            for address, payload in read_durable_frame(self._files, frame)
            if address > chain.truncated_up_to
        ]

    def _epoch_header(
        self,
        log_id: bytes,
        epoch: int,
        chain: RecoveredChain,
        plan: RecoveryPlan,
        *,
        entry_count: int,
        body: int,
    ) -> FrameHeader:
        number = chain.highest_number + 1
        previous = plan.in_place[-1].header if plan.in_place else None
        return FrameHeader(
            kind=FrameKind.EPOCH,
            log_id=log_id,
            epoch=epoch,
            generation=1,
            number=number,
            previous_epoch=previous.epoch if previous else 0,
            previous_number=previous.number if previous else 0,
            synced_number=previous.number if previous else 0,
            oldest_number=plan.in_place[0].header.number if plan.in_place else number,
            truncated_up_to=chain.truncated_up_to,
            last_address=chain.highest_address,
            page=0,
            entry_count=entry_count,
            body_bytes=body,
        )

    def _write_first(
        self, journal: Journal, header: FrameHeader, entries: list[FrameEntry]
    ) -> FrameHeader:
        """The header as it was written, checksum included."""
        assert journal.file is not None, f"the first journal is ours path={journal.path!r}"
        journal.begin(generation=header.generation, first_number=header.number)
        buffers = encode_frame(header, entries)
        written = decode_header(buffers[0], log_id=header.log_id, page=0)
        assert written is not None, f"a frame we made does not decode: {header}"
        journal.file.write_at(0, buffers)
        journal.file.sync_data()
        journal.advance(header.length, last_address=header.last_address, synced=True)
        self._directory.check_epoch()
        return written

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self._directory.remove_file(path)


def _journals_in_place(plan: RecoveryPlan, scanned: list[ScannedJournal]) -> list[Journal]:
    """The files of the frames that stay, in chain order."""
    sizes = {journal.path: journal.size_bytes for journal in scanned}
    journals: list[Journal] = []
    for frame in plan.in_place:
        header = frame.header
        if not journals or journals[-1].path != frame.path:
            journals.append(Journal(frame.path, sizes[frame.path], first_number=header.number))
        journals[-1].last_address = header.last_address
    return journals
