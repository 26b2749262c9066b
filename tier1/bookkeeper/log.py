"""A durable data log on Apache BookKeeper: a list of ledgers, with a small record in ZooKeeper that says which.

How it works, and what each file here adds to it:

    append()       LedgerAppends (ledger_appends.py): in order, from ledger to ledger
    initialize()   open_log() (opening.py): claim the record (owned_record.py), fence, make a ledger (ledger_maker.py)
    read()         the ledgers of earlier owners, in their order
    truncate()     a change of the record (log_record.py); whole ledgers become garbage, and are deleted behind it

Invariants (L1 to L8 of DurableDataLog apart):

- Nothing is deleted that a record names as part of the log: a ledger leaves the list first.
- What waits for ZooKeeper alone never ends a log whose appends go on: a truncation is remembered and follows, a full
  ledger goes on growing until the next can be made.
- States move forward only: NEW -> OPENING -> OPEN -> CLOSED; a failed log stays OPEN and refuses everything.
"""

import asyncio
import logging
from asyncio import Future
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random

from segmentstore.contracts.durable_data_log import LogEntry, LogStatistics, WriteSettings
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    DurableDataLogError,
    LogCorruptedError,
    LogNotPrimaryError,
)
from segmentstore.contracts.identifiers import BufferView, Epoch, LogAddress
from segmentstore.runtime.waiting import wait_for_event
from tier1.bookkeeper.ledger_appends import LedgerAppends, WriterState
from tier1.bookkeeper.ledger_maker import LedgerMaker, without_dispensable
from tier1.bookkeeper.ledgers import LedgerClient, LedgerId, LedgerNotFoundError, LedgerReader
from tier1.bookkeeper.log_record import LedgerInLog, LogRecord, address_of, entry_of
from tier1.bookkeeper.metadata_store import MetadataStore, MetadataUnavailableError
from tier1.bookkeeper.opening import OpenedLog, open_log
from tier1.bookkeeper.owned_record import OwnedRecord, edit_record
from tier1.bookkeeper.retries import MAY_PASS, RetriedPart
from tier1.bookkeeper.settings import BookKeeperLogSettings, LedgerRules
from tier1.log_states import LogState, LogStates

_LOG = logging.getLogger(__name__)
_LEDGERS_AHEAD = 4
"""Ledgers that a reading has open or opens at the same time."""
_SMALL_ENTRIES_MAX = 1024
"""In one request, when all that is left of a ledger is no more than a request aims to fetch."""
_FIRST_ENTRIES = 8
"""Of a ledger, in the first request of a reading: the sizes of entries are not known yet."""


class BookKeeperDurableDataLog:
    """Implements DurableDataLog. Client and metadata store are shared by the logs of a process, which closes them."""

    def __init__(
        self,
        path: str,
        *,
        ledgers: LedgerClient,
        metadata: MetadataStore,
        random: Random,
        settings: BookKeeperLogSettings | None = None,
        owner: str = "",
        epoch_floor: int = 0,
        rules: LedgerRules | None = None,
    ) -> None:
        """path: of the log's record, made if missing. owner: this process, for the messages that others get.

        epoch_floor: the new epoch is above it; for a log that replaces a lost one.
        """
        self._path = path
        self._ledgers = ledgers
        self._metadata = metadata
        self._settings = settings or BookKeeperLogSettings()
        self._rules = rules or LedgerRules()
        self._epoch_floor = epoch_floor
        self._write_settings = WriteSettings(
            entry_bytes_max=self._settings.entry_bytes_max,
            outstanding_bytes_max=self._settings.outstanding_bytes_max,
            writes_at_once=self._settings.writes_at_once,
        )
        self._record = OwnedRecord(
            path,
            metadata=metadata,
            settings=self._settings,
            rules=self._rules,
            random=random,
            owner=owner,
        )
        self._maker = LedgerMaker(
            ledgers=ledgers, record=self._record, settings=self._settings, rules=self._rules
        )
        self._states = LogStates()
        self._opened: OpenedLog | None = None
        self._appends: LedgerAppends | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._appended = False
        self._truncate_to = LogAddress(0)
        self._deleted: dict[LedgerId, None] = {}
        self._deletions_failed: Counter[LedgerId] = Counter()
        self._look_for_garbage = asyncio.Event()
        self._closing = asyncio.Lock()

    @property
    def log_id(self) -> bytes:
        return self._record.record.log_id

    @property
    def follows(self) -> bytes:
        return self._record.record.follows

    @property
    def follows_changes(self) -> int | None:
        return self._record.record.follows_changes

    @property
    def is_new(self) -> bool:
        return self._opened is not None and self._opened.is_new

    @property
    def epoch(self) -> Epoch:
        return Epoch(self._record.record.epoch) if self._record.is_claimed else Epoch(0)

    @property
    def write_settings(self) -> WriteSettings:
        return self._write_settings

    # --- life cycle ------------------------------------------------------------------------------

    async def initialize(self) -> Epoch:
        """As DurableDataLog says. Waits for bookies and ZooKeeper as long as the settings say, then raises
        TooFewBookiesError, LedgerUnavailableError or MetadataUnavailableError; nothing is lost."""
        self._states.move_to(LogState.OPENING)
        try:
            opened = await open_log(
                record=self._record, maker=self._maker, epoch_floor=self._epoch_floor
            )
        except BaseException:
            await self.close()
            raise
        if self._states.is_closed:
            await self._maker.let_go(opened.writer)
            raise DurableDataLogError(f"the log was closed while it opened path={self._path!r}")
        self._opened = opened
        self._appends = LedgerAppends(
            writer=opened.writer,
            ledger=opened.ledger,
            maker=self._maker,
            ledgers=self._ledgers,
            record=self._record,
            settings=self._settings,
        )
        self._truncate_to = self._record.record.truncated_up_to
        loop = asyncio.get_running_loop()
        self._tasks = (
            loop.create_task(self._appends.run(), name=f"log-ledgers {self._path}"),
            loop.create_task(self._tidy(self._appends), name=f"log-garbage {self._path}"),
        )
        self._states.move_to(LogState.OPEN)
        return self.epoch

    async def close(self) -> None:
        """As DurableDataLog says; the ends of its ledgers are written down if that can be done soon."""
        async with self._closing:
            if not self._states.is_closed:
                self._states.move_to(LogState.CLOSED)
            appends = self._appends
            if appends is None:
                return
            appends.fail(DurableDataLogError(f"the log is closed path={self._path!r}"))
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await appends.close()

    # --- entries ---------------------------------------------------------------------------------

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """As DurableDataLog says. One range of entries is fetched while the one before it is taken."""
        assert self._opened is not None, "read() comes after initialize()"
        assert not self._appended, "read() comes before the first append()"
        async with aclosing(self._ranges(self._opened)) as ranges:
            ahead = asyncio.create_task(_next_of(ranges))
            try:
                while (found := await ahead) is not None:
                    ahead = asyncio.create_task(_next_of(ranges))
                    for entry in found:
                        yield entry
            finally:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _ranges(self, opened: OpenedLog) -> AsyncGenerator[list[LogEntry], None]:
        """Some ledgers are opened ahead, by each reading for itself: behind many moves a log is many small ones."""
        start = LogAddress(self._record.record.truncated_up_to + 1)
        ledgers = deque(
            ledger
            for ledger in opened.former
            if ledger.last_address is not None and ledger.last_address >= start
        )
        opening: deque[tuple[LedgerInLog, asyncio.Task[LedgerReader]]] = deque()
        try:
            while ledgers or opening:
                while ledgers and len(opening) < _LEDGERS_AHEAD:
                    next_ledger = ledgers.popleft()
                    task = asyncio.create_task(self._open_to_read(next_ledger))
                    opening.append((next_ledger, task))
                ledger, task = opening[0]
                reader = await task
                opening.popleft()
                try:
                    async with aclosing(self._ranges_of(ledger, reader, start)) as ranges:
                        async for found in ranges:
                            yield found
                finally:
                    await reader.close()
        finally:
            await _close_readers([task for _, task in opening])

    async def _ranges_of(
        self, ledger: LedgerInLog, reader: LedgerReader, start: LogAddress
    ) -> AsyncGenerator[list[LogEntry], None]:
        settings = self._settings
        first = max(0, start - address_of(ledger.sequence, 0))
        bytes_left = reader.length  # at most: some may be before the first
        next_count = _FIRST_ENTRIES
        while first <= ledger.last_entry:
            if bytes_left <= settings.read_bytes_max:
                next_count = _SMALL_ENTRIES_MAX
            payloads = await self._read_entries(
                reader, first, min(first + next_count - 1, ledger.last_entry)
            )
            bytes_left -= sum(map(len, payloads))
            yield [
                LogEntry(address_of(ledger.sequence, number), payload)
                for number, payload in enumerate(payloads, first)
            ]
            first += len(payloads)
            largest = max(1, *map(len, payloads))
            next_count = settings.read_bytes_max // largest
            next_count = max(1, min(next_count, settings.read_entries_max))

    async def _open_to_read(self, ledger: LedgerInLog) -> LedgerReader:
        reader = await self._record.retries(RetriedPart.RECOVERY).attempt(
            lambda: self._maker.open_recorded(ledger.ledger_id)
        )
        if (reader.last_entry, reader.length) != (ledger.last_entry, ledger.length):
            await reader.close()
            raise LogCorruptedError(
                f"a ledger ends elsewhere than the record says ledger={ledger.ledger_id} last_entry={reader.last_entry}"
                f" bytes={reader.length} recorded_last_entry={ledger.last_entry} recorded_bytes={ledger.length}"
                f" path={self._path!r}"
            )
        return reader

    async def _read_entries(self, reader: LedgerReader, first: int, last: int) -> list[memoryview]:
        try:
            retries = self._record.retries(RetriedPart.RECOVERY)
            return await retries.attempt(lambda: reader.read(first, last))
        except LedgerNotFoundError as error:
            await self._record.check_owner()  # a later owner may have truncated it
            raise LogCorruptedError(
                f"a ledger of the log is gone ledger={reader.ledger_id} path={self._path!r}"
            ) from error

    def append(
        self, entry: Sequence[BufferView], *, internal: bool = False
    ) -> "Future[LogAddress]":
        """As DurableDataLog says. An entry above entry_bytes_max fails (AppendTooLargeError); the log stays open.

        `internal` makes no difference: bookies keep no reserve, and what they cannot take now waits.
        Cancelling the future gives up waiting, not the entry.
        """
        del internal
        appends = self._appends
        assert appends is not None, "append() comes after initialize()"
        self._appended = True
        length = len(entry[0]) if len(entry) == 1 else sum(map(len, entry))
        if length > self._settings.entry_bytes_max:
            future: Future[LogAddress] = asyncio.get_running_loop().create_future()
            future.set_exception(
                AppendTooLargeError(length=length, length_max=self._settings.entry_bytes_max)
            )
            return future
        return appends.append(entry, length)

    # --- truncation ------------------------------------------------------------------------------

    async def truncate(self, up_to: LogAddress) -> None:
        """As DurableDataLog says. While ZooKeeper does not answer it is only remembered here, and follows."""
        appends = self._appends
        assert appends is not None, "truncate() comes after initialize()"
        if appends.failure is not None:
            raise appends.failure
        sequence, _ = entry_of(up_to)
        assert sequence <= self._record.record.last_sequence, f"no entry has the address {up_to}"
        self._truncate_to = max(self._truncate_to, up_to)
        try:
            await self._record.try_change(self._truncated)
        except MetadataUnavailableError as error:
            _LOG.info("a truncation follows later path=%s: %s", self._path, error)
        except DurableDataLogError as error:
            appends.fail(error)
            raise
        self._look_for_garbage.set()

    def _truncated(self, record: LogRecord) -> LogRecord:
        """The record without what is not needed any more, as far as it is known here."""
        if self._truncate_to > record.truncated_up_to:
            record = replace(record, truncated_up_to=self._truncate_to)
        if any(ledger_id in self._deleted for ledger_id in record.garbage):
            kept = tuple(each for each in record.garbage if each not in self._deleted)
            record = replace(record, garbage=kept)
        return without_dispensable(record, self._rules)

    async def _tidy(self, appends: LedgerAppends) -> None:
        """Delete what is garbage, and say so in the record; what cannot be done now is done later."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._look_for_garbage.clear()
                await self._delete_garbage()
                later = loop.time() + self._settings.look_again_seconds
                await wait_for_event(self._look_for_garbage, until=later)
        except Exception as error:  # noqa: BLE001 - a task's top: another owner, or a bug
            appends.fail(error)

    async def _delete_garbage(self) -> None:
        record = self._record.record
        try:
            if self._truncate_to > record.truncated_up_to:
                record = await self._record.try_change(self._truncated)
            # One that cannot be deleted may stay so for ever: next time it comes behind the others.
            for ledger_id in sorted(record.garbage, key=self._deletions_failed.__getitem__):
                if ledger_id not in self._deleted:
                    await self._delete(ledger_id)
        except MAY_PASS as error:
            _LOG.info("garbage is deleted later path=%s: %s", self._path, error)
        self._deleted = {each: None for each in self._deleted if each in record.garbage}
        failed = self._deletions_failed.items()
        self._deletions_failed = Counter({each: n for each, n in failed if each in record.garbage})

    async def _delete(self, ledger_id: LedgerId) -> None:
        try:
            await self._ledgers.delete(ledger_id)
        except MAY_PASS:
            self._deletions_failed[ledger_id] += 1
            raise
        self._deleted[ledger_id] = None  # the next truncation takes it out of the record

    async def check_owner(self) -> None:
        """As DurableDataLog says: one reading of the log's record, which is not tried again when ZooKeeper fails."""
        if self._states.present is not LogState.OPEN:
            raise DurableDataLogError(
                f"the log is {self._states.present.value} path={self._path!r}"
            )
        await self._record.check_owner()

    # --- what it says of itself ------------------------------------------------------------------

    def statistics(self) -> LogStatistics:
        appends = self._appends
        if appends is None:
            return LogStatistics(0, 0, 0, 0.0, 0, full=False)
        return LogStatistics(
            outstanding_entries=appends.outstanding_entries,
            outstanding_bytes=appends.outstanding_bytes,
            stored_bytes=appends.stored_bytes,
            sync_seconds_recent=appends.sync_seconds,
            cut_frames=0,
            full=False,
        )

    def writer_state(self) -> WriterState | None:
        """Of the ledger that takes appends; None before initialize(), and from close() on."""
        if self._appends is None or self._states.is_closed:
            return None
        return self._appends.state()

    @property
    def record(self) -> LogRecord:
        """As this owner wrote it last. Not before initialize()."""
        return self._record.record

    def check(self) -> None:
        """Prove the invariants of what is in memory."""
        if self._appends is not None:
            self._appends.check()
            self._record.record.check()

    # --- evidence --------------------------------------------------------------------------------

    async def disable(self, why: str) -> None:
        """As DurableDataLog says; once fenced, nothing: the evidence belongs to the new owner, and so does the log."""
        if not self._record.is_claimed:
            await edit_record(
                self._path, lambda found: _disabled(found, why), metadata=self._metadata
            )
            return
        try:
            await self._record.change(lambda record: _disabled(record, why) or record)
        except LogNotPrimaryError:
            return

    async def enable(self) -> None:
        await edit_record(self._path, _enabled, metadata=self._metadata)


async def _close_readers(opening: Sequence[asyncio.Task[LedgerReader]]) -> None:
    """Of a reading that ends early."""
    for task in opening:
        task.cancel()
    for found in await asyncio.gather(*opening, return_exceptions=True):
        if not isinstance(found, BaseException):
            await found.close()


async def _next_of(ranges: AsyncGenerator[list[LogEntry], None]) -> list[LogEntry] | None:
    """None behind the last."""
    async for found in ranges:
        return found
    return None


def _disabled(record: LogRecord | None, why: str) -> LogRecord | None:
    if record is None or record.disabled:
        return None
    return replace(record, disabled=why or "unknown")


def _enabled(record: LogRecord | None) -> LogRecord | None:
    return None if record is None else replace(record, disabled="")
