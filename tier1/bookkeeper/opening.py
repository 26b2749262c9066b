"""The steps from the record of a log to a log that takes entries.

    record (made if there is none) -> disabled? -> claim: epoch + 1 in the record (earlier owners change nothing more)
    -> open the newest ledger fenced (earlier owners append nothing more) -> make a ledger
    -> record: the former one ends at n, ours begins

Invariants:

- Which ledgers may be open, the claim tells: only the newest of the list, and no earlier owner can add another.
- A crash at any step leaves the same entries: the list only gets a new end, and what a fenced ledger has at its end is
  settled once.
- A claimant that wakes late fences ledgers only that were there before its claim, which every later owner has fenced
  too; its own ledger gets into no record.
"""

from dataclasses import dataclass

from tier1.bookkeeper.ledger_maker import LedgerMaker
from tier1.bookkeeper.ledgers import LedgerWriter
from tier1.bookkeeper.log_record import LedgerInLog
from tier1.bookkeeper.owned_record import OwnedRecord


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
    newest = found.ledgers[-1] if found.ledgers else None
    last_entry, length = -1, 0
    if newest is not None and newest.is_open:
        newest_id = newest.ledger_id
        reader = await record.retries().attempt(lambda: maker.open_recorded(newest_id))
        last_entry, length = reader.last_entry, reader.length
        await reader.close()
    writer = await record.retries().attempt(lambda: maker.create(or_with_few=True))
    ledger = await maker.enter(
        writer,
        former=newest if newest is not None and newest.is_open else None,
        last_entry=last_entry,
        length=length,
    )
    return OpenedLog(
        former=tuple(each for each in record.record.ledgers if each.sequence < ledger.sequence),
        ledger=ledger,
        writer=writer,
        is_new=found.last_sequence == 0,
    )
