"""Forgets what is finished: transactions, and fences that need not last; and what was reserved in vain.

Invariants:

- A finished transaction is remembered for `completed_seconds`, counted from the controller's start at least, unless its
  stream has more than `completed_per_stream_max` of them; and never forgotten before its segments have forgotten it.
- A lasting fence goes with its stream and not before.
"""

import asyncio
import logging
from collections.abc import Sequence

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.transactions.finisher import Finisher
from segmentstore.controller.transactions.reservations import Reservations
from segmentstore.controller.transactions.settings import TransactionSettings
from segmentstore.controller.transactions.transaction_book import StreamBook, TransactionBook
from segmentstore.controller.transactions.transaction_table import FenceName, TransactionTable

_LOG = logging.getLogger(__name__)


class Forgetting:
    """Passes over all streams, and what a deleted stream asks for."""

    def __init__(
        self,
        *,
        book: TransactionBook,
        table: TransactionTable,
        finisher: Finisher,
        reservations: Reservations,
        settings: TransactionSettings,
    ) -> None:
        self._book = book
        self._table = table
        self._finisher = finisher
        self._reservations = reservations
        self._settings = settings

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._settings.completed_sweep_seconds)
            await self.forget_old()

    async def forget_old(self) -> None:
        """Forget what is finished and too old, or too many."""
        for book in self._book.all():
            try:
                await self._finisher.drop(book, self._old_transactions(book))
                await self.forget_reserved(book, self._reservations.unwanted(book))
                for application_id in self._old_fences(book):
                    await self.forget_fence(book, application_id)
            except SegmentStoreError as error:
                _LOG.info("finished transactions are kept for now: %s", error)
            self._book.drop_if_empty(book)

    async def forget_reserved(self, book: StreamBook, transaction_ids: Sequence[int]) -> None:
        """Remove what was given back; what cannot be removed now stays given back."""
        if transaction_ids:
            await self._table.remove([book.name(each) for each in transaction_ids])
            for transaction_id in transaction_ids:
                book.given_back.pop(transaction_id, None)

    async def forget_fence(self, book: StreamBook, application_id: str) -> None:
        """Commits of the application are known no more."""
        book.fences_moving.add(application_id)
        try:
            await self._table.remove_fence(FenceName(book.scope, book.stream, application_id))
            book.fences.pop(application_id, None)
        finally:
            book.fences_moving.discard(application_id)
            self._book.changed()

    def _old_transactions(self, book: StreamBook) -> list[int]:
        now = asyncio.get_running_loop().time()
        excess = len(book.completed) - self._settings.completed_per_stream_max
        return [
            transaction_id
            for place, (transaction_id, completed) in enumerate(book.completed.items())
            if transaction_id not in book.unforgotten
            and (place < excess or completed.since + self._settings.completed_seconds <= now)
        ]

    def _old_fences(self, book: StreamBook) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [
            application_id
            for application_id, since in book.fences.items()
            if since is not None
            and since + self._settings.completed_seconds <= now
            and application_id not in book.fences_moving
        ]
