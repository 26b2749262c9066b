"""What an operator may tune about the log on BookKeeper, and the decisions on which its durability hangs.

Each decision stands alone in one method, so that a test can break exactly one of them and see that the simulation
finds out.
"""

from dataclasses import dataclass, replace

from segmentstore.contracts.identifiers import LogAddress
from tier1.bookkeeper.ledgers import LedgerClient, LedgerId, LedgerReader, Quorum
from tier1.bookkeeper.log_record import LedgerInLog, LogRecord

MIB = 1 << 20
ENTRY_BYTES_LIMIT = 4 * MIB
"""Bookies refuse requests above 5 MiB as they come."""

_QUORUM = Quorum(ensemble=3, write=3, ack=2)


@dataclass(frozen=True, slots=True)
class GiveUpSettings:
    """Of a log that another process can take over, which may reach more bookies: how long this one tries again."""

    append_seconds_max: float
    """Appends that wait."""
    recovery_seconds_max: float
    """Each step of an opening, and each read of a recovery: where no process reaches bookies, none gains by it."""

    def __post_init__(self) -> None:
        for name in ("append_seconds_max", "recovery_seconds_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is above zero {name}={getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class BookKeeperLogSettings:
    """Sizes are bytes, times are seconds. Small values make a simulated world turn its corners quickly."""

    quorum: Quorum = _QUORUM
    """Of every new ledger: bookies that it is spread over, copies of an entry, copies that an acknowledgement means."""
    quorum_with_few_bookies: Quorum | None = None
    """Of a new ledger while fewer bookies take part than `quorum` needs; None: appends wait for more bookies."""
    entry_bytes_max: int = MIB
    """Largest entry that append() takes."""
    outstanding_bytes_max: int = 16 * MIB
    """What the caller may have in flight; also bounds the appends that wait for a ledger, which are never refused."""
    writes_at_once: int = 4
    """So many entries are sent as they come; further small appends gather for the next. Bookies take many at once."""
    ledger_bytes_max: int = 512 * MIB
    """A ledger that has grown so large is followed by another: only whole ledgers are given back."""
    ledger_age_seconds_max: float = 900.0
    """The same for one that is so old, and has entries."""
    rollover_record_bytes_max: int = 600_000
    """Behind a log's record that is larger no ledger follows one that is large or old, which grows on: what is left up
    to RECORD_BYTES_MAX is for ledgers that fail, and for those of the next owners."""
    retry_seconds_first: float = 0.05
    """Pause before the second attempt at a step that failed; each further pause is twice as long."""
    retry_pause_seconds_max: float = 2.0
    """The longest pause between two attempts."""
    retry_seconds_max: float = 120.0
    """So long without success, and the log fails: an opening that needs bookies or ZooKeeper, and appends that wait."""
    give_up: GiveUpSettings | None = None
    """Instead of it, where another process can take the log over."""
    close_seconds_max: float = 2.0
    """What of a closed log's ledgers is not closed by then is left to the next owner, which finds their ends."""
    look_again_seconds: float = 5.0
    """How often what can wait is tried again: a new ledger for a full one, deletions, more bookies for a few."""
    read_bytes_max: int = 8 * MIB
    """What one request of a recovery aims to fetch; one range is taken while the next is fetched."""
    read_entries_max: int = 64
    """Entries that one request of a recovery fetches at most: they may all be of the largest size."""

    def __post_init__(self) -> None:
        check_quorums(self.quorum, self.quorum_with_few_bookies)
        if not 0 < self.entry_bytes_max <= ENTRY_BYTES_LIMIT:
            raise ValueError(
                f"entry_bytes_max is from 1 to {ENTRY_BYTES_LIMIT} entry_bytes_max={self.entry_bytes_max}"
            )
        if self.ledger_bytes_max < self.entry_bytes_max:
            raise ValueError(
                "a ledger has room for one entry at least "
                f"ledger_bytes_max={self.ledger_bytes_max} entry_bytes_max={self.entry_bytes_max}"
            )
        if self.outstanding_bytes_max < self.entry_bytes_max:
            raise ValueError(
                "an entry of the largest size may be in flight "
                f"outstanding_bytes_max={self.outstanding_bytes_max} entry_bytes_max={self.entry_bytes_max}"
            )
        for name in (
            "ledger_age_seconds_max",
            "retry_seconds_first",
            "retry_pause_seconds_max",
            "retry_seconds_max",
            "close_seconds_max",
            "look_again_seconds",
            "writes_at_once",
            "read_bytes_max",
            "read_entries_max",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is above zero {name}={getattr(self, name)}")


def check_quorums(quorum: Quorum, quorum_with_few_bookies: Quorum | None) -> None:
    """Raises ValueError for what no ledger can have, or what would acknowledge entries with fewer copies."""
    _check_quorum("quorum", quorum)
    few = quorum_with_few_bookies
    if few is None:
        return
    _check_quorum("quorum_with_few_bookies", few)
    if few.ensemble >= quorum.ensemble:
        raise ValueError(
            "quorum_with_few_bookies needs fewer bookies than quorum does "
            f"quorum_with_few_bookies={_words(few)} quorum={_words(quorum)}"
        )
    if few.ack < quorum.ack:
        raise ValueError(
            "an acknowledged entry has as many copies with few bookies as otherwise "
            f"quorum_with_few_bookies={_words(few)} quorum={_words(quorum)}"
        )


def _check_quorum(name: str, quorum: Quorum) -> None:
    if not 1 <= quorum.ack <= quorum.write <= quorum.ensemble <= 255:
        raise ValueError(
            f"a quorum has 1 <= acknowledged copies <= copies <= bookies <= 255 {name}={_words(quorum)}"
        )


def _words(quorum: Quorum) -> str:
    return f"{quorum.ensemble}/{quorum.write}/{quorum.ack}"


class LedgerRules:
    """What the log on BookKeeper does in production; there is no other choice to configure."""

    def claimed(self, found: LogRecord, *, epoch: int, nonce: bytes, owner: str) -> LogRecord:
        """What a new owner writes before it touches a ledger: from then on the one before it changes nothing."""
        return replace(found, epoch=epoch, nonce=nonce, change=1, owner=owner)

    async def open_former(self, ledgers: LedgerClient, ledger_id: LedgerId) -> LedgerReader:
        """The ledger of an earlier owner, fenced: that owner can complete nothing more."""
        return await ledgers.open_fenced(ledger_id)

    def is_left_behind(self, record: LogRecord, ledger_id: LedgerId, *, epoch: int) -> bool:
        """Whether a ledger that an owner of that epoch made can never get into the record, nor is there or was."""
        known = {*(each.ledger_id for each in record.ledgers), *record.garbage}
        return epoch < record.epoch and ledger_id not in known

    def is_dispensable(self, ledger: LedgerInLog, *, up_to: LogAddress, is_newest: bool) -> bool:
        """Whether a truncation up to that address may take the ledger away."""
        if is_newest or ledger.is_open:
            return False
        last = ledger.last_address
        return last is None or last <= up_to
