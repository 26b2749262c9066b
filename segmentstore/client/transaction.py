"""A transaction: events that appear in the stream all at once, or never.

Invariants:

- Nothing that was written is readable before the commit, and after an abort nothing ever is.
- At the end of `async with` the transaction is committed; if the body raises it is aborted, and the error goes on.
- While it is open its lease is extended in the background, so it ends by itself only when this process dies.
- `commit` flushes first: what it commits is everything that was written.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from segmentstore.client.controller import StreamName
from segmentstore.client.controller_transactions import TransactionCalls, TransactionState
from segmentstore.client.errors import (
    DeadlineExceededError,
    NotFoundError,
    TransactionClosedError,
)
from segmentstore.client.event_writer import EventWriter, WriteTarget
from segmentstore.client.key_space import SegmentRange, Successor
from segmentstore.client.owned_tasks import OwnedTasks
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.codec.stream_names import segment_name, transaction_segment
from segmentstore.contracts.errors import SegmentStoreError


class Transaction:
    """Made by `stream.transaction()` or `stream.resume_transaction(id)`; hold it in `async with`."""

    def __init__(
        self,
        *,
        stream: StreamName,
        lease_seconds: float,
        resumed: tuple[int, Sequence[SegmentRange]] | None,
        transactions: TransactionCalls,
        calls: SegmentCalls,
    ) -> None:
        """`calls` are the transaction's own: it closes their connections. `resumed` is its id and its segments."""
        self._stream = stream
        self._lease_seconds = lease_seconds
        self._transactions = transactions
        self._settings = calls.settings
        self._id, self._ranges = resumed if resumed is not None else (0, ())
        self._is_resumed = resumed is not None
        self._is_ended = False
        self._failure: SegmentStoreError | None = None
        self._tasks = OwnedTasks(self._lease_failed)
        self._writer = EventWriter(
            target=WriteTarget(
                name=str(stream),
                ranges=self._begun_ranges,
                segment_name=self._segment_name,
                successors=self._no_successors,
            ),
            calls=calls,
        )

    @property
    def id(self) -> str:
        """32 hex digits, to resume it elsewhere."""
        return f"{self._id:032x}"

    async def __aenter__(self) -> Self:
        if not self._is_resumed:
            begun = await self._transactions.begin(self._lease_seconds)
            self._id, self._ranges = begun.transaction_id, begun.ranges
        await self._writer.open()
        self._tasks.start(self._extend_lease(), name=f"lease of transaction {self.id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._is_ended:
                return
            if error is None:
                await self.commit()
            else:
                await self._abort_quietly()
        finally:
            await self.detach()

    async def write(self, event: bytes, *, key: str | None = None) -> None:
        """As EventWriter.write. Raises TransactionClosedError."""
        self._check_open()
        await self._writer.write(event, key=key)

    async def flush(self) -> None:
        """Wait until everything written so far is stored, though not readable yet."""
        self._check_open()
        await self._writer.flush()

    async def commit(self) -> None:
        """Flush, commit, and wait until the events are readable.

        Raises TransactionClosedError, and DeadlineExceededError if the commit is decided but takes too long.
        """
        self._check_open()
        await self._writer.flush()
        await self._transactions.commit(self._id)
        self._is_ended = True
        await self.detach()
        await self._wait_until(TransactionState.COMMITTED)

    async def abort(self) -> None:
        """Throw away what was written."""
        self._check_open()
        await self._transactions.abort(self._id)
        self._is_ended = True
        await self.detach()

    async def state(self) -> TransactionState:
        """What the controller says."""
        return await self._transactions.state(self._id)

    async def detach(self) -> None:
        """Leave the transaction as it is: open until its lease ends, for somebody else to resume."""
        self._is_ended = True
        await self._tasks.close()
        await self._writer.close()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_ended:
            raise TransactionClosedError(self.id, "ended")

    async def _abort_quietly(self) -> None:
        """The body's error matters more than an abort that fails: the lease ends the transaction as well."""
        try:
            await self._transactions.abort(self._id)
        except SegmentStoreError:
            return

    async def _wait_until(self, wanted: TransactionState) -> None:
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                while (state := await self.state()) is not wanted:
                    if state in {TransactionState.ABORTING, TransactionState.ABORTED}:
                        raise TransactionClosedError(self.id, state.value)
                    if state is TransactionState.UNKNOWN:
                        return  # committed, and forgotten by now
                    await asyncio.sleep(self._settings.transaction_poll_seconds)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"transaction is decided but not merged yet id={self.id}"
            ) from error

    async def _extend_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            status = await self._transactions.ping(self._id, self._lease_seconds)
            if status != "OK":
                self._failure = TransactionClosedError(self.id, status.lower())
                return

    def _lease_failed(self, error: BaseException) -> None:
        if isinstance(error, NotFoundError):
            self._failure = TransactionClosedError(self.id, "unknown")
        elif isinstance(error, SegmentStoreError):
            self._failure = error
        else:
            self._failure = TransactionClosedError(self.id, f"lease was not extended: {error!r}")

    async def _begun_ranges(self) -> Sequence[SegmentRange]:
        return self._ranges

    def _segment_name(self, segment_id: int) -> str:
        parent = segment_name(self._stream.scope, self._stream.stream, segment_id)
        return transaction_segment(parent, self._id)

    async def _no_successors(
        self,
        segment_id: int,  # noqa: ARG002  # the signature of WriteTarget.successors
        error: SegmentStoreError,
    ) -> Sequence[Successor]:
        """A transaction's segments end only with the transaction."""
        raise TransactionClosedError(self.id, (await self.state()).value) from error
