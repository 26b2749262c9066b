"""What a controller knows of the transactions of its streams, in memory.

Invariants:

- A transaction stands in exactly one of: open, committing, joined, aborting, completed; before it begins, in reserved.
- Commits are handed out in the order of their numbers, which is that of the calls. One whose record is still on its
  way into the table (announced) holds back all that were called after it.
- What is in the book was read from the table or written to it; the table decides, and `place` follows it.
"""

import asyncio
import math
from asyncio import Future
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from segmentstore.codec.controller_records.transaction_records import (
    NO_TIMESTAMP,
    CommitFenceRecord,
    TransactionRecord,
    TransactionState,
)
from segmentstore.controller.transactions.transaction_table import FenceName, TransactionName
from segmentstore.controller.writer_marks import NotedTimes


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished transaction."""

    record: TransactionRecord
    since: float
    """Loop time from which on it is remembered."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """An open transaction that is in the table, and that nobody has begun."""

    record: TransactionRecord
    since: float
    """Loop time at which it was written."""


@dataclass(slots=True)
class StreamTransactions:
    """The transactions of one stream."""

    scope: str
    stream: str
    open: dict[int, TransactionRecord] = field(default_factory=dict)
    committing: dict[int, TransactionRecord] = field(default_factory=dict)
    joined: dict[int, TransactionRecord] = field(default_factory=dict)
    """Stages of a transaction that is committing: they are committed with it."""
    aborting: dict[int, TransactionRecord] = field(default_factory=dict)
    completed: OrderedDict[int, Completed] = field(default_factory=OrderedDict)
    announced: dict[int, int] = field(default_factory=dict)
    """Transaction -> number of a commit that is being written."""
    doubtful: dict[int, None] = field(default_factory=dict)
    """Transactions whose last change may or may not have reached the table."""
    unforgotten: dict[int, TransactionRecord] = field(default_factory=dict)
    """Committed ones that the segments they were merged into still remember."""
    forgets: bool = False
    """It is time to let the segments forget them."""
    fences: dict[str, float | None] = field(default_factory=dict)
    """Applications with a fence -> loop time from which on it is remembered, None for as long as the stream lives."""
    fences_moving: set[str] = field(default_factory=set)
    """Applications whose fence is being written."""
    reserved: dict[int, Reserved] = field(default_factory=dict)
    """For the transactions that begin next."""
    given_back: dict[int, None] = field(default_factory=dict)
    """Reserved ones that nobody shall have; they may be in the table."""
    begins_often: bool = False
    """The last transaction began soon behind the one before it."""
    last_begin: float = -math.inf
    """Loop time."""
    begun_count: int = 0
    """Transactions being created right now."""
    closed_count: int = 0
    """How many want no further transactions to begin."""
    last_commit_number: int = 0

    @property
    def unfinished_count(self) -> int:
        groups = (self.open, self.committing, self.joined, self.aborting)
        return sum(map(len, groups)) + self.begun_count

    @property
    def has_work(self) -> bool:
        """Whether something can be finished or found out now."""
        return bool(
            self.aborting
            or self.doubtful
            or (self.unforgotten and self.forgets)
            or self.next_commits(count=1)
        )

    @property
    def is_settled(self) -> bool:
        """Whether no transaction is unfinished, nor its outcome unknown."""
        return not (self.unfinished_count or self.announced or self.doubtful or self.fences_moving)

    @property
    def is_empty(self) -> bool:
        return not (
            self.unfinished_count
            or self.completed
            or self.announced
            or self.doubtful
            or self.unforgotten
            or self.fences
            or self.fences_moving
            or self.closed_count
            or self.reserved
            or self.given_back
        )

    def name(self, transaction_id: int) -> TransactionName:
        return TransactionName(self.scope, self.stream, transaction_id)

    def find(self, transaction_id: int) -> TransactionRecord | None:
        """The record, whatever its state; None if the book does not have it."""
        for group in (self.open, self.committing, self.joined, self.aborting):
            if transaction_id in group:
                return group[transaction_id]
        completed = self.completed.get(transaction_id)
        return completed.record if completed is not None else None

    def place(self, transaction_id: int, record: TransactionRecord | None, *, now: float) -> bool:
        """The table holds this record (None: it holds none); whether that makes it a newly committed one."""
        known = self.completed.pop(transaction_id, None)
        for group in (self.open, self.committing, self.joined, self.aborting):
            group.pop(transaction_id, None)
        self.announced.pop(transaction_id, None)
        self.doubtful.pop(transaction_id, None)
        if record is None:
            self.unforgotten.pop(transaction_id, None)
            return False
        self.last_commit_number = max(self.last_commit_number, record.commit_number)
        match record.state:
            case TransactionState.OPEN:
                self.open[transaction_id] = record
            case TransactionState.COMMITTING if record.joins is not None:
                self.joined[transaction_id] = record
            case TransactionState.COMMITTING:
                self.committing[transaction_id] = record
            case TransactionState.ABORTING:
                self.aborting[transaction_id] = record
            case TransactionState.COMMITTED | TransactionState.ABORTED:
                since = known.since if known is not None else now
                self.completed[transaction_id] = Completed(record, since)
        newly = known is None and record.state is TransactionState.COMMITTED
        if newly:
            self.unforgotten[transaction_id] = record
        return newly

    def announce_commit(self, transaction_id: int) -> int:
        """The number of a commit that is called now."""
        self.last_commit_number += 1
        self.announced[transaction_id] = self.last_commit_number
        return self.last_commit_number

    def doubt(self, transaction_id: int) -> None:
        """A change of the transaction was sent and its outcome is unknown."""
        self.doubtful[transaction_id] = None

    def next_commits(self, *, count: int) -> list[tuple[int, TransactionRecord]]:
        """Up to `count` commits that may be done now, first one first. O(n log n)."""
        barrier = min(self.announced.values(), default=None)
        due = sorted(
            (record.commit_number, transaction_id)
            for transaction_id, record in self.committing.items()
            if barrier is None or record.commit_number < barrier
        )
        return [(each, self.committing[each]) for _, each in due[:count]]

    def check(self) -> None:
        """Every transaction stands in one group, in the state of the group; O(n)."""
        groups: Sequence[tuple[TransactionState, dict[int, TransactionRecord]]] = (
            (TransactionState.OPEN, self.open),
            (TransactionState.COMMITTING, self.committing),
            (TransactionState.COMMITTING, self.joined),
            (TransactionState.ABORTING, self.aborting),
        )
        seen: set[int] = set(self.completed)
        for state, group in groups:
            assert not seen & group.keys(), f"a transaction stands in two groups state={state.name}"
            seen |= group.keys()
            for record in group.values():
                assert record.state is state, f"wrong group state={state.name} record={record}"
        assert not seen & self.reserved.keys(), f"somebody has what is reserved {self.reserved}"
        assert not self.given_back.keys() & (seen | self.reserved.keys()), "given back and in use"
        numbers = [record.commit_number for record in self.committing.values()]
        assert len(set(numbers)) == len(numbers), f"two commits with one number {sorted(numbers)}"
        assert max(numbers, default=0) <= self.last_commit_number, f"numbers run ahead {numbers}"
        stages = sorted(stage for record in self.committing.values() for stage in record.stages)
        assert stages == sorted(self.joined), f"stages without their transaction {self.joined}"


class TransactionStates:
    """All streams that have transactions."""

    def __init__(self, *, noted_times: NotedTimes) -> None:
        self._noted_times = noted_times
        self._streams: dict[tuple[str, str], StreamTransactions] = {}
        self._watchers: list[Future[None]] = []
        self.is_loaded = False
        """All of the table has been read; before that nothing here may be believed."""

    def load(self, name: TransactionName, record: TransactionRecord) -> None:
        """The table held this record at the start. What its writer noted was noted in an earlier life."""
        now = asyncio.get_running_loop().time()
        self.stream(name.scope, name.stream).place(name.transaction_id, record, now=now)
        self.changed()

    def place(self, name: TransactionName, record: TransactionRecord | None) -> None:
        """The table holds this record of a transaction, or none."""
        book = self.stream(name.scope, name.stream)
        newly = book.place(name.transaction_id, record, now=asyncio.get_running_loop().time())
        if newly and record is not None and record.timestamp != NO_TIMESTAMP and record.writer:
            self._noted_times.note_later(
                name.scope, name.stream, record.writer, record.timestamp, record.merged
            )
        self.changed()

    def place_fence(self, name: FenceName, record: CommitFenceRecord) -> None:
        """The table holds this fence."""
        since = None if record.is_lasting else asyncio.get_running_loop().time()
        self.stream(name.scope, name.stream).fences[name.application_id] = since

    def changed(self) -> None:
        """Let those look again who wait for a change."""
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def wait_for_change(self) -> None:
        """Until something in the book is another. Look at the book right before, with no await in between."""
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
        """The book of a stream, an empty one if it has none yet."""
        key = (scope, stream)
        if key not in self._streams:
            self._streams[key] = StreamTransactions(scope, stream)
        return self._streams[key]

    def known(self, scope: str, stream: str) -> StreamTransactions | None:
        """The book of a stream if it has one."""
        return self._streams.get((scope, stream))

    def all(self) -> list[StreamTransactions]:
        """Every book, in the order in which they were opened."""
        return list(self._streams.values())

    def drop_if_empty(self, book: StreamTransactions) -> None:
        """A stream without transactions takes no memory. This very book goes, not that of a stream created again."""
        if book.is_empty and self.known(book.scope, book.stream) is book:
            self._streams.pop((book.scope, book.stream), None)

    def check(self) -> None:
        for book in self._streams.values():
            book.check()
