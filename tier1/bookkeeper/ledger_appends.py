"""The queue of appends over the ledgers of one owner: sent in order, acknowledged in order, also from ledger to ledger.

    append() -> sent to the writer of the newest ledger -> acknowledged, from the head only
             -> or waits, while no ledger takes appends -> sent in order to the next

The next ledger, when the present one is large or old (_roll_over):

    create the next -> record: it follows, and both are open -> hold appends until those to the present one are
    acknowledged -> send what has waited to the next
    -> close the former one -> record: it ends at n (_settle)

The next ledger, when the present one has failed (_replace), behind the end of one that is not settled yet:

    are we the owner? -> open the present one fenced: it ends at n, and appends up to n are durable
    -> create the next -> record: the present one ends at n, the next begins -> acknowledge up to n
    -> send the rest, then what has waited

Invariants:

- A ledger is in the record before it takes an entry, and every entry of its predecessor is acknowledged before that, or
  the predecessor is closed: of one log never two ledgers take entries, and no entry of a ledger can be lost in front of
  one of the next. Every ledger of the record but the two newest says where it ends.
- A rollover waits for bookies alone: ZooKeeper is asked before it and behind it, and may be gone both times.
- Nothing is acknowledged after a failure of its ledger before a compare-and-set has shown that the log is still ours
  (OwnedRecord).
- An entry is in one ledger: it is sent again only when the ledger that had it is closed, and ends before it.
- The pieces of an entry are kept until it is durable; the writer of a ledger copies them.
- After fail() nothing is sent and nothing acknowledged.
"""

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import (
    DurableDataLogError,
    LogCorruptedError,
    LogNotPrimaryError,
)
from segmentstore.contracts.identifiers import BufferView, LogAddress
from segmentstore.runtime.cancellation import (
    complete_unless_done,
    fail_unless_done,
    retrieve_exception,
)
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.waiting import gather_all, wait_for_event
from tier1.bookkeeper.ledger_maker import LEDGER_FAILURES, LedgerEnd, LedgerMaker
from tier1.bookkeeper.ledgers import (
    LedgerClient,
    LedgerFencedError,
    LedgerReader,
    LedgerUnavailableError,
    LedgerWriter,
)
from tier1.bookkeeper.log_record import (
    ENTRIES_MAX,
    NO_ADDRESS,
    LedgerInLog,
    address_of,
    entry_of,
)
from tier1.bookkeeper.metadata_store import MetadataUnavailableError
from tier1.bookkeeper.owned_record import OwnedRecord, record_is_large
from tier1.bookkeeper.retries import MAY_PASS, RetriedPart
from tier1.bookkeeper.settings import BookKeeperLogSettings

_LOG = logging.getLogger(__name__)
_RECENT_SHARE = 0.1
"""Weight of the newest time in the mean that sync_seconds is."""


@dataclass(slots=True, eq=False)
class _Append:
    """One accepted entry."""

    future: "Future[LogAddress]"
    entry: Sequence[BufferView]
    length: int
    address: LogAddress = NO_ADDRESS
    """Where it will be, once it is sent."""
    sent: "Future[int] | None" = None
    """Of the ledger that has it."""
    sent_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Former:
    """A ledger whose entries are all acknowledged, and whose end the record does not say yet."""

    writer: LedgerWriter
    end: LedgerEnd


@dataclass(frozen=True, slots=True)
class WriterState:
    """Of the ledger that takes appends, for `/health` and metrics."""

    ledger: LedgerInLog
    has_few_bookies: bool
    """It was made while fewer bookies took part than the settings ask for."""
    waiting_seconds: float
    """How long appends have been waiting for a ledger; 0.0: they are not."""
    waiting_for: str
    """The failure that they wait to pass; "": none."""


class LedgerAppends:
    """append() at any time; run() is a task that goes from ledger to ledger."""

    def __init__(
        self,
        *,
        writer: LedgerWriter,
        ledger: LedgerInLog,
        maker: LedgerMaker,
        ledgers: LedgerClient,
        record: OwnedRecord,
        settings: BookKeeperLogSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._maker = maker
        self._ledgers = ledgers
        self._record = record
        self._settings = settings
        self._retries = record.retries(RetriedPart.APPENDS)
        self._run_acknowledge = guarded(self._on_head_done, self.fail)
        self._in_flight: deque[_Append] = deque()
        self._waiting: deque[_Append] = deque()
        self._takes_appends = True
        self._held_since: float | None = None
        self._held_for = ""
        self._ledger_failure: DurableDataLogError | None = None
        self._is_replaced_in_vain = False
        """The newest ledger has a failed one before it, and nothing was acknowledged since."""
        self._ahead: LedgerWriter | None = None
        """The next ledger: the record does not name it yet, or may, because an answer was lost; or it does."""
        self._former: _Former | None = None
        self._wake = asyncio.Event()
        self.failure: Exception | None = None
        self.outstanding_entries = 0
        self.outstanding_bytes = 0
        self.sync_seconds = 0.0
        self._use(writer, ledger)

    def _use(self, writer: LedgerWriter, ledger: LedgerInLog) -> None:
        self._writer = writer
        self._ledger = ledger
        self._entries = 0
        """Sent to it."""
        self._bytes = 0
        self._acknowledged = -1
        """Id of its last acknowledged entry."""
        self._old_at = self._loop.time() + self._settings.ledger_age_seconds_max
        self._is_large = False
        self._next_attempt_at = 0.0

    @property
    def stored_bytes(self) -> int:
        """Of all ledgers in the record, the open one included."""
        former = self._former.end.length if self._former is not None else 0
        return self._record.record.stored_bytes + former + self._bytes

    def state(self) -> WriterState:
        since = self._held_since
        return WriterState(
            ledger=self._ledger,
            has_few_bookies=self._has_few_bookies,
            waiting_seconds=0.0 if since is None else self._loop.time() - since,
            waiting_for="" if since is None else self._retries.last_failure or self._held_for,
        )

    @property
    def _has_few_bookies(self) -> bool:
        return self._writer.quorum != self._settings.quorum

    # --- appends ---------------------------------------------------------------------------------

    def append(self, entry: Sequence[BufferView], length: int) -> "Future[LogAddress]":
        """As DurableDataLog says, for an entry that is not too large."""
        future: Future[LogAddress] = self._loop.create_future()
        if self.failure is not None:
            fail_unless_done(future, self.failure)
            return future
        self.outstanding_entries += 1
        self.outstanding_bytes += length
        accepted = _Append(future, entry, length)
        if self._takes_appends:
            self._send(accepted)
        else:
            self._waiting.append(accepted)
        return future

    def _send(self, accepted: _Append) -> None:
        accepted.address = address_of(self._ledger.sequence, self._entries)
        accepted.sent_at = self._loop.time()
        try:
            accepted.sent = sent = self._writer.append(accepted.entry)
        except Exception as bug:  # noqa: BLE001  # nothing may be sent behind it
            self._in_flight.append(accepted)
            self.fail(bug)
            return
        in_flight = self._in_flight
        in_flight.append(accepted)
        self._entries += 1
        self._bytes += accepted.length
        if len(in_flight) == 1:
            sent.add_done_callback(self._run_acknowledge)
        if not self._is_large and (
            self._bytes >= self._settings.ledger_bytes_max or self._entries >= ENTRIES_MAX
        ):
            self._is_large = True
            self._wake.set()

    def _on_head_done(self, sent: "Future[int]") -> None:
        # Only the head is watched; it may have been settled otherwise meanwhile.
        if self._in_flight and self._in_flight[0].sent is sent:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Complete from the head what its ledger says is durable; then watch the next."""
        if self.failure is not None or self._ledger_failure is not None:
            return
        in_flight = self._in_flight
        newest: _Append | None = None
        while in_flight:
            head = in_flight[0]
            sent = head.sent
            assert sent is not None, "what is in flight was sent"
            if not sent.done():
                sent.add_done_callback(self._run_acknowledge)
                break
            error = _failure_of(sent)
            if isinstance(error, LEDGER_FAILURES):
                self._on_ledger_failed(error)
                break
            if error is not None:
                self.fail(error)
                return
            entry = sent.result()
            assert entry == self._acknowledged + 1, (
                f"entry {entry} is acknowledged behind {self._acknowledged}"
            )
            in_flight.popleft()
            self._acknowledged = entry
            self._complete(head)
            newest = head
        if not in_flight and not self._takes_appends:
            self._wake.set()  # a rollover waits for it
        if newest is not None:
            seconds = self._loop.time() - newest.sent_at
            self.sync_seconds += _RECENT_SHARE * (seconds - self.sync_seconds)
            self._note_progress()

    def _note_progress(self) -> None:
        self._is_replaced_in_vain = False
        self._retries.reset()

    def _complete(self, accepted: _Append) -> None:
        self.outstanding_entries -= 1
        self.outstanding_bytes -= accepted.length
        complete_unless_done(accepted.future, accepted.address)

    def _on_ledger_failed(self, error: DurableDataLogError) -> None:
        """It takes nothing more; what of it is durable, _replace() finds out."""
        self._ledger_failure = error
        self._hold(error)
        for accepted in self._in_flight:
            if accepted.sent is not None:
                accepted.sent.add_done_callback(retrieve_exception)
        self._wake.set()

    def _hold(self, why: BaseException | str) -> None:
        self._takes_appends = False
        if self._held_since is None:
            self._held_since = self._loop.time()
        self._held_for = str(why)

    def _release(self) -> None:
        self._takes_appends = True
        self._held_since = None
        self._held_for = ""
        while self._waiting:
            # If that fails, fail() has ended what waits behind it.
            self._send(self._waiting.popleft())

    def fail(self, error: BaseException) -> None:
        """End for good: nothing is sent or acknowledged any more. What was on its way may be in the log."""
        if self.failure is not None:
            return
        if isinstance(error, DurableDataLogError):
            self.failure = error
        else:
            self.failure = DurableDataLogError(
                f"the log failed: {error!r} path={self._record.path!r}"
            )
            self.failure.__cause__ = error
        self._takes_appends = False
        stopped = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self.outstanding_entries = self.outstanding_bytes = 0
        for accepted in stopped:
            if accepted.sent is not None:
                accepted.sent.add_done_callback(retrieve_exception)
            fail_unless_done(accepted.future, self.failure)
        self._wake.set()

    # --- from ledger to ledger -------------------------------------------------------------------

    async def run(self) -> None:
        """Until the log fails, or its owner cancels this."""
        try:
            while self.failure is None:
                self._wake.clear()
                if self._ledger_failure is not None:
                    await self._replace()
                elif self._former is not None and self._loop.time() >= self._next_attempt_at:
                    await self._settle_if_possible()
                elif self._is_due():
                    await self._roll_over()
                else:
                    await wait_for_event(self._wake, until=self._looks_again_at())
        except Exception as error:  # noqa: BLE001 - a task's top: without it no ledger follows
            self.fail(error)

    def _is_due(self) -> bool:
        now = self._loop.time()
        if now < self._next_attempt_at or self._former is not None:
            return False
        is_old = now >= self._old_at and self._entries > 0
        return self._is_large or is_old or self._has_few_bookies

    def _looks_again_at(self) -> float:
        if self._is_large or self._has_few_bookies or self._former is not None:
            return self._next_attempt_at
        if self._entries:
            return max(self._old_at, self._next_attempt_at)
        # An old one without entries waits for its first.
        return max(self._old_at, self._loop.time() + self._settings.look_again_seconds)

    async def _roll_over(self) -> None:
        """A ledger that is large, old, or of few bookies is followed by another; if that cannot be made, later."""
        record = self._record.record
        if record.encoded_bytes > self._settings.rollover_record_bytes_max:
            self._try_later("the next ledger follows", record_is_large(record, self._record.path))
            return
        next_writer = self._ahead = self._ahead or await self._create_ahead()
        if next_writer is None:
            return
        try:
            ledger = await self._maker.enter_ahead(next_writer)
        except MetadataUnavailableError as error:
            self._try_later("the next ledger follows", error)
            return
        if self._ledger_failure is None:
            self._hold("the next ledger")
            await self._drain()
        if self.failure is not None or self._ledger_failure is not None:
            return  # run() ends, or replaces it
        end = LedgerEnd(self._ledger.ledger_id, self._entries - 1, self._bytes)
        self._former = _Former(self._writer, end)
        self._ahead = None
        self._use(next_writer, ledger)
        self._release()
        await self._settle_if_possible()

    async def _drain(self) -> None:
        """Until all that was sent to the ledger is acknowledged, or something failed."""
        while self._in_flight and self._ledger_failure is None and self.failure is None:
            self._wake.clear()
            await self._wake.wait()

    async def _settle_if_possible(self) -> None:
        try:
            await self._settle()
        except MAY_PASS as error:
            self._try_later("the end of a ledger is written down", error)

    async def _settle(self) -> None:
        """Close the former ledger, and write its end down; once more changes nothing.

        Raises LogNotPrimaryError, LogCorruptedError, and what may pass.
        """
        former = self._former
        if former is None:
            return
        try:
            await former.writer.close()
        except LEDGER_FAILURES:
            reader = await self._maker.open_recorded(former.end.ledger_id)
            found = LedgerEnd(reader.ledger_id, reader.last_entry, reader.length)
            await reader.close()
            if found != former.end:
                raise LogCorruptedError(
                    f"a ledger ends elsewhere than its writer knows found={found} known={former.end}"
                    f" path={self._record.path!r}"
                ) from None
        await self._maker.end(former.end)
        self._former = None

    def _try_later(self, what: str, error: DurableDataLogError) -> None:
        self._next_attempt_at = self._loop.time() + self._settings.look_again_seconds
        _LOG.info("%s later path=%s: %s", what, self._record.path, error)

    async def _create_ahead(self) -> LedgerWriter | None:
        self._next_attempt_at = self._loop.time() + self._settings.look_again_seconds
        try:
            if self._has_few_bookies and not self._is_large:
                living = await self._ledgers.living_bookies()
                if living < self._settings.quorum.ensemble:
                    return None
            # A large one grows on while none follows it, and nothing of it can be given back.
            return await self._maker.create(or_with_few=self._is_large)
        except MAY_PASS as error:
            self._try_later("the next ledger is made", error)
            return None

    async def _replace(self) -> None:
        """The ledger failed: what of it is durable is acknowledged, the rest goes to the next."""
        failure = self._ledger_failure
        assert failure is not None, "a ledger that failed is replaced"
        if self._is_replaced_in_vain:
            await self._retries.pause(failure)
        else:
            self._retries.note(failure)
        self._is_replaced_in_vain = True
        end = await self._find_end()
        last_entry = end.last_entry
        await self._retries.attempt(self._settle)
        next_writer, self._ahead = self._ahead, None
        if next_writer is None:
            next_writer = await self._retries.attempt(lambda: self._maker.create(or_with_few=True))
        ledger = await self._maker.enter(next_writer, ends=(end,))
        if self.failure is not None:
            self._ahead = next_writer  # close() lets it go
            return
        _LOG.warning(
            "a ledger failed and has a successor path=%s ledger=%d entries=%d successor=%d: %s",
            self._record.path,
            self._ledger.ledger_id,
            last_entry + 1,
            ledger.ledger_id,
            failure,
        )
        in_flight, self._in_flight = self._in_flight, deque()
        while in_flight and entry_of(in_flight[0].address)[1] <= last_entry:
            self._complete(in_flight.popleft())
            self._note_progress()
        self._waiting.extendleft(reversed(in_flight))
        self._ledger_failure = None
        failed_writer = self._writer
        self._use(next_writer, ledger)
        self._release()
        await self._maker.let_go(failed_writer)

    async def _find_end(self) -> LedgerEnd:
        """The end of the failed ledger, fenced.

        Raises LogNotPrimaryError, LogCorruptedError, and what may pass if it does not within `retry_seconds_max`.
        """
        reader = await self._retries.attempt(self._open_failed)
        last_entry, length = reader.last_entry, reader.length
        await reader.close()
        if not self._acknowledged <= last_entry < self._entries:
            raise LogCorruptedError(
                f"a ledger ends elsewhere than its writer knows ledger={self._ledger.ledger_id} last_entry={last_entry}"
                f" acknowledged={self._acknowledged} sent={self._entries} path={self._record.path!r}"
            )
        return LedgerEnd(self._ledger.ledger_id, last_entry, length)

    async def _open_failed(self) -> LedgerReader:
        try:
            await self._record.check_owner()
        except MetadataUnavailableError as error:
            if isinstance(self._ledger_failure, LedgerFencedError):
                raise LogNotPrimaryError(
                    f"the newest ledger of the log was fenced, and its record cannot be read path={self._record.path!r}"
                ) from error
            raise
        return await self._maker.open_recorded(self._ledger.ledger_id)

    async def close(self) -> None:
        """Write down the ends of open ledgers, so that the next owner need not look for them; behind fail().

        In `close_seconds_max`: without ZooKeeper it would take as long as that is away, and the process that was the
        owner could not be another one before. Side by side: one that hangs would take the time of the others.
        """
        writers = [self._writer]
        if self._former is not None:
            writers.append(self._former.writer)
        if self._ahead is not None:
            writers.append(self._ahead)
        try:
            async with asyncio.timeout(self._settings.close_seconds_max):
                await gather_all(self._maker.let_go(each) for each in writers)
        except TimeoutError:
            _LOG.info("ledgers are left open for the next owner path=%s", self._record.path)

    # --- checks ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Prove the invariants of what is in memory. O(appends under way)."""
        under_way = [*self._in_flight, *self._waiting]
        assert self.outstanding_entries == len(under_way), (
            self.outstanding_entries,
            len(under_way),
        )
        held = sum(accepted.length for accepted in under_way)
        assert self.outstanding_bytes == held, (
            f"outstanding_bytes={self.outstanding_bytes}, {held} are held"
        )
        addresses = [accepted.address for accepted in self._in_flight]
        assert addresses == sorted(set(addresses)), f"in flight out of order: {addresses}"
        assert not self._waiting or not self._takes_appends, (
            "appends wait although a ledger takes them"
        )


def _failure_of(sent: "Future[int]") -> BaseException | None:
    if sent.cancelled():
        return LedgerUnavailableError("the client of the ledgers gave an append up")
    return sent.exception()
