"""Ledgers that an owner made and could not write into the record of its log before it died: found by their labels.

Invariants:

- A ledger is deleted only if no owner can write it down any more. It has the labels of this log and of an epoch below
  the one in the record, and the record does not name it: the owner of that epoch changes the record no more, and others
  write down ledgers of their own alone. So it makes no difference whether the present owner is at work.
- A ledger with entries is never deleted, only named: no owner writes to one that is not in the record, so the record is
  not the one that belongs to it; an operator may have put back an old copy of ZooKeeper's data.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from segmentstore.contracts.errors import LogCorruptedError
from tier1.bookkeeper.ledgers import LabelledLedger, LedgerClient, LedgerId, LedgerNotFoundError
from tier1.bookkeeper.log_record import EPOCH_LABEL, ledger_labels
from tier1.bookkeeper.metadata_store import MetadataStore
from tier1.bookkeeper.owned_record import read_record
from tier1.bookkeeper.settings import LedgerRules


@dataclass(frozen=True, slots=True)
class UnrecordedLedger:
    """One that was found."""

    ledger_id: LedgerId
    epoch: int
    entries: int
    """0: it was deleted."""


async def delete_unrecorded_ledgers(
    path: str,
    *,
    ledgers: LedgerClient,
    metadata: MetadataStore,
    rules: LedgerRules | None = None,
) -> AsyncGenerator[UnrecordedLedger, None]:
    """Those of the log whose record is at `path`, by id; none if there is no record. The empty ones are deleted.

    Each is told when it is deleted, and before the next one is looked at: what follows may fail. It goes through all
    ledgers of the cluster. Raises LogCorruptedError for a record, or a label, that makes no sense; TooFewBookiesError,
    LedgerUnavailableError, MetadataUnavailableError.
    """
    rules = rules or LedgerRules()
    known = await read_record(path, metadata=metadata)
    if known is None:
        return
    labels = ledger_labels(path, known)
    del labels[EPOCH_LABEL]
    labelled = await ledgers.find_labelled(labels)
    # Read behind the walk: what the owner has written down meanwhile is in it.
    record = await read_record(path, metadata=metadata)
    if record is None or record.log_id != known.log_id:
        return
    for ledger in sorted(labelled, key=lambda each: each.ledger_id):
        epoch = _epoch_of(ledger)
        if not rules.is_left_behind(record, ledger.ledger_id, epoch=epoch):
            continue
        try:
            reader = await ledgers.open_fenced(ledger.ledger_id)
        except LedgerNotFoundError:
            continue
        await reader.close()
        if reader.last_entry < 0:
            await ledgers.delete(ledger.ledger_id)
        yield UnrecordedLedger(ledger.ledger_id, epoch, reader.last_entry + 1)


def _epoch_of(ledger: LabelledLedger) -> int:
    text = ledger.labels.get(EPOCH_LABEL, b"")
    if not text.isdigit():
        raise LogCorruptedError(
            f"a ledger of the log does not say of which epoch it is ledger={ledger.ledger_id} epoch={text!r}"
        )
    return int(text)
