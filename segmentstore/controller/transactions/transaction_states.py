"""What a controller knows of the transactions of its streams, in memory.

Where a transaction stands is its phase:

| phase | what is true of it | next |
|---|---|---|
| RESERVED | open in the table, and no caller has begun it | RETURNED, or gone: a begin takes it and makes it OPEN |
| RETURNED | no caller shall have it; it may be in the table | gone |
| OPEN | takes events until it is decided or its lease ends | DECIDING |
| DECIDING | a decision is being written, under the number of its call | JOINING, COMMITTING, STAGE, ABORTING, UNKNOWN |
| UNKNOWN | a change was sent, or was refused: the table has to be read | whatever the table says |
| JOINING | committing, and its stages are still to be moved into its segments | COMMITTING, ABORTED |
| STAGE | committed together with the transaction that it joins | gone, ABORTED |
| COMMITTING | to be merged | MERGED, ABORTED |
| ABORTING | its segments are to be deleted | ABORTED |
| MERGED | committed, and the segments that took it in still remember it | COMMITTED |
| COMMITTED, ABORTED | finished; remembered for a while | gone |

Any of them may be gone because its stream is, and any that is not finished may become UNKNOWN.

Invariants:

- A transaction has one phase, and leaves it only as the table above says (`_move_to` asserts that).
- Commits are handed out in the order of their numbers, which is that of the calls. One that is DECIDING holds back all
  that were called after it.
- Records are those that were read from the table or written to it; the table decides, and `follow_table` follows it. It
  is the only way out of UNKNOWN. What was read before a task wrote, or learnt, something newer is not followed.
"""

import asyncio
import math
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from segmentstore.codec.controller_records.transaction_records import (
    CommitFenceRecord,
    TransactionRecord,
    TransactionState,
)
from segmentstore.controller.transactions.transaction_table import FenceName, TransactionName


class Phase(Enum):
    """Where a transaction stands; in memory only."""

    RESERVED = "reserved"
    RETURNED = "returned"
    OPEN = "open"
    DECIDING = "deciding"
    UNKNOWN = "unknown"
    JOINING = "joining"
    STAGE = "stage"
    COMMITTING = "committing"
    ABORTING = "aborting"
    MERGED = "merged"
    COMMITTED = "committed"
    ABORTED = "aborted"


_FINISHED: Final = frozenset({Phase.MERGED, Phase.COMMITTED, Phase.ABORTED})
UNFINISHED: Final = (
    Phase.OPEN,
    Phase.DECIDING,
    Phase.UNKNOWN,
    Phase.JOINING,
    Phase.STAGE,
    Phase.COMMITTING,
    Phase.ABORTING,
)
_AHEAD: Final = frozenset({Phase.RESERVED, Phase.RETURNED})
"""No caller has begun these."""
_MOVES: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.RESERVED: frozenset({Phase.RETURNED}),
    Phase.RETURNED: frozenset(),
    Phase.OPEN: frozenset({Phase.DECIDING, Phase.UNKNOWN}),
    Phase.DECIDING: frozenset(
        {Phase.JOINING, Phase.COMMITTING, Phase.STAGE, Phase.ABORTING, Phase.UNKNOWN}
    ),
    Phase.UNKNOWN: frozenset(Phase) - _AHEAD - {Phase.DECIDING},
    Phase.JOINING: frozenset({Phase.COMMITTING, Phase.ABORTED, Phase.UNKNOWN}),
    Phase.STAGE: frozenset({Phase.ABORTED, Phase.UNKNOWN}),
    Phase.COMMITTING: frozenset({Phase.MERGED, Phase.ABORTED, Phase.UNKNOWN}),
    Phase.ABORTING: frozenset({Phase.ABORTED, Phase.UNKNOWN}),
    Phase.MERGED: frozenset({Phase.COMMITTED}),
    Phase.COMMITTED: frozenset(),
    Phase.ABORTED: frozenset(),
}
"""Besides: every phase may be kept with another record, and be left for good."""


@dataclass(slots=True)
class Transaction:
    """One transaction."""

    phase: Phase
    record: TransactionRecord | None
    """As last read or written; None if it was neither."""
    commit_number: int = 0
    """While DECIDING: that of the call."""
    since: float = 0.0
    """Loop time at which it was reserved, or from which on it is remembered."""
    change: int = 0
    """Which of all changes of its stream's transactions was its last one."""


@dataclass(slots=True)
class CommitFences:
    """What applications committed last to one stream."""

    known: dict[str, float | None] = field(default_factory=dict)
    """Applications with a fence -> loop time from which on it is remembered, None until the stream is deleted."""
    moving: set[str] = field(default_factory=set)
    """Applications whose fence is being written."""


class StreamTransactions:
    """The transactions of one stream."""

    def __init__(self, scope: str, stream: str) -> None:
        self.scope = scope
        self.stream = stream
        self.fences = CommitFences()
        self.forget_now = False
        """It is time to let the segments forget what is MERGED."""
        self.begins_often = False
        """The last transaction began soon behind the one before it."""
        self.last_begin = -math.inf
        """Loop time."""
        self.begun_count = 0
        """Transactions being created right now."""
        self.closed_count = 0
        """How many want no further transactions to begin."""
        self.last_commit_number = 0
        self._change_count = self._removal_count = 0
        self._by_id: dict[int, Transaction] = {}
        self._ids: dict[Phase, dict[int, None]] = {phase: {} for phase in Phase}
        """Those of each phase, in the order in which they came to it."""
        self._finished: dict[int, None] = {}
        """The finished ones, in the order in which they were."""

    @property
    def unfinished_count(self) -> int:
        """Transactions that were begun and are not finished, or are being begun."""
        return sum(len(self._ids[phase]) for phase in UNFINISHED) + self.begun_count

    @property
    def has_work(self) -> bool:
        """Whether something can be finished or found out now."""
        return bool(
            self.has(Phase.ABORTING, Phase.UNKNOWN)
            or (self.forget_now and self.has(Phase.MERGED))
            or self.next_commits(count=1)
        )

    @property
    def is_settled(self) -> bool:
        """Whether no transaction is unfinished, nor its outcome unknown."""
        return not (self.unfinished_count or self.fences.moving)

    @property
    def is_empty(self) -> bool:
        return not (
            self._by_id
            or self.begun_count
            or self.closed_count
            or self.fences.known
            or self.fences.moving
        )

    def __repr__(self) -> str:
        return f"StreamTransactions({self.scope}/{self.stream} {self._by_id})"

    def name(self, transaction_id: int) -> TransactionName:
        return TransactionName(self.scope, self.stream, transaction_id)

    def find(self, transaction_id: int) -> TransactionRecord | None:
        """The record of one that was begun; None if there is none."""
        known = self._by_id.get(transaction_id)
        return None if known is None or known.phase in _AHEAD else known.record

    def record(self, transaction_id: int) -> TransactionRecord:
        """The same of one that has to be there."""
        record = self.find(transaction_id)
        assert record is not None, f"not known {self.name(transaction_id)}"
        return record

    def phase(self, transaction_id: int) -> Phase | None:
        """None if it is not known."""
        known = self._by_id.get(transaction_id)
        return None if known is None else known.phase

    def last_change(self, transaction_id: int) -> int:
        """Another number once anything is known anew of it. One that is not known may have been, and have gone."""
        known = self._by_id.get(transaction_id)
        return -self._removal_count if known is None else known.change

    def has(self, *phases: Phase) -> bool:
        """Whether a transaction is in one of them."""
        return any(self._ids[phase] for phase in phases)

    def ids(self, *phases: Phase) -> list[int]:
        """The transactions in these phases, phase by phase."""
        return [each for phase in phases for each in self._ids[phase]]

    def records(self, *phases: Phase) -> dict[int, TransactionRecord]:
        """The same with their records, as far as they have one."""
        return {
            each: record
            for each in self.ids(*phases)
            if (record := self._by_id[each].record) is not None
        }

    def is_open(self, transaction_id: int) -> bool:
        """Whether nothing says that it is decided; it may be about to be."""
        record = self.find(transaction_id)
        return record is not None and record.state is TransactionState.OPEN

    def open_ids(self) -> list[int]:
        """All of which `is_open` is true."""
        phases = (Phase.OPEN, Phase.DECIDING, Phase.UNKNOWN)
        return [each for each in self.ids(*phases) if self.is_open(each)]

    def finished(self) -> list[tuple[int, Transaction]]:
        """The finished ones that are remembered, oldest first."""
        return [(each, self._by_id[each]) for each in self._finished]

    def follow_table(
        self, transaction_id: int, record: TransactionRecord | None, *, now: float
    ) -> bool:
        """The table holds this record (None: it holds none); whether that makes it a newly committed one."""
        known = self._by_id.get(transaction_id)
        if record is None:
            self._remove(transaction_id)
            return False
        self.last_commit_number = max(self.last_commit_number, record.commit_number)
        phase = _phase_of(record)
        if known is None:
            known = self._add(transaction_id, Transaction(phase, record))
        elif phase is Phase.MERGED and known.phase is Phase.COMMITTED:
            phase = Phase.COMMITTED
        was_finished = transaction_id in self._finished
        known.record = record
        self._count_change(known)
        if known.phase not in (phase, Phase.UNKNOWN) and phase not in _MOVES[known.phase]:
            # Another process changed it, or an earlier attempt of ours: what was believed does not count.
            self._move_to(transaction_id, Phase.UNKNOWN)
        self._move_to(transaction_id, phase)
        if phase in _FINISHED and not was_finished:
            self._finished[transaction_id] = None
            known.since = now
        return phase is Phase.MERGED and not was_finished

    def begin_decision(self, transaction_id: int, *, number: int | None = None) -> int:
        """A decision of the transaction is being written, under this number or the next one; the number."""
        if number is None:
            self.last_commit_number += 1
            number = self.last_commit_number
        known = self._by_id.get(transaction_id)
        if known is None:
            known = self._add(transaction_id, Transaction(Phase.DECIDING, None))
        self._move_to(transaction_id, Phase.DECIDING)
        known.commit_number = number
        return number

    def mark_unknown(self, transaction_id: int) -> None:
        """A change of the transaction was sent and its outcome is unknown, or the table has something else."""
        if transaction_id not in self._by_id:
            self._add(transaction_id, Transaction(Phase.UNKNOWN, None))
        elif transaction_id not in self._finished:
            self._move_to(transaction_id, Phase.UNKNOWN)

    def mark_forgotten(self, transaction_ids: Sequence[int]) -> None:
        """No segment remembers these any more. Those that are gone meanwhile are passed over."""
        for transaction_id in transaction_ids:
            if self.phase(transaction_id) is Phase.MERGED:
                self._move_to(transaction_id, Phase.COMMITTED)

    def reserve(
        self, transaction_ids: Sequence[int], record: TransactionRecord, *, now: float
    ) -> None:
        """They were written to the table for the transactions that begin next."""
        for transaction_id in transaction_ids:
            self._add(transaction_id, Transaction(Phase.RESERVED, record, since=now))

    def take_reserved(self) -> tuple[int, TransactionRecord] | None:
        """The newest one, for a transaction that begins; it is not known any more. None if there is none."""
        if not self._ids[Phase.RESERVED]:
            return None
        transaction_id = next(reversed(self._ids[Phase.RESERVED]))
        record = self._by_id[transaction_id].record
        assert record is not None, f"reserved without a record transaction={transaction_id:032x}"
        self._remove(transaction_id)
        return transaction_id, record

    def give_back(self, transaction_id: int) -> None:
        """No caller shall have it, and it may be in the table."""
        if transaction_id not in self._by_id:
            self._add(transaction_id, Transaction(Phase.RETURNED, None))
        self._move_to(transaction_id, Phase.RETURNED)

    def give_back_reserved(self, *, before: float = math.inf) -> list[int]:
        """Those that were reserved until then as well; all that were given back."""
        for transaction_id in self.ids(Phase.RESERVED):
            if self._by_id[transaction_id].since <= before:
                self._move_to(transaction_id, Phase.RETURNED)
        return self.ids(Phase.RETURNED)

    def removed(self, transaction_ids: Sequence[int]) -> None:
        """The table has these no more, which were given back."""
        for transaction_id in transaction_ids:
            assert self.phase(transaction_id) in (None, Phase.RETURNED), f"{transaction_id:032x}"
            self._remove(transaction_id)

    def next_commits(self, *, count: int) -> list[tuple[int, TransactionRecord]]:
        """Up to `count` commits that may be done now, first one first. O(n log n)."""
        deciding = self._ids[Phase.DECIDING]
        barrier = min((self._by_id[each].commit_number for each in deciding), default=math.inf)
        records = self.records(Phase.JOINING, Phase.COMMITTING)
        due = sorted(
            (record.commit_number, transaction_id)
            for transaction_id, record in records.items()
            if record.commit_number < barrier
        )
        return [(each, records[each]) for _, each in due[:count]]

    def check(self) -> None:
        """Phases, records and lists fit each other; O(n)."""
        listed = [each for phase in Phase for each in self._ids[phase]]
        assert sorted(listed) == sorted(self._by_id), "a transaction is not in one phase"
        for transaction_id, known in self._by_id.items():
            assert transaction_id in self._ids[known.phase], f"in another phase {known}"
            if known.phase not in (Phase.DECIDING, Phase.UNKNOWN, *_AHEAD):
                assert known.record is not None, f"without a record {known}"
                expected = _phase_of(known.record)
                if known.phase is Phase.COMMITTED:
                    expected = Phase.COMMITTED
                assert expected is known.phase, f"in the wrong phase {known}"
        assert sorted(self._finished) == sorted(self.ids(*_FINISHED)), "finished and not listed"
        numbers = [record.commit_number for _, record in self.next_commits(count=len(listed))]
        assert len(set(numbers)) == len(numbers), f"two commits with one number {numbers}"
        assert max(numbers, default=0) <= self.last_commit_number, f"numbers run ahead {numbers}"
        joining = self.records(Phase.JOINING).values()
        stages = sorted(stage for record in joining for stage in record.stages)
        assert self.has(Phase.UNKNOWN) or stages == sorted(self.ids(Phase.STAGE)), (
            f"stages without their transaction {self}"
        )

    def _add(self, transaction_id: int, transaction: Transaction) -> Transaction:
        assert transaction_id not in self._by_id, f"known already {transaction_id:032x}"
        self._by_id[transaction_id] = transaction
        self._ids[transaction.phase][transaction_id] = None
        self._count_change(transaction)
        return transaction

    def _move_to(self, transaction_id: int, phase: Phase) -> None:
        known = self._by_id[transaction_id]
        if known.phase is phase:
            return
        assert phase in _MOVES[known.phase], (
            f"no way to {phase.name} transaction={transaction_id:032x} {known}"
        )
        del self._ids[known.phase][transaction_id]
        self._ids[phase][transaction_id] = None
        known.phase = phase
        self._count_change(known)

    def _count_change(self, transaction: Transaction) -> None:
        self._change_count += 1
        transaction.change = self._change_count

    def _remove(self, transaction_id: int) -> None:
        known = self._by_id.pop(transaction_id, None)
        if known is not None:
            self._removal_count += 1
            del self._ids[known.phase][transaction_id]
            self._finished.pop(transaction_id, None)


def _phase_of(record: TransactionRecord) -> Phase:
    match record.state:
        case TransactionState.OPEN:
            return Phase.OPEN
        case TransactionState.COMMITTING if record.joins is not None:
            return Phase.STAGE
        case TransactionState.COMMITTING:
            return Phase.JOINING if record.stages else Phase.COMMITTING
        case TransactionState.ABORTING:
            return Phase.ABORTING
        case TransactionState.COMMITTED:
            return Phase.MERGED
        case TransactionState.ABORTED:
            return Phase.ABORTED


OnCommit = Callable[[str, str, TransactionRecord], None]
"""Told of a transaction of a stream (scope, name) once its commit is recorded; only keeps that in memory."""


class TransactionStates:
    """All streams that have transactions."""

    def __init__(self, *, on_commit: OnCommit) -> None:
        self._on_commit = on_commit
        self._streams: dict[tuple[str, str], StreamTransactions] = {}
        self._watchers: list[Future[None]] = []
        self.is_loaded = False
        """All of the table has been read; before that nothing here may be believed."""

    def load(self, name: TransactionName, record: TransactionRecord) -> None:
        """The table held this record at the start. Its commit was told of in an earlier run."""
        now = asyncio.get_running_loop().time()
        self.stream(name.scope, name.stream).follow_table(name.transaction_id, record, now=now)
        self.changed()

    def follow_table(self, name: TransactionName, record: TransactionRecord | None) -> None:
        """The table holds this record of a transaction, or none."""
        stream = self.stream(name.scope, name.stream)
        now = asyncio.get_running_loop().time()
        newly = stream.follow_table(name.transaction_id, record, now=now)
        if newly and record is not None:
            self._on_commit(name.scope, name.stream, record)
        self.changed()

    def follow_fence(self, name: FenceName, record: CommitFenceRecord) -> None:
        """The table holds this fence."""
        since = None if record.is_lasting else asyncio.get_running_loop().time()
        self.stream(name.scope, name.stream).fences.known[name.application_id] = since

    def changed(self) -> None:
        """Let the tasks look again that wait for a change."""
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def wait_for_change(self) -> None:
        """Until something here is another. Look right before, with no await in between."""
        watcher: Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        try:
            await watcher
        finally:
            self._watchers.remove(watcher)

    def clear(self) -> None:
        """Forget everything, to read the table again."""
        self._streams.clear()
        self.changed()

    def stream(self, scope: str, stream: str) -> StreamTransactions:
        """Those of a stream; none if it has none yet."""
        key = (scope, stream)
        if key not in self._streams:
            self._streams[key] = StreamTransactions(scope, stream)
        return self._streams[key]

    def known(self, scope: str, stream: str) -> StreamTransactions | None:
        """Those of a stream if it has any."""
        return self._streams.get((scope, stream))

    def all(self) -> list[StreamTransactions]:
        """Every stream that has any, in the order in which they came."""
        return list(self._streams.values())

    def drop_if_empty(self, stream: StreamTransactions) -> None:
        """A stream without transactions takes no memory. These very ones go, not those of a stream created again."""
        if stream.is_empty and self.known(stream.scope, stream.stream) is stream:
            self._streams.pop((stream.scope, stream.stream), None)

    def check(self) -> None:
        for stream in self._streams.values():
            stream.check()
