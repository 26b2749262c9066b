"""Which tables a call has read, so that it can prove them before its answer is told.

Noted by the tables themselves: no room can forget one. What works in the background belongs to no call, and notes
nothing.

Invariant: a call notes what it reads itself, and what it reads of other rooms' memory (TransactionTable.note_read).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from segmentstore.controller.metadata.log_proof import LogProof


class TablesRead:
    """Of one call."""

    def __init__(self) -> None:
        self._proofs: dict[LogProof, None] = {}
        self.wrote = False
        """The call changed a table itself."""

    def note(self, proof: LogProof) -> None:
        """Something was read from the table of this proof."""
        self._proofs[proof] = None

    async def prove(self) -> None:
        """Returns once all that was read so far is proved. Raises what LogProof.wait raises."""
        for proof in list(self._proofs):
            await proof.wait()


_of_call: ContextVar[TablesRead | None] = ContextVar("tables_read", default=None)


@contextmanager
def noting_reads() -> Iterator[TablesRead]:
    """What is read inside, also by tasks that begin inside, is noted."""
    read = TablesRead()
    token = _of_call.set(read)
    try:
        yield read
    finally:
        _of_call.reset(token)


def note_read(proof: LogProof) -> None:
    """The call of the moment, if there is one, reads the table of this proof."""
    read = _of_call.get()
    if read is not None:
        read.note(proof)


def note_written() -> None:
    """The call of the moment, if there is one, has changed a table."""
    read = _of_call.get()
    if read is not None:
        read.wrote = True
