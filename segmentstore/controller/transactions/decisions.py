"""Aborts transactions whose lease has run out (`end_leases`), and decides all others once: commit or abort.

Here stand the leases of all open transactions. A call that comes too late is told how the transaction was decided.

Invariants:

- A decision is durable before it is told, and the first one stands.
- The number of a commit is taken in the same stretch as the call: that is what "in the order of the calls" means.
- While a decision is being written the transaction is DECIDING; another caller that decides it waits for the outcome.
- A decision whose outcome is unknown is looked up again before any task touches the transaction.
- A caller is told that a transaction is open only while nothing is decided. Silence ends none that has a lease.
- A lease runs by the loop's clock, which neither jumps nor stands still while the process runs. A controller
  that starts grants every open transaction the longest lease that a ping may have asked for: pings are in memory only,
  and it cannot know which owners tried to ping in between.
- An owner that renews decides anew how long its lease is, also shorter than before.
"""

import asyncio
import dataclasses
import heapq
import logging
from collections.abc import Sequence
from typing import Generic, TypeVar

from segmentstore.codec.controller_records.transaction_records import (
    NO_TIMESTAMP,
    TransactionRecord,
    TransactionState,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.errors import MetadataConflictError
from segmentstore.controller.settings import TransactionSettings
from segmentstore.controller.transactions.completion import TransactionCompleter
from segmentstore.controller.transactions.transaction_states import (
    Phase,
    StreamTransactions,
    TransactionStates,
)
from segmentstore.controller.transactions.transaction_table import TransactionName, TransactionTable
from segmentstore.runtime.waiting import gather_all

_LOG = logging.getLogger(__name__)

Name = TypeVar("Name")


class Decisions:
    """Decides transactions, and keeps the leases of those that are not decided."""

    def __init__(
        self,
        *,
        states: TransactionStates,
        table: TransactionTable,
        completer: TransactionCompleter,
        settings: TransactionSettings,
    ) -> None:
        self._states = states
        self._table = table
        self._completer = completer
        self._settings = settings
        self._leases: Leases[TransactionName] = Leases()
        self._begun_at: dict[TransactionName, float] = {}
        self._lease_granted = asyncio.Event()

    async def decide(
        self,
        name: TransactionName,
        wanted: TransactionState,
        *,
        writer: str = "",
        timestamp: int = NO_TIMESTAMP,
        unless_leased: bool = False,
    ) -> TransactionState | None:
        """The state that the transaction is in now, which is `wanted` if it was open; None if it is not known.

        With `unless_leased` one that has a lease stays open.
        """
        states = self._states.stream(name.scope, name.stream)
        transaction_id = name.transaction_id
        while True:
            record = await self._settled(states, transaction_id)
            if record is None or record.state is not TransactionState.OPEN:
                return record.state if record is not None else None
            if unless_leased and name in self._leases:
                return record.state
            number = states.begin_decision(transaction_id)
            decided = dataclasses.replace(record, state=wanted)
            if wanted is TransactionState.COMMITTING:
                decided = dataclasses.replace(
                    decided, commit_number=number, writer=writer, timestamp=timestamp
                )
            try:
                await self._write(states, name, record, decided)
            except MetadataConflictError:
                await self._completer.adopt(states, transaction_id)

    async def settled(self, name: TransactionName) -> TransactionRecord | None:
        """The record, when no decision of the transaction is under way or unknown; None if it is not known.

        True until the caller waits for something. Raises RetryLaterError, and what reading a table does.
        """
        return await self._settled(
            self._states.stream(name.scope, name.stream), name.transaction_id
        )

    async def abort_quietly(
        self, names: Sequence[TransactionName], *, unless_leased: bool = False
    ) -> None:
        """Abort those that are open, side by side; tried again after a while if the store cannot now."""
        for start in range(0, len(names), self._settings.aborts_at_once_max):
            some = names[start : start + self._settings.aborts_at_once_max]
            await gather_all(
                self._abort_quietly(name, unless_leased=unless_leased) for name in some
            )

    async def _abort_quietly(self, name: TransactionName, *, unless_leased: bool) -> None:
        try:
            await self.decide(name, TransactionState.ABORTING, unless_leased=unless_leased)
        except SegmentStoreError as error:
            _LOG.warning("transaction=%s abort is tried again: %s", name, error)
            self.grant(name, int(self._settings.retry_seconds_max * 1000))

    def grant(self, name: TransactionName, lease_ms: int) -> None:
        """The transaction stays open for so long, unless it is decided before or another grant adds to it."""
        now = asyncio.get_running_loop().time()
        self._begun_at.setdefault(name, now)
        self._leases.grant(name, deadline=now + lease_ms / 1000)
        self._lease_granted.set()

    async def prove_lease(self, lease_ms: int) -> None:
        """Returns once no other controller ends what is open here before a lease that was granted just now is over.

        One that takes over behind the last proof grants the longest lease from then on. Raises as OwnershipProof.wait.
        """
        spare_seconds = (self._settings.lease_ms_max - lease_ms) / 1000
        await self._table.prove_since(asyncio.get_running_loop().time() - spare_seconds)

    def end_lease(self, name: TransactionName) -> None:
        """The transaction is decided."""
        self._leases.end(name)
        self._begun_at.pop(name, None)

    def clear(self) -> None:
        """Forget all leases, to grant them anew."""
        self._leases = Leases()
        self._begun_at.clear()

    def age_seconds(self, name: TransactionName) -> float:
        """Since the transaction began, or since this controller started."""
        now = asyncio.get_running_loop().time()
        return now - self._begun_at.get(name, now)

    async def end_leases(self) -> None:
        """Abort what is not heard of for too long, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._lease_granted.clear()
            expired: list[TransactionName] = []
            for name in self._leases.take_expired(loop.time()):
                states = self._states.known(name.scope, name.stream)
                if states is not None and states.is_open(name.transaction_id):
                    _LOG.info("transaction=%s lease ran out", name)
                    expired.append(name)
                else:
                    self._begun_at.pop(name, None)
            # A ping may come before their turn does.
            await self.abort_quietly(expired, unless_leased=True)
            deadline = self._leases.next_deadline()
            if deadline is None:
                await self._lease_granted.wait()
            elif deadline > loop.time():
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._lease_granted.wait()
                except TimeoutError:
                    continue

    def check(self) -> None:
        """Every open transaction has a lease; O(n)."""
        self._leases.check()
        for states in self._states.all():
            for transaction_id in states.open_ids():
                name = states.name(transaction_id)
                assert name in self._begun_at, f"an open transaction without a lease name={name}"

    async def _settled(
        self, states: StreamTransactions, transaction_id: int
    ) -> TransactionRecord | None:
        while True:
            record = states.find(transaction_id)
            if record is None or record.state is not TransactionState.OPEN:
                self._states.drop_if_empty(states)
                return record
            phase = states.phase(transaction_id)
            if phase is Phase.DECIDING:
                await self._states.wait_for_change()
            elif phase is Phase.UNKNOWN:
                await self._completer.adopt(states, transaction_id)
            else:
                return record

    async def _write(
        self,
        states: StreamTransactions,
        name: TransactionName,
        record: TransactionRecord,
        decided: TransactionRecord,
    ) -> None:
        try:
            await self._table.replace({name: (record, decided)})
        except BaseException:
            # Also for a caller that left: the table may still get to it; and after a conflict it has something else.
            states.mark_unknown(name.transaction_id)
            self._completer.wake(states)
            self._states.changed()
            raise
        self.end_lease(name)
        self._states.follow_table(name, decided)
        self._completer.wake(states)


class Leases(Generic[Name]):
    """When each lease runs out, in loop time. Renewing is O(log n): the old deadline is skipped when its time comes."""

    def __init__(self) -> None:
        self._deadlines: dict[Name, tuple[float, int]] = {}
        self._queue: list[tuple[float, int, Name]] = []
        self._births = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: Name) -> bool:
        return name in self._deadlines

    def grant(self, name: Name, *, deadline: float) -> None:
        """Grant or renew."""
        self._births += 1
        self._deadlines[name] = (deadline, self._births)
        heapq.heappush(self._queue, (deadline, self._births, name))
        if len(self._queue) > 2 * len(self._deadlines) + 16:
            self._rebuild()

    def end(self, name: Name) -> None:
        """The owner needs it no more; ending twice is fine."""
        self._deadlines.pop(name, None)

    def next_deadline(self) -> float | None:
        """When the first lease runs out; None without leases."""
        self._skip_stale()
        return self._queue[0][0] if self._queue else None

    def take_expired(self, now: float) -> list[Name]:
        """Names whose lease ran out, earliest first; their leases are ended."""
        expired: list[Name] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, name = heapq.heappop(self._queue)
            del self._deadlines[name]
            expired.append(name)
        return expired

    def check(self) -> None:
        """Every lease is in the queue under its present deadline; O(n)."""
        queued = {(deadline, birth): name for deadline, birth, name in self._queue}
        for name, place in self._deadlines.items():
            assert queued.get(place) == name, f"lease is not queued name={name!r} place={place}"

    def _skip_stale(self) -> None:
        while self._queue and self._deadlines.get(self._queue[0][2]) != self._queue[0][:2]:
            heapq.heappop(self._queue)

    def _rebuild(self) -> None:
        self._queue = [(*place, name) for name, place in self._deadlines.items()]
        heapq.heapify(self._queue)
