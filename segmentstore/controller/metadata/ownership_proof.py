"""Proof that a table was this process's own when a call read from it.

Another process may have taken the table's container over. The process that lost it does not know until it writes: what
it reads meanwhile is old. A write that succeeds cannot come from such a process, so what was read before it was not
old. The write is an empty record, which reads as absent.

What a call has read is noted by the tables themselves (`note_read`), so that no component can forget it; before the
answer is told the call proves all of it (`CallReads.prove`). What works in the background belongs to no call, and notes
nothing.

Invariants:

- A proof is submitted behind the moment at which it was asked for. Everything read before is thereby proved.
- Callers that ask meanwhile share the next one. Proofs begin at least PAUSE_SECONDS apart, however many callers ask.
- No caller owns a proof that is under way: a caller that leaves takes it from no other caller.
- A call notes what it reads itself, and what it reads of other components' memory (TransactionTable.note_read).
"""

import asyncio
from asyncio import Future
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.record_keys import REMOVED
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.tables import Table, TableApi, TableEntry
from segmentstore.controller.errors import RetryLaterError
from segmentstore.runtime.cancellation import retrieve_exception

PAUSE_SECONDS: Final = 0.02

_PROOF_KEY: Final = record_keys.PROOF.encode()


@dataclass(slots=True, eq=False)
class _PendingProof:
    """The callers that asked since the last one was submitted."""

    outcome: "Future[Sequence[int]] | None" = None
    """None until it is submitted."""
    since: float = 0.0


class OwnershipProof:
    """The proofs of one table."""

    def __init__(self, *, tables: TableApi, name: str) -> None:
        self._tables = tables
        self._name = name
        self._gathering = _PendingProof()
        self._under_way: Future[Sequence[int]] | None = None
        self._next_at = 0.0
        self._proved_until = float("-inf")

    async def wait(self) -> None:
        """Until what was read from the table before is proved.

        Raises RetryLaterError (the table is gone), and what the interface of tables raises: it was not proved.
        """
        mine = self._gathering
        loop = asyncio.get_running_loop()
        while mine.outcome is None:
            if self._under_way is not None and not self._under_way.done():
                await asyncio.gather(asyncio.shield(self._under_way), return_exceptions=True)
            elif self._next_at > loop.time():
                await asyncio.sleep(self._next_at - loop.time())
            else:
                await self._submit(mine)
        await asyncio.shield(mine.outcome)
        self.note_write(since=mine.since)

    async def wait_unless_since(self, moment: float) -> None:
        """The same, unless the table was this process's own at that moment of the loop's clock, or later."""
        if self._proved_until < moment:
            await self.wait()

    def note_write(self, *, since: float) -> None:
        """A write that was submitted at that moment of the loop's clock has succeeded: it proves as much."""
        self._proved_until = max(self._proved_until, since)

    async def _submit(self, mine: _PendingProof) -> None:
        try:
            async with self._tables.open_table(self._name) as table:
                # Another caller that shares this proof may have been faster.
                if mine.outcome is None:
                    self._begin(mine, table)
        except SegmentNotFoundError as error:
            raise RetryLaterError(f"a table is gone meanwhile table={self._name!r}") from error

    def _begin(self, mine: _PendingProof, table: Table) -> None:
        assert mine is self._gathering, "a round that is not the next one"
        mine.since = asyncio.get_running_loop().time()
        mine.outcome = self._under_way = table.update([TableEntry(_PROOF_KEY, REMOVED)])
        mine.outcome.add_done_callback(retrieve_exception)
        self._next_at = mine.since + PAUSE_SECONDS
        self._gathering = _PendingProof()


class CallReads:
    """The tables that one call has read."""

    def __init__(self) -> None:
        self._proofs: dict[OwnershipProof, None] = {}
        self.wrote = False
        """The call changed a table itself."""

    def note(self, proof: OwnershipProof) -> None:
        """Something was read from the table of this proof."""
        self._proofs[proof] = None

    async def prove(self) -> None:
        """Returns once all that was read so far is proved. Raises what OwnershipProof.wait raises."""
        for proof in list(self._proofs):
            await proof.wait()


_reads_of_call: ContextVar[CallReads | None] = ContextVar("tables_read", default=None)


@contextmanager
def noting_reads() -> Iterator[CallReads]:
    """What is read inside, also by tasks that begin inside, is noted."""
    read = CallReads()
    token = _reads_of_call.set(read)
    try:
        yield read
    finally:
        _reads_of_call.reset(token)


def note_read(proof: OwnershipProof) -> None:
    """The call of the moment, if there is one, reads the table of this proof."""
    read = _reads_of_call.get()
    if read is not None:
        read.note(proof)


def note_written() -> None:
    """The call of the moment, if there is one, has changed a table."""
    read = _reads_of_call.get()
    if read is not None:
        read.wrote = True
