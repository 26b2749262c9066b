"""New ledgers of a log: made, and put into its record; what its record says of where the former ones end.

Invariant: a ledger is deleted here only if it is not in the record and cannot get there: the record has another owner,
and does not name it. An owner that is told so may have written it down before, and the answer was lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from segmentstore.contracts.errors import DurableDataLogError, LogCorruptedError, LogNotPrimaryError
from tier1.bookkeeper.ledgers import (
    LedgerClient,
    LedgerFencedError,
    LedgerId,
    LedgerNotFoundError,
    LedgerReader,
    LedgerUnavailableError,
    LedgerWriter,
    Quorum,
    TooFewBookiesError,
)
from tier1.bookkeeper.log_record import LedgerInLog, LogRecord, ledger_labels
from tier1.bookkeeper.metadata_store import MetadataUnavailableError
from tier1.bookkeeper.owned_record import OwnedRecord, Step
from tier1.bookkeeper.retries import MAY_PASS, RetriedPart
from tier1.bookkeeper.settings import BookKeeperLogSettings, LedgerRules

_LOG = logging.getLogger(__name__)
LEDGER_FAILURES = (
    LedgerFencedError,
    LedgerNotFoundError,
    TooFewBookiesError,
    LedgerUnavailableError,
)
"""What the writer of a ledger raises, whose ledger a later owner may have fenced, and even deleted."""


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """Where a ledger ends that takes no more entries."""

    ledger_id: LedgerId
    last_entry: int
    """-1 if it has none."""
    length: int


class LedgerMaker:
    """Makes the ledgers of one owner, puts them into the record, and opens those that it names."""

    def __init__(
        self,
        *,
        ledgers: LedgerClient,
        record: OwnedRecord,
        settings: BookKeeperLogSettings,
        rules: LedgerRules,
    ) -> None:
        self._ledgers = ledgers
        self._record = record
        self._settings = settings
        self._rules = rules

    async def create(self, *, or_with_few: bool) -> LedgerWriter:
        """Of the quorum of the settings; if bookies are too few for it and that is wanted, of the one for few bookies.

        Raises TooFewBookiesError, LedgerUnavailableError.
        """
        try:
            return await self._create(self._settings.quorum)
        except TooFewBookiesError:
            few = self._settings.quorum_with_few_bookies
            if few is None or not or_with_few:
                raise
            return await self._create(few)

    async def _create(self, quorum: Quorum) -> LedgerWriter:
        labels = ledger_labels(self._record.path, self._record.record)
        return await self._ledgers.create(quorum, labels=labels)

    async def enter(
        self,
        writer: LedgerWriter,
        *,
        ends: Sequence[LedgerEnd] = (),
        part: RetriedPart = RetriedPart.OTHER,
    ) -> LedgerInLog:
        """One change of the record: the former ledgers end there, and this one is the newest.

        Raises LogNotPrimaryError, and then the ledger is in no record; MetadataUnavailableError, and then it may be.
        Cancelled, it may be as well, and is let go in `close_seconds_max`.
        """
        try:
            return await self._enter(writer, ends, partial(self._record.change, part=part))
        except MetadataUnavailableError:
            await self.let_go(writer)
            raise
        except asyncio.CancelledError:
            # Nothing else knows of the writer: the client would keep the ledger open until the process ends.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.close_seconds_max):
                    await self.let_go(writer)
            raise

    async def enter_ahead(self, writer: LedgerWriter) -> LedgerInLog:
        """The ledger becomes the newest while the one before it is open, and takes no entry yet; in one attempt.

        Raises as enter(), but behind MetadataUnavailableError the ledger can be entered again, or by enter().
        """
        return await self._enter(writer, (), self._record.try_change)

    async def _enter(
        self,
        writer: LedgerWriter,
        ends: Sequence[LedgerEnd],
        change: Callable[[Step], Awaitable[LogRecord]],
    ) -> LedgerInLog:
        entered: list[LedgerInLog] = []

        def step(record: LogRecord) -> LogRecord:
            record = with_ends(record, ends)
            known = [each for each in record.ledgers if each.ledger_id == writer.ledger_id]
            ledger = LedgerInLog(
                ledger_id=writer.ledger_id,
                sequence=known[0].sequence if known else record.last_sequence + 1,
                epoch=record.epoch,
                quorum=writer.quorum,
            )
            entered[:] = [ledger]
            return without_dispensable(record.with_ledger(ledger), self._rules)

        try:
            await change(step)
        except MetadataUnavailableError:
            raise
        except DurableDataLogError as error:
            await self.let_go(writer)
            if isinstance(error, LogNotPrimaryError):
                await self._delete_unrecorded(writer)
            raise
        return entered[0]

    async def end(self, end: LedgerEnd) -> None:
        """Write down where a ledger ends that is not the newest, in one attempt; once more changes nothing.

        Raises LogNotPrimaryError, MetadataUnavailableError.
        """
        await self._record.try_change(
            lambda record: without_dispensable(with_ends(record, (end,)), self._rules)
        )

    async def open_recorded(self, ledger_id: LedgerId) -> LedgerReader:
        """A ledger that the record names, fenced, written by this owner or an earlier one.

        Raises LogCorruptedError if it is gone and the log is still ours, LogNotPrimaryError if a later owner may have
        deleted it, TooFewBookiesError, LedgerUnavailableError, MetadataUnavailableError.
        """
        try:
            return await self._rules.open_former(self._ledgers, ledger_id)
        except LedgerNotFoundError as error:
            await self._record.check_owner()
            raise LogCorruptedError(
                f"a ledger of the log is gone ledger={ledger_id} path={self._record.path!r}"
            ) from error

    async def let_go(self, writer: LedgerWriter) -> None:
        """Close a ledger as well as it can be done: nothing relies on it."""
        try:
            await writer.close()
        except DurableDataLogError as error:
            _LOG.info("a ledger is not closed ledger=%d: %s", writer.ledger_id, error)

    async def _delete_unrecorded(self, writer: LedgerWriter) -> None:
        """Behind the claim of another owner nothing of ours gets into the record any more; but it may have before."""
        try:
            record = await self._record.read()
            if all(ledger.ledger_id != writer.ledger_id for ledger in record.ledgers):
                await self._ledgers.delete(writer.ledger_id)
        except MAY_PASS as error:
            _LOG.info("an empty ledger is left behind ledger=%d: %s", writer.ledger_id, error)


def with_ends(record: LogRecord, ends: Sequence[LedgerEnd]) -> LogRecord:
    """The record with these ledgers closed."""
    for end in ends:
        record = record.with_closed(end.ledger_id, last_entry=end.last_entry, length=end.length)
    return record


def without_dispensable(record: LogRecord, rules: LedgerRules) -> LogRecord:
    """The record with ledgers that the truncation has left behind, and empty ones, among the garbage. O(ledgers)."""
    newest = record.ledgers[-1].ledger_id if record.ledgers else None
    kept: list[LedgerInLog] = []
    gone: list[LedgerId] = []
    for ledger in record.ledgers:
        if rules.is_dispensable(
            ledger, up_to=record.truncated_up_to, is_newest=ledger.ledger_id == newest
        ):
            gone.append(ledger.ledger_id)
        else:
            kept.append(ledger)
    if not gone:
        return record
    return replace(record, ledgers=tuple(kept), garbage=(*record.garbage, *gone))
