"""Begins transactions: record OPEN, or one that was written ahead; then a segment beside each segment of the epoch.

Invariants:

- A transaction's record is older than its segments: a controller that dies in between leaves a transaction whose lease
  runs out, not segments that nobody knows.
- One that is told of lives as long as its lease, also if another controller took over before anybody wrote.
"""

from segmentstore.codec.stream_names import transaction_segment
from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.stream_state_record import StreamState
from segmentstore.codec.stream_records.transaction_record import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.controller.errors import RetryLaterError, StreamSealedError
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.transactions.decisions import Decisions
from segmentstore.controller.transactions.reservations import Reservations
from segmentstore.controller.transactions.transaction_book import StreamBook, TransactionBook
from segmentstore.controller.transactions.transaction_ids import TransactionIds
from segmentstore.controller.transactions.transaction_table import TransactionTable
from segmentstore.runtime.clock import WallClock


class Begins:
    """Of all streams."""

    def __init__(
        self,
        *,
        book: TransactionBook,
        table: TransactionTable,
        operations: StreamOperations,
        segments: StreamSegments,
        decisions: Decisions,
        reservations: Reservations,
        ids: TransactionIds,
        wall_clock: WallClock,
    ) -> None:
        self._book = book
        self._table = table
        self._operations = operations
        self._segments = segments
        self._decisions = decisions
        self._reservations = reservations
        self._ids = ids
        self._wall_clock = wall_clock

    async def begin(
        self, scope: str, stream: str, *, lease_ms: int, open_max: int
    ) -> tuple[EpochRecord, int]:
        """A new transaction's epoch and id; its segments exist.

        Raises StreamNotFoundError, StreamSealedError, RetryLaterError (`open_max` are unfinished).
        """
        book = self._book.stream(scope, stream)
        if book.closed_count:
            raise StreamSealedError(scope, stream)
        if book.unfinished_count >= open_max:
            raise RetryLaterError(
                f"too many transactions are open stream={scope!r}/{stream!r} count={book.unfinished_count}"
            )
        book.begun_count += 1
        try:
            return await self._begin(book, lease_ms)
        finally:
            book.begun_count -= 1
            self._book.changed()
            self._book.drop_if_empty(book)

    async def _begin(self, book: StreamBook, lease_ms: int) -> tuple[EpochRecord, int]:
        history = await self._operations.history(book.scope, book.stream)
        state = await history.state()
        if state.state in (StreamState.SEALING, StreamState.SEALED):
            raise StreamSealedError(book.scope, book.stream)
        epoch = await history.epoch(state.current_epoch)
        reserved = await self._reservations.take(book, epoch=epoch.epoch, lease_ms=lease_ms)
        transaction_id, record = reserved or (
            self._ids.take(epoch=epoch.epoch),
            TransactionRecord(
                state=TransactionState.OPEN,
                lease_ms=lease_ms,
                created_ms=self._wall_clock.now_ms(),
            ),
        )
        name = book.name(transaction_id)
        try:
            if reserved is None:
                await self._table.add(name, record)
            else:
                await self._decisions.prove_lease(lease_ms)
            await self._segments.create(
                [
                    transaction_segment(history.segment_name(parent.segment_id), transaction_id)
                    for parent in epoch.segments
                ]
            )
        finally:
            # Also if it failed, or its caller left: what exists of it ends with the lease.
            self._book.place(name, record)
            self._decisions.grant(name, lease_ms)
        return epoch, transaction_id
