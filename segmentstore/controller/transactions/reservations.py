"""Ids of transactions, and transactions that are written down before a caller begins them.

## Ids

No two transactions share an id: those of one controller differ by the counter, those of two controllers by 32 + 62
drawn bits.

    bits 96 .. 127   the stream's epoch
    bits 64 ..  95   drawn once per controller start
    bit       63     0: one of the clients reads the lower half as a signed number and would lose the epoch
    bits  0 ..  62   counter, from a drawn number on

## Reservations

A begin of a reserved transaction waits for its segments only. Where transactions begin one soon behind the other, the
batch that records a commit also holds the records of as many transactions as it finishes: open ones, with ids of their
own and without segments. A begin takes one of them.

Invariants:

- A reserved transaction is in the table before it is handed out, and is handed out once: its record is older than its
  segments, as that of any other.
- It is no different from an open transaction that no caller was told of: a controller that starts takes it for one, and
  its lease ends it.
- Its record holds the longest lease, which is what a transaction has after a start; a begin that asks for a longer one
  does not get it.
- It belongs to the epoch that was current when it was written down; once that is over it is given back.
- What is given back, or may have been written and may not, is removed by the next pass, and never handed out.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import transaction_epoch_of
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.settings import TransactionSettings
from segmentstore.controller.transactions.transaction_states import Phase, StreamTransactions
from segmentstore.controller.transactions.transaction_table import (
    TransactionChange,
    TransactionName,
    TransactionTable,
)
from segmentstore.runtime.clock import WallClock

_ID_LOW_BITS = 63
_ID_EPOCH_MAX = (1 << 31) - 1


class TransactionIds:
    """Hands out ids of transactions."""

    def __init__(self, *, random: Random) -> None:
        self._incarnation = random.getrandbits(32)
        self._next = random.getrandbits(_ID_LOW_BITS - 1)

    def take(self, *, epoch: int) -> int:
        """A new id for a transaction of the epoch. Raises InvalidRequestError if the epoch does not fit."""
        if not 0 <= epoch <= _ID_EPOCH_MAX:
            raise InvalidRequestError(f"epoch is out of range epoch={epoch}")
        low = self._next & ((1 << _ID_LOW_BITS) - 1)
        self._next += 1
        return epoch << 96 | self._incarnation << 64 | low


class Reservations:
    """Decides how many transactions are written ahead, and keeps them among the stream's states."""

    def __init__(
        self,
        *,
        table: TransactionTable,
        ids: TransactionIds,
        wall_clock: WallClock,
        settings: TransactionSettings,
    ) -> None:
        self._table = table
        self._ids = ids
        self._wall_clock = wall_clock
        self._settings = settings

    async def take(
        self, states: StreamTransactions, *, epoch: int, lease_ms: int
    ) -> tuple[int, TransactionRecord] | None:
        """One that is in the table, for a transaction that begins now; None if there is none.

        Raises what the interface of tables raises.
        """
        now = asyncio.get_running_loop().time()
        states.begins_often = now - states.last_begin <= self._settings.reserve_within_seconds
        states.last_begin = now
        if lease_ms > self._settings.lease_ms_max:
            return None
        while (reserved := states.take_reserved()) is not None:
            transaction_id, record = reserved
            if transaction_epoch_of(transaction_id) == epoch:
                # Another controller may have taken it for one whose owner is gone.
                try:
                    found = await self._table.read(states.name(transaction_id))
                except BaseException:
                    states.give_back(transaction_id)
                    raise
                if found == record:
                    return reserved
            states.give_back(transaction_id)
        return None

    @contextmanager
    def ahead(
        self, states: StreamTransactions, epoch: int, *, count: int
    ) -> Iterator[Mapping[TransactionName, TransactionChange]]:
        """Up to `count` more, to be written inside with a batch of the stream. The caller holds the stream."""
        room = self._settings.reserved_per_stream_max - len(states.ids(Phase.RESERVED))
        if not states.begins_often or states.closed_count:
            room = 0
        record = TransactionRecord(
            state=TransactionState.OPEN,
            lease_ms=self._settings.lease_ms_max,
            created_ms=self._wall_clock.now_ms(),
        )
        reserved = [self._ids.take(epoch=epoch) for _ in range(min(count, room))]
        try:
            yield {states.name(each): (None, record) for each in reserved}
        except BaseException:
            # They may be in the table all the same.
            for each in reserved:
                states.give_back(each)
            raise
        states.reserve(reserved, record, now=asyncio.get_running_loop().time())

    def unwanted(self, states: StreamTransactions) -> list[int]:
        """What is to be removed from the table now, and handed out no more."""
        now = asyncio.get_running_loop().time()
        return states.give_back_reserved(before=now - self._settings.reserved_seconds)

    def all_of(self, states: StreamTransactions) -> list[int]:
        """As `unwanted`, for a stream that goes: no transaction begins any more."""
        return states.give_back_reserved()
