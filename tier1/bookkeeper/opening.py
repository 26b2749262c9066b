"""The steps from the record of a log to a log that takes entries.

    record (made if there is none) -> disabled? -> claim: epoch + 1 in the record (earlier owners change nothing more)
    -> open each open ledger fenced (earlier owners append nothing more) -> make a ledger
    -> record: the former ones end there, ours begins

Invariants:

- Which ledgers may be open, the claim tells: the two newest of the list at most, and no earlier owner can add another.
  If the newest has an entry, the one before it has all of its own on an ack quorum: whichever is fenced first, no hole
  comes between them.
- A crash at any step leaves the same entries: the list only gets a new end, and what a fenced ledger has at its end is
  settled once.
- A claimant that wakes late fences ledgers only that were there before its claim, which every later owner has fenced
  too; its own ledger gets into no record.

A log that is taken out of its store is fenced by the first of these steps (take_record, fence_ledgers), and none
follows.
"""

import logging
from dataclasses import dataclass
from functools import partial
from random import Random

from segmentstore.contracts.errors import DurableDataLogError
from tier1.bookkeeper.ledger_maker import LedgerEnd, LedgerMaker
from tier1.bookkeeper.ledgers import LedgerClient, LedgerWriter
from tier1.bookkeeper.log_record import LedgerInLog, decode_record, encode_record
from tier1.bookkeeper.metadata_store import MetadataStore, VersionedValue
from tier1.bookkeeper.owned_record import OwnedRecord
from tier1.bookkeeper.retries import RetriedPart
from tier1.bookkeeper.settings import LedgerRules

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """What an opening hands to the log."""

    former: tuple[LedgerInLog, ...]
    """What read() goes through, oldest first; all of them are closed."""
    ledger: LedgerInLog
    """Ours, empty."""
    writer: LedgerWriter
    is_new: bool
    """No ledger was ever in the record."""


async def open_log(*, record: OwnedRecord, maker: LedgerMaker, epoch_floor: int) -> OpenedLog:
    """Raises LogDisabledError, LogInUseError, LogNotPrimaryError, LogCorruptedError; TooFewBookiesError,
    LedgerUnavailableError or MetadataUnavailableError if it lasts."""
    found = await record.claim(epoch_floor=epoch_floor)
    ends = []
    for ledger_id in [each.ledger_id for each in found.ledgers if each.is_open]:
        reader = await record.retries(RetriedPart.RECOVERY).attempt(
            partial(maker.open_recorded, ledger_id)
        )
        ends.append(LedgerEnd(ledger_id, reader.last_entry, reader.length))
        await reader.close()
    writer = await record.retries(RetriedPart.RECOVERY).attempt(
        lambda: maker.create(or_with_few=True)
    )
    ledger = await maker.enter(writer, ends=ends, part=RetriedPart.RECOVERY)
    return OpenedLog(
        former=tuple(each for each in record.record.ledgers if each.sequence < ledger.sequence),
        ledger=ledger,
        writer=writer,
        is_new=found.last_sequence == 0,
    )


async def take_record(
    path: str, found: VersionedValue, *, metadata: MetadataStore, owner: str, random: Random
) -> int:
    """Of the log with that record, disabled or not: its owner changes nothing from here on. The version of it now.

    Raises LogCorruptedError for a record that does not read back, MetadataChangedError if it was changed meanwhile,
    MetadataUnavailableError.
    """
    record = decode_record(found.value, path=path)
    claimed = LedgerRules().claimed(
        record, epoch=record.epoch + 1, nonce=random.randbytes(8), owner=owner
    )
    return await metadata.compare_and_set(path, encode_record(claimed), version=found.version)


async def fence_ledgers(path: str, found: VersionedValue, *, ledgers: LedgerClient) -> None:
    """Of the log with that record: who writes it completes no append from here on.

    A ledger that is gone, or too few of whose bookies answer, is named by a warning. Raises LogCorruptedError.
    """
    for each in decode_record(found.value, path=path).ledgers:
        if not each.is_open:
            continue
        try:
            reader = await LedgerRules().open_former(ledgers, each.ledger_id)
            await reader.close()
        except DurableDataLogError as error:
            # The log is taken for lost in any case, and this may be why.
            _LOG.warning(
                "a ledger is not fenced ledger=%d path=%s: %s", each.ledger_id, path, error
            )
