"""The controller's verbs of transactions, and what a stream's sealing and deleting do to its transactions.

    create   record OPEN, or one that was written ahead; then a segment beside each segment of the epoch; the answer
    commit   record COMMITTING, then the answer; merging follows (`completion.py`)
    abort    record ABORTING, then the answer; deleting follows
    ping     a new lease, in memory only; a controller that starts grants the longest one
    lease over (`decisions.py`), or the stream is to be sealed: as abort

Invariants:

- An answer says only what is durable: after a commit was answered the transaction will be committed, whatever dies.
- Commits of one stream take effect in the order of their calls.
- A commit is never undone and an abort never becomes a commit; the later call is refused.
- A transaction's record is older than its segments: a controller that dies in between leaves a transaction whose lease
  runs out, not segments that no record names.
- A transaction that its owner was told of stays open until its lease ends, also if another controller took over and
  this one has not written since.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import EpochRecord
from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import (
    WRITER_NAME_BYTES_MAX,
    transaction_halves,
    transaction_id_of,
    transaction_segment,
)
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.controller.errors import (
    RetryLaterError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
)
from segmentstore.controller.settings import TransactionSettings
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.transactions.completion import TransactionCompleter
from segmentstore.controller.transactions.decisions import Decisions
from segmentstore.controller.transactions.reservations import Reservations, TransactionIds
from segmentstore.controller.transactions.transaction_states import (
    UNFINISHED,
    Phase,
    StreamTransactions,
    TransactionStates,
)
from segmentstore.controller.transactions.transaction_table import (
    LoadedFence,
    TransactionName,
    TransactionTable,
)
from segmentstore.runtime.clock import WallClock

_LOG = logging.getLogger(__name__)

PingStatus = api.PingTxnStatus

_ABORTED = (TransactionState.ABORTING, TransactionState.ABORTED)
_COMMITTED = (TransactionState.COMMITTING, TransactionState.COMMITTED)


@dataclass(frozen=True, slots=True)
class TransactionRepair:
    """What a repair did, by name."""

    created: Sequence[str]
    """Segments of committing transactions that were lost: they are there, and empty."""
    ended: Sequence[str]
    """Transactions that were to be committed and cannot be: their stream lacks their epoch. Streams and ids."""


class Transactions:
    """The verbs of transactions, the start, and sealing and deleting a stream."""

    def __init__(
        self,
        *,
        states: TransactionStates,
        table: TransactionTable,
        operations: StreamOperations,
        segments: StreamSegments,
        completer: TransactionCompleter,
        decisions: Decisions,
        reservations: Reservations,
        ids: TransactionIds,
        wall_clock: WallClock,
        settings: TransactionSettings,
    ) -> None:
        self._states = states
        self._table = table
        self._operations = operations
        self._segments = segments
        self._completer = completer
        self._decisions = decisions
        self._reservations = reservations
        self._ids = ids
        self._wall_clock = wall_clock
        self._settings = settings
        self._start_failure = ""

    @property
    def start_failure(self) -> str:
        """Why the transactions are not read yet; empty once they are."""
        return self._start_failure

    async def start(self) -> None:
        """Read all transactions; open ones get the longest lease that they may have had. Before streams are resumed.

        Doing it again gives up what is in memory for what the table says. If it fails, `run` tries again.
        """
        try:
            await self._start()
        except SegmentStoreError as error:
            self._start_failure = f"{type(error).__name__}: {error}"
            raise
        self._start_failure = ""

    async def _start(self) -> None:
        self._states.is_loaded = False
        # What is left on its way would be missing among the states.
        self._table.require_settled()
        await self._table.create()
        self._states.clear()
        self._decisions.clear()
        async with aclosing(
            self._table.load(page_entries=self._settings.load_page_entries)
        ) as loaded:
            async for transaction in loaded:
                if isinstance(transaction, LoadedFence):
                    self._states.follow_fence(transaction.name, transaction.record)
                    continue
                name, record = transaction.name, transaction.record
                self._states.load(name, record)
                if record.state is TransactionState.OPEN:
                    # A ping may have asked for more than the begin did, and no process remembers it any more.
                    self._decisions.grant(name, max(record.lease_ms, self._settings.lease_ms_max))
        self._states.is_loaded = True

    async def repair(self) -> TransactionRepair:
        """After a recovery from Tier 2 alone, before `start`: let commits go on whose segments were lost.

        Doing it again finds nothing.
        """
        await self._table.create()
        created: list[str] = []
        ended: list[str] = []
        async with aclosing(
            self._table.load(page_entries=self._settings.load_page_entries)
        ) as loaded:
            async for transaction in loaded:
                if isinstance(transaction, LoadedFence):
                    continue
                if transaction.record.state is TransactionState.COMMITTING:
                    name = transaction.name
                    if await self._completer.end_without_epoch(name, transaction.record):
                        ended.append(f"{name.scope}/{name.stream} {name.transaction_id:032x}")
                        continue
                    created += await self._completer.replace_lost(
                        transaction.name, transaction.record
                    )
        return TransactionRepair(created, sorted(ended))

    async def run(self) -> None:
        """Until cancelled: read them if the start could not; then finish, abort what is not heard of, forget."""
        backoff = self._settings.backoff()
        while not self._states.is_loaded:
            await asyncio.sleep(backoff.next_seconds())
            try:
                await self.start()
            except SegmentStoreError as error:
                _LOG.info("the transactions cannot be read yet: %s", error)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._completer.run())
            group.create_task(self._decisions.end_leases())

    # --- verbs -----------------------------------------------------------------------------------

    async def create_transaction(self, request: api.CreateTxnRequest) -> api.CreateTxnResponse:
        """Raises InvalidRequestError (lease), StreamNotFoundError, StreamSealedError, RetryLaterError (too many)."""
        self.require_loaded()
        self._require_lease(request.lease)
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        epoch, transaction_id = await self.begin(
            scope, stream, lease_ms=request.lease, open_max=self._settings.open_per_stream_max
        )
        high, low = transaction_halves(transaction_id)
        return api.CreateTxnResponse(
            txnId=api.TxnId(highBits=high, lowBits=low),
            activeSegments=[
                api.SegmentRange(
                    segmentId=api.SegmentId(
                        streamInfo=api.StreamInfo(scope=scope, stream=stream),
                        segmentId=segment.segment_id,
                    ),
                    minKey=segment.low,
                    maxKey=segment.high,
                )
                for segment in epoch.segments
            ],
        )

    async def commit_transaction(self, request: api.TxnRequest) -> api.TxnStatus:
        self.require_loaded()
        if len(request.writerId.encode()) > WRITER_NAME_BYTES_MAX:
            # Its record stays in memory, and the name could note no time.
            raise InvalidRequestError(
                f"the name of a writer has at most {WRITER_NAME_BYTES_MAX} bytes"
            )
        name, _ = self._find(request.streamInfo, request.txnId)
        state = await self._decisions.decide(
            name,
            TransactionState.COMMITTING,
            writer=request.writerId,
            timestamp=request.timestamp,
        )
        return await self._decided(name, state, wanted=_COMMITTED)

    async def abort_transaction(self, request: api.TxnRequest) -> api.TxnStatus:
        self.require_loaded()
        name, _ = self._find(request.streamInfo, request.txnId)
        state = await self._decisions.decide(name, TransactionState.ABORTING)
        return await self._decided(name, state, wanted=_ABORTED)

    async def ping_transaction(self, request: api.PingTxnRequest) -> api.PingTxnStatus:
        self.require_loaded()
        name, _ = self._find(request.streamInfo, request.txnId)
        # An abort that is being written ends it, whatever lease is granted meanwhile.
        record = await self._decisions.settled(name)
        if record is None:
            return PingStatus(status=PingStatus.Status.UNKNOWN)
        if record.state in _COMMITTED:
            return PingStatus(status=PingStatus.Status.COMMITTED)
        if record.state in _ABORTED:
            return PingStatus(status=PingStatus.Status.ABORTED)
        if request.lease > self._settings.lease_ms_max:
            return PingStatus(status=PingStatus.Status.LEASE_TOO_LARGE)
        if self._decisions.age_seconds(name) > self._settings.execution_seconds_max:
            return PingStatus(status=PingStatus.Status.MAX_EXECUTION_TIME_EXCEEDED)
        lease_ms = max(request.lease, self._settings.lease_ms_min)
        self._decisions.grant(name, lease_ms)
        await self._decisions.prove_lease(lease_ms)
        return PingStatus(status=PingStatus.Status.OK)

    async def check_transaction_state(self, request: api.TxnRequest) -> api.TxnState:
        self.require_loaded()
        _, record = self._find(request.streamInfo, request.txnId)
        if record is None:
            return api.TxnState(state=api.TxnState.State.UNKNOWN)
        return api.TxnState(state=record.state.name)

    async def list_completed_transactions(
        self, request: api.ListCompletedTxnRequest
    ) -> api.ListCompletedTxnResponse:
        """Newest first, no more than the settings say."""
        self.require_loaded()
        states = self._states.known(request.streamInfo.scope, request.streamInfo.stream)
        answer = api.ListCompletedTxnResponse()
        if states is None:
            return answer
        for transaction_id, completed in reversed(states.finished()):
            if len(answer.response) == self._settings.listed_max:
                break
            high, low = transaction_halves(transaction_id)
            status = api.TxnResponse.Status
            answer.response.append(
                api.TxnResponse(
                    txnId=api.TxnId(highBits=high, lowBits=low),
                    status=status.COMMITTED
                    if completed.phase is not Phase.ABORTED
                    else status.ABORTED,
                )
            )
        return answer

    async def begin(
        self, scope: str, stream: str, *, lease_ms: int, open_max: int
    ) -> tuple[EpochRecord, int]:
        """A new transaction's epoch and id; its segments exist.

        Raises StreamNotFoundError, StreamSealedError, RetryLaterError (`open_max` are unfinished).
        """
        self.require_loaded()
        states = self._states.stream(scope, stream)
        if states.closed_count:
            raise StreamSealedError(scope, stream)
        if states.unfinished_count >= open_max:
            raise RetryLaterError(
                f"too many transactions are open stream={scope!r}/{stream!r} count={states.unfinished_count}"
            )
        states.begun_count += 1
        try:
            return await self._begin(states, lease_ms)
        finally:
            states.begun_count -= 1
            self._states.changed()
            self._states.drop_if_empty(states)

    # --- seal and delete of the stream -----------------------------------------------------------

    @asynccontextmanager
    async def no_unfinished_transactions(self, scope: str, stream: str) -> AsyncIterator[None]:
        """No transaction of the stream begins or is unfinished inside: open ones are aborted, commits are done.

        For sealing a stream. Do not hold the stream when entering.
        """
        self.require_loaded()
        states = self._states.stream(scope, stream)
        states.closed_count += 1
        try:
            backoff = self._settings.backoff()
            while not states.is_settled:
                aborted = [
                    each for each in states.open_ids() if states.phase(each) is not Phase.DECIDING
                ]
                await self._decisions.abort_quietly([states.name(each) for each in aborted])
                if any(map(states.is_open, aborted)):
                    # The store cannot now, and may say so at once, as a full log does: it is not asked all the time.
                    await asyncio.sleep(backoff.next_seconds())
                elif not states.is_settled:
                    await self._states.wait_for_change()
            yield
        finally:
            states.closed_count -= 1
            self._states.drop_if_empty(states)

    async def record_merges(self, history: StreamHistory, segment_ids: Sequence[int]) -> None:
        """The stream is being truncated, and these segments go: what they remember of merges is recorded first.

        Raises RetryLaterError while the transactions are not read yet.
        """
        self.require_loaded()
        if segment_ids:
            await self._completer.record_merges(history, segment_ids)

    async def on_stream_deletion(self, history: StreamHistory) -> None:
        """The stream is being deleted: nothing of its transactions stays."""
        self.require_loaded()
        states = self._states.known(history.scope, history.stream)
        if states is None:
            return
        unfinished = states.ids(*UNFINISHED)
        await self._completer.delete_segments(history, unfinished)
        # Together: stages belong to the transaction that they join.
        await self._completer.drop(states, unfinished)
        finished = [transaction_id for transaction_id, _ in states.finished()]
        await self._completer.drop_finished(states, finished)
        await self._completer.forget_reserved(states, self._reservations.all_of(states))
        for application_id in list(states.fences.known):
            await self._completer.forget_fence(states, application_id)
        self._states.drop_if_empty(states)

    # --- steps -----------------------------------------------------------------------------------

    async def _begin(self, states: StreamTransactions, lease_ms: int) -> tuple[EpochRecord, int]:
        history = await self._operations.history(states.scope, states.stream)
        state = await history.state()
        if state.is_sealing_or_sealed:
            raise StreamSealedError(states.scope, states.stream)
        epoch = await history.epoch(state.current_epoch)
        reserved = await self._reservations.take(states, epoch=epoch.epoch, lease_ms=lease_ms)
        transaction_id, record = reserved or (
            self._ids.take(epoch=epoch.epoch),
            TransactionRecord(
                state=TransactionState.OPEN,
                lease_ms=lease_ms,
                created_ms=self._wall_clock.now_ms(),
            ),
        )
        name = states.name(transaction_id)
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
            self._states.follow_table(name, record)
            self._decisions.grant(name, lease_ms)
        return epoch, transaction_id

    async def _decided(
        self,
        name: TransactionName,
        state: TransactionState | None,
        *,
        wanted: tuple[TransactionState, ...],
    ) -> api.TxnStatus:
        status = api.TxnStatus.Status
        if state is not None:
            return api.TxnStatus(status=status.SUCCESS if state in wanted else status.FAILURE)
        try:
            history = await self._operations.history(name.scope, name.stream)
            await history.state()
        except (ScopeNotFoundError, StreamNotFoundError):
            return api.TxnStatus(status=status.STREAM_NOT_FOUND)
        return api.TxnStatus(status=status.TRANSACTION_NOT_FOUND)

    # --- requests --------------------------------------------------------------------------------

    def _find(
        self, stream_info: api.StreamInfo, txn_id: api.TxnId
    ) -> tuple[TransactionName, TransactionRecord | None]:
        name = TransactionName(
            stream_info.scope,
            stream_info.stream,
            transaction_id_of(high=txn_id.highBits, low=txn_id.lowBits),
        )
        states = self._states.known(name.scope, name.stream)
        return name, states.find(name.transaction_id) if states is not None else None

    def require_loaded(self) -> None:
        """Raises RetryLaterError while the controller does not know its transactions yet."""
        if not self._states.is_loaded:
            raise RetryLaterError("the controller is still reading its transactions")
        self._table.note_read()

    def _require_lease(self, lease_ms: int) -> None:
        if not self._settings.lease_ms_min <= lease_ms <= self._settings.lease_ms_max:
            raise InvalidRequestError(
                f"a lease has {self._settings.lease_ms_min} to {self._settings.lease_ms_max} ms lease_ms={lease_ms}"
            )
