"""Ledgers, as the log needs them from a BookKeeper client: made, written, fenced, read, deleted.

A ledger is a sequence of entries that one writer appends, each on several bookies; entry ids are 0, 1, 2 ... without a
gap. Two implementations: the official Java client in this process, and simulated bookies of the tests.

Guarantees that the log builds on, and that an implementation gives:

- G1  append() is ordered by call; the n-th accepted entry of a ledger has id n. Its future completes with that id when
      the ack quorum has synced it, and not before all earlier ones of that ledger have completed.
- G2  After one append of a writer fails, every later one fails as well. What failed may be in the ledger or not: only
      open_fenced() tells, by what it finds to be the last entry.
- G3  After open_fenced() has returned, the last entry is the same for every later open. Every entry whose append
      completed is at or before it; an answer that was on its way may still come then, for no entry behind it.
- G4  read() returns an entry's bytes as they were given, checked by the digest (CRC32C), or raises LogCorruptedError.
- G5  Ids of ledgers never come again.
- G6  Every call ends, and every future completes, within a time that the settings of the client bound: also while
      bookies or ZooKeeper are gone, or do not answer.
"""

from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from segmentstore.contracts.errors import DurableDataLogError
from segmentstore.contracts.identifiers import BufferView

LedgerId = NewType("LedgerId", int)
"""Of BookKeeper, 63 bits."""


class LedgerFencedError(DurableDataLogError):
    """Another client has opened the ledger to take it over, or has closed it: nothing is appended to it any more."""


class LedgerNotFoundError(DurableDataLogError):
    """There is no such ledger: it was deleted, or never existed."""


class TooFewBookiesError(DurableDataLogError):
    """Fewer bookies take part than a new ledger, or an append, needs. It may be tried again."""


class LedgerUnavailableError(DurableDataLogError):
    """A bookie, ZooKeeper or the way to them failed; what was asked for may have happened. It may be tried again."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many bookies hold a ledger: entries are spread over `ensemble`, each is on `write`, acknowledged by `ack`."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2


@dataclass(frozen=True, slots=True)
class LabelledLedger:
    """A ledger, and all the labels that it was made with."""

    ledger_id: LedgerId
    labels: Mapping[str, bytes]


class LedgerWriter(Protocol):
    """A ledger that this process made and writes."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def quorum(self) -> Quorum: ...

    def append(self, entry: Sequence[BufferView]) -> "Future[int]":
        """Submit one entry, given in pieces that are copied before this returns; never waits.

        The future gives the entry's id once it is durable. It fails with LedgerFencedError, TooFewBookiesError,
        LedgerUnavailableError, or AppendTooLargeError, after which the ledger takes other entries as before.
        """

    async def close(self) -> None:
        """Wait for what was appended and write down the last entry; a reader needs no recovery then. Idempotent.

        Raises as append(). That it succeeds proves nothing about who owns the log.
        """


class LedgerReader(Protocol):
    """A ledger that is closed, by its writer or by open_fenced()."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def last_entry(self) -> int:
        """-1 if it has none."""

    @property
    def length(self) -> int:
        """Bytes of all its entries."""

    async def read(self, first: int, last: int) -> list[memoryview]:
        """The entries first to last, both included. The caller bounds how many bytes those are.

        Raises LogCorruptedError if no bookie has an entry that passes its digest, LedgerUnavailableError. Of a ledger
        that was deleted meanwhile it gives the entries, or raises LedgerNotFoundError: bookies forget it later.
        """

    async def close(self) -> None: ...


class LedgerClient(Protocol):
    """A client of one BookKeeper cluster; shared by the logs of a process."""

    async def create(self, quorum: Quorum, *, labels: dict[str, bytes]) -> LedgerWriter:
        """A new ledger, with CRC32C digests; labels are kept with it and say whose it is.

        Raises TooFewBookiesError, LedgerUnavailableError.
        """

    async def open_fenced(self, ledger_id: LedgerId) -> LedgerReader:
        """Fence its writer, find its last entry, copy what has too few copies, close it, and open it to read.

        Of a closed ledger it is a plain open. Raises LedgerNotFoundError, TooFewBookiesError, LedgerUnavailableError,
        LogCorruptedError for a digest of another kind or another password.
        """

    async def open_unfenced(self, ledger_id: LedgerId) -> LedgerReader:
        """Open it to look, and leave its writer alone: of one that is written it ends where its writer has confirmed.

        For tools: what was acknowledged last may be missing. Raises as open_fenced().
        """

    async def delete(self, ledger_id: LedgerId) -> None:
        """Idempotent: a ledger that is gone is no error. Raises LedgerUnavailableError."""

    async def find_labelled(self, labels: Mapping[str, bytes]) -> list[LabelledLedger]:
        """Every ledger of the cluster that has these labels, and maybe more, in no order.

        For tools: it looks at each ledger of every client of the cluster. Raises LedgerUnavailableError.
        """

    async def living_bookies(self) -> int:
        """How many bookies take writes now. Raises LedgerUnavailableError."""

    async def close(self) -> None: ...
