"""Brings transactions to the end that was promised: joins stages, merges what commits, deletes what aborts, forgets.

TransactionCompleter has one worker per stream that has something to do, inside one task group; a worker ends when
nothing is left. Later on it forgets what is finished: transactions, and fences that need not last; and the transactions
that were written ahead in vain.

Invariants:

- Commits of one stream are done in the order of their numbers, several at once if they wrote to the same epoch.
- A stream's commits happen while it is held, so it does not scale between two segments of one transaction.
- What fails is tried again, with growing pauses, for as long as it takes; commits behind it wait. `complaints` says
  which streams are stuck and why.
- Segments forget a transaction only after its commit is recorded. One that is truncated away before takes nothing
  with it: what it has taken in of a committing transaction is recorded first.
- A transaction with stages takes all of them in before any of it goes into the stream. Until that is recorded its own
  segments stay where they are: a step that is done again finds what the step before it left.
- What stays of an aborted transaction is only what it never had. An epoch that the stream does not have belonged to a
  stream of the same name that is gone, or was lost with a part of Tier 2. No segment is left that its transactions
  could be merged into: those that were to be committed end as aborted, loudly, and hold up no other.
- A finished transaction is remembered for `completed_seconds`, counted from the controller's start at least, unless its
  stream has more than `completed_per_stream_max` of them; and never forgotten before its segments have forgotten it.
- A lasting fence goes with its stream and not before.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence

from segmentstore.codec.controller_records.stream_records import EpochRecord, StreamState
from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import number_of, transaction_epoch_of, transaction_segment
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.errors import (
    EpochNotFoundError,
    MetadataConflictError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
)
from segmentstore.controller.settings import TransactionSettings
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.transactions.merges import Merges, TransactionSegmentLostError
from segmentstore.controller.transactions.reservations import Reservations
from segmentstore.controller.transactions.rolling_commit import RollingCommit
from segmentstore.controller.transactions.transaction_states import (
    Phase,
    StreamTransactions,
    TransactionStates,
)
from segmentstore.controller.transactions.transaction_table import (
    FenceName,
    TransactionChange,
    TransactionName,
    TransactionTable,
)
from segmentstore.runtime.clock import WallClock

_LOG = logging.getLogger(__name__)

_STREAM_GONE_ERRORS = (ScopeNotFoundError, StreamNotFoundError)


class TransactionCompleter:
    """Works until cancelled; `wake` tells it that a stream has something to do."""

    def __init__(
        self,
        *,
        states: TransactionStates,
        table: TransactionTable,
        operations: StreamOperations,
        segments: StreamSegments,
        merges: Merges,
        rolling: RollingCommit,
        reservations: Reservations,
        wall_clock: WallClock,
        settings: TransactionSettings,
    ) -> None:
        self._states = states
        self._table = table
        self._operations = operations
        self._segments = segments
        self._merges = merges
        self._rolling = rolling
        self._reservations = reservations
        self._wall_clock = wall_clock
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.streams_together_max)
        self._workers: set[tuple[str, str]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._remembered: dict[tuple[str, str], None] = {}
        """Streams without other work whose segments have merged transactions to forget."""
        self._remembers = asyncio.Event()
        self._complaints: dict[tuple[str, str], str] = {}

    def complaints(self) -> Mapping[tuple[str, str], str]:
        """Stream -> why its transactions are not finished."""
        return dict(self._complaints)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for states in self._states.all():
                    self.wake(states)
                group.create_task(self._forget_often())
                await self._sweep()
            finally:
                self._group = None

    async def _forget_often(self) -> None:
        while True:
            await self._remembers.wait()
            await asyncio.sleep(self._settings.forget_seconds)
            self._forget_rested()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.completed_sweep_seconds)
            await self.forget_old()

    def wake(self, states: StreamTransactions) -> None:
        """Something may be done for the stream now."""
        key = (states.scope, states.stream)
        # A worker that is there looks again before it ends.
        if self._group is not None and key not in self._workers:
            self._workers.add(key)
            self._group.create_task(self._work(*key))

    def _forget_rested(self) -> None:
        self._remembers.clear()
        remembered, self._remembered = self._remembered, {}
        for scope, stream in remembered:
            states = self._states.known(scope, stream)
            if states is not None:
                states.forget_now = True
                self.wake(states)

    async def adopt(self, states: StreamTransactions, transaction_id: int) -> None:
        """Believe what the table says of a transaction, and of those that are committed with it.

        Not if another task decides it, or has learnt more of it meanwhile: what is read here may be older than that.

        Raises RetryLaterError while that may still change by a batch whose caller has left.
        """
        if states.phase(transaction_id) is Phase.DECIDING:
            return
        self._table.require_settled()
        known = states.last_change(transaction_id)
        record = await self._table.read(states.name(transaction_id))
        if states.last_change(transaction_id) != known:
            return
        self._states.follow_table(states.name(transaction_id), record)
        if record is not None:
            if record.joins is not None and states.find(record.joins) is None:
                await self.adopt(states, record.joins)
            for stage in record.stages:
                if states.phase(stage) is not Phase.STAGE:
                    await self.adopt(states, stage)
        # It may be another state than the one that a caller of ours expects to have work for.
        self.wake(states)

    async def drop(self, states: StreamTransactions, transaction_ids: list[int]) -> None:
        """Transactions for which nothing is left to be done, because of their stream's end or their own."""
        if not transaction_ids:
            return
        names = [states.name(each) for each in transaction_ids]
        # Whatever the table says of them: an earlier attempt may have been cancelled behind its batch.
        await self._table.remove(names)
        for name in names:
            self._states.follow_table(name, None)

    async def drop_finished(
        self, states: StreamTransactions, transaction_ids: Sequence[int]
    ) -> None:
        """As `drop`, some at a time: none of these depends on another, and between two batches others run."""
        at_once = self._settings.forgotten_per_batch_max
        left = list(transaction_ids)
        while True:
            await self.drop(states, left[:at_once])
            del left[:at_once]
            if not left:
                return

    async def end_without_epoch(self, name: TransactionName, record: TransactionRecord) -> bool:
        """Whether the stream of a committing transaction has lost its epoch, or is lost; then it ends in the table.

        After a recovery from Tier 2 alone, before anything else looks at it.
        """
        if record.joins is not None:
            return False
        try:
            history = await self._operations.history(name.scope, name.stream)
            if (await history.any_state()).record is not None:
                await history.epoch(transaction_epoch_of(name.transaction_id))
                return False
        except (*_STREAM_GONE_ERRORS, EpochNotFoundError):
            pass
        changes: dict[TransactionName, TransactionChange] = {
            name: (record, self._ended_unmerged(record))
        }
        for stage in record.stages:
            stage_name = dataclasses.replace(name, transaction_id=stage)
            stage_record = await self._table.read(stage_name)
            if stage_record is not None:
                changes[stage_name] = (stage_record, self._ended_unmerged(stage_record))
        await self._table.replace(changes)
        return True

    async def record_merges(self, history: StreamHistory, segment_ids: Sequence[int]) -> None:
        """Segments of the stream are about to go: nothing depends on what they remember of merges afterwards.

        The caller holds the stream. May be done again.
        """
        states = self._states.known(history.scope, history.stream)
        state = (await history.any_state()).record
        if states is None or state is None:
            return
        numbers = {number_of(each) for each in segment_ids}
        changes: dict[TransactionName, TransactionChange] = {}
        for transaction_id in states.ids(Phase.JOINING, Phase.COMMITTING, Phase.UNKNOWN):
            name = states.name(transaction_id)
            record = await self._table.read(name)
            if record is None or record.state is not TransactionState.COMMITTING:
                continue
            if record.joins is not None:
                continue
            merged = dict(record.merged)
            try:
                parents = await history.epoch(transaction_epoch_of(transaction_id))
            except EpochNotFoundError:
                continue
            for parent in parents.segments:
                if parent.number not in numbers or parent.number in map(number_of, merged):
                    continue
                try:
                    found = await self._merges.find_merged(
                        history, parent, transaction_id, last_epoch=state.last_epoch
                    )
                except TransactionSegmentLostError:
                    continue
                if found is not None:
                    segment_id, length = found
                    merged[segment_id] = length
            if merged != record.merged:
                changes[name] = (record, dataclasses.replace(record, merged=merged))
        if changes:
            await self._table.replace(changes)
        for name, (_, after) in changes.items():
            self._states.follow_table(name, after)

    async def delete_segments(self, history: StreamHistory, transaction_ids: Iterable[int]) -> None:
        """None of these transactions has segments afterwards."""
        by_epoch: dict[int, list[int]] = {}
        for transaction_id in transaction_ids:
            by_epoch.setdefault(transaction_epoch_of(transaction_id), []).append(transaction_id)
        for epoch in sorted(by_epoch):
            try:
                parents = await history.epoch(epoch)
            except EpochNotFoundError:
                continue
            await self._segments.delete(
                [
                    transaction_segment(history.segment_name(parent.segment_id), transaction_id)
                    for transaction_id in by_epoch[epoch]
                    for parent in parents.segments
                ]
            )

    async def replace_lost(self, name: TransactionName, record: TransactionRecord) -> list[str]:
        """Create empty what is missing of a committing transaction and was not merged; the names."""
        if record.joins is not None:
            return []
        try:
            history = await self._operations.history(name.scope, name.stream)
            state = await history.any_state()
            if state.record is None:
                return []
            if record.stages:
                return await self._replace_lost_stages(history, name, record)
            return await self._merges.replace_lost(
                history,
                sources=await history.epoch(transaction_epoch_of(name.transaction_id)),
                last_epoch=state.record.last_epoch,
                transaction_id=name.transaction_id,
                recorded=record.merged,
            )
        except (*_STREAM_GONE_ERRORS, EpochNotFoundError):
            return []

    async def forget_old(self) -> None:
        """Forget what is finished and too old, or too many."""
        for states in self._states.all():
            if self._states.known(states.scope, states.stream) is not states:
                # The stream was deleted while the pass waited for another one.
                continue
            try:
                await self.drop_finished(states, self._old_transactions(states))
                await self.forget_reserved(states, self._reservations.unwanted(states))
                for application_id in self._old_fences(states):
                    await self.forget_fence(states, application_id)
            except SegmentStoreError as error:
                _LOG.info("finished transactions are kept for now: %s", error)
            self._states.drop_if_empty(states)

    async def forget_reserved(
        self, states: StreamTransactions, transaction_ids: Sequence[int]
    ) -> None:
        """Remove what was given back; what cannot be removed now stays given back."""
        if transaction_ids:
            await self._table.remove([states.name(each) for each in transaction_ids])
            states.removed(transaction_ids)

    async def forget_fence(self, states: StreamTransactions, application_id: str) -> None:
        """Commits of the application are known no more."""
        states.fences.moving.add(application_id)
        try:
            await self._table.remove_fence(FenceName(states.scope, states.stream, application_id))
            states.fences.known.pop(application_id, None)
        finally:
            states.fences.moving.discard(application_id)
            self._states.changed()

    # --- one stream ------------------------------------------------------------------------------

    async def _work(self, scope: str, stream: str) -> None:
        key = (scope, stream)
        backoff = self._settings.backoff()
        try:
            # Looked up each time: a stream that was deleted and created again has other states.
            while (states := self._states.known(scope, stream)) is not None and states.has_work:
                try:
                    async with self._slots:
                        await self._step(states)
                except SegmentStoreError as error:
                    self._complaints[key] = f"{type(error).__name__}: {error}"
                    _LOG.warning("stream=%s/%s transactions wait: %s", *key, error)
                    await asyncio.sleep(backoff.next_seconds())
                else:
                    self._complaints.pop(key, None)
                    backoff.reset()
        except BaseException:
            # The group ends with it, and takes no other.
            self._group = None
            raise
        finally:
            self._workers.discard(key)
            self._complaints.pop(key, None)
        if states is not None:
            if states.has(Phase.MERGED):
                self._remembered[key] = None
                self._remembers.set()
            self._states.drop_if_empty(states)

    async def _step(self, states: StreamTransactions) -> None:
        for transaction_id in states.ids(Phase.UNKNOWN):
            await self.adopt(states, transaction_id)
        try:
            if states.next_commits(count=1):
                await self._join_next(states)
                await self._commit_next(states)
            if states.has(Phase.ABORTING):
                await self._abort(states)
            if len(states.ids(Phase.MERGED)) >= self._settings.forget_together_max:
                states.forget_now = True
            if states.has(Phase.MERGED) and states.forget_now and not states.next_commits(count=1):
                await self._forget_merged(states)
        except (MetadataConflictError, TransactionSegmentLostError):
            # Another controller was at work, or an answer of the table was lost: look again at all of them.
            believed = states.ids(Phase.JOINING, Phase.COMMITTING, Phase.STAGE, Phase.ABORTING)
            for transaction_id in believed:
                states.mark_unknown(transaction_id)
            for transaction_id in believed:
                await self.adopt(states, transaction_id)
            raise

    async def _join_next(self, states: StreamTransactions) -> None:
        for transaction_id, record in states.next_commits(
            count=self._settings.commits_together_max
        ):
            if not record.stages:
                continue
            try:
                history = await self._operations.history(states.scope, states.stream)
                await history.state()
                try:
                    await self._join(states, history, transaction_id, record)
                except EpochNotFoundError as error:
                    await self._end_unmerged(states, history, [transaction_id], error)
            except _STREAM_GONE_ERRORS as error:
                _LOG.warning("stream=%s is gone with stages: %s", states.stream, error)
                await self.drop(states, [transaction_id, *record.stages])

    async def _join(
        self,
        states: StreamTransactions,
        history: StreamHistory,
        transaction_id: int,
        record: TransactionRecord,
    ) -> None:
        sources = await history.epoch(transaction_epoch_of(transaction_id))
        await self._create_segments(history, sources, transaction_id)
        await self._merges.join(
            history, sources=sources, stages=record.stages, transaction_id=transaction_id
        )
        changes: dict[TransactionName, TransactionChange] = {
            states.name(stage): (states.record(stage), None) for stage in record.stages
        }
        changes[states.name(transaction_id)] = (record, dataclasses.replace(record, stages=()))
        await self._table.replace(changes)
        for name, (_, after) in changes.items():
            self._states.follow_table(name, after)

    async def _replace_lost_stages(
        self, history: StreamHistory, name: TransactionName, record: TransactionRecord
    ) -> list[str]:
        sources = await history.epoch(transaction_epoch_of(name.transaction_id))
        await self._create_segments(history, sources, name.transaction_id)
        return await self._merges.replace_lost_stages(
            history,
            sources=sources,
            stages=record.stages,
            transaction_id=name.transaction_id,
        )

    async def _create_segments(
        self, history: StreamHistory, sources: EpochRecord, transaction_id: int
    ) -> None:
        await self._segments.create(
            [
                transaction_segment(history.segment_name(parent.segment_id), transaction_id)
                for parent in sources.segments
            ]
        )

    async def _commit_next(self, states: StreamTransactions) -> None:
        try:
            # Settles the stream first: that may be the end of a rolling commit, and the queue is another then.
            async with self._operations.exclusive(states.scope, states.stream) as history:
                await self._commit_held(states, history)
        except _STREAM_GONE_ERRORS as error:
            _LOG.warning(
                "stream=%s/%s is gone with its commits: %s", states.scope, states.stream, error
            )
            due = states.next_commits(count=states.unfinished_count)
            await self.drop(
                states,
                [
                    each
                    for transaction_id, record in due
                    for each in (transaction_id, *record.stages)
                ],
            )

    async def _commit_held(self, states: StreamTransactions, history: StreamHistory) -> None:
        due = states.next_commits(count=self._settings.commits_together_max)
        if not due:
            return
        state = await history.state()
        if state.state is StreamState.SEALED:
            raise StreamSealedError(states.scope, states.stream)
        epoch = transaction_epoch_of(due[0][0])
        active = await history.epoch(state.current_epoch)
        try:
            sources = active if epoch == active.epoch else await history.epoch(epoch)
        except EpochNotFoundError as error:
            lost = [each for each, _ in due if transaction_epoch_of(each) == epoch]
            await self._end_unmerged(states, history, lost, error)
            return
        together: list[tuple[int, TransactionRecord]] = []
        for transaction_id, record in due:
            # One that was called after the joining began waits for the next round.
            if transaction_epoch_of(transaction_id) != epoch or record.stages:
                break
            together.append((transaction_id, record))
        if not together:
            return
        if numbers_of(sources) != numbers_of(active):
            await self._rolling.commit(
                history,
                sources=sources,
                active=active,
                transaction_ids=tuple(each for each, _ in together),
            )
            return
        await self._commit_directly(states, history, sources, active, together)

    async def _commit_directly(
        self,
        states: StreamTransactions,
        history: StreamHistory,
        sources: EpochRecord,
        active: EpochRecord,
        together: list[tuple[int, TransactionRecord]],
    ) -> None:
        merged = await self._merges.merge(
            history,
            sources=sources,
            targets=active,
            transaction_ids=[each for each, _ in together],
            recorded={each: record.merged for each, record in together},
        )
        now_ms = self._wall_clock.now_ms()
        after = {
            transaction_id: dataclasses.replace(
                record,
                state=TransactionState.COMMITTED,
                completed_ms=now_ms,
                merged=merged[transaction_id],
            )
            for transaction_id, record in together
        }
        ends = {states.name(each): (record, after[each]) for each, record in together}
        with self._reservations.ahead(states, active.epoch, count=len(together)) as reserved:
            await self._table.replace({**ends, **reserved})
        for transaction_id, record in after.items():
            self._states.follow_table(states.name(transaction_id), record)

    async def _end_unmerged(
        self,
        states: StreamTransactions,
        history: StreamHistory,
        transaction_ids: Sequence[int],
        error: EpochNotFoundError,
    ) -> None:
        # Only the owner of the records may say that an epoch is not there: a stale reader does not see the newest ones.
        await history.table.proof.wait()
        changes: dict[TransactionName, TransactionChange] = {}
        for transaction_id in transaction_ids:
            if states.phase(transaction_id) not in (Phase.JOINING, Phase.COMMITTING):
                continue
            record = states.record(transaction_id)
            _LOG.error(
                "stream=%s transaction=%032x was to be committed and ends as aborted: %s",
                history.name,
                transaction_id,
                error,
            )
            changes[states.name(transaction_id)] = (record, self._ended_unmerged(record))
            for stage in record.stages:
                stage_record = states.record(stage)
                changes[states.name(stage)] = (stage_record, self._ended_unmerged(stage_record))
        await self._table.replace(changes)
        for name, (_, after) in changes.items():
            self._states.follow_table(name, after)

    def _ended_unmerged(self, record: TransactionRecord) -> TransactionRecord:
        return dataclasses.replace(
            record,
            state=TransactionState.ABORTED,
            completed_ms=self._wall_clock.now_ms(),
            stages=(),
            joins=None,
        )

    async def _abort(self, states: StreamTransactions) -> None:
        aborting = states.records(Phase.ABORTING)
        try:
            history = await self._operations.history(states.scope, states.stream)
            await history.state()
            await self.delete_segments(history, aborting)
        except _STREAM_GONE_ERRORS as error:
            _LOG.info(
                "stream=%s/%s is gone with its aborts: %s", states.scope, states.stream, error
            )
            await self.drop(states, list(aborting))
            return
        now_ms = self._wall_clock.now_ms()
        after = {
            each: dataclasses.replace(record, state=TransactionState.ABORTED, completed_ms=now_ms)
            for each, record in aborting.items()
        }
        await self._table.replace(
            {states.name(each): (record, after[each]) for each, record in aborting.items()}
        )
        for transaction_id, record in after.items():
            self._states.follow_table(states.name(transaction_id), record)

    async def _forget_merged(self, states: StreamTransactions) -> None:
        merged = states.records(Phase.MERGED)
        try:
            history = await self._operations.history(states.scope, states.stream)
            await history.state()
            for epoch in sorted({transaction_epoch_of(each) for each in merged}):
                try:
                    sources = await history.epoch(epoch)
                except EpochNotFoundError:
                    continue
                await self._merges.forget(
                    history,
                    sources,
                    {
                        each: dict(record.merged)
                        for each, record in merged.items()
                        if transaction_epoch_of(each) == epoch
                    },
                )
        except _STREAM_GONE_ERRORS:
            _LOG.info("stream=%s/%s is gone with its memories", states.scope, states.stream)
        states.mark_forgotten(list(merged))
        states.forget_now = False

    def _old_transactions(self, states: StreamTransactions) -> list[int]:
        now = asyncio.get_running_loop().time()
        excess = len(states.finished()) - self._settings.completed_per_stream_max
        return [
            transaction_id
            for place, (transaction_id, completed) in enumerate(states.finished())
            if completed.phase is not Phase.MERGED
            and (place < excess or completed.since + self._settings.completed_seconds <= now)
        ]

    def _old_fences(self, states: StreamTransactions) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [
            application_id
            for application_id, since in states.fences.known.items()
            if since is not None
            and since + self._settings.completed_seconds <= now
            and application_id not in states.fences.moving
        ]


def numbers_of(epoch: EpochRecord) -> frozenset[int]:
    """Segment numbers; equal ones mean equal ranges, because a number belongs to one range for ever."""
    return frozenset(segment.number for segment in epoch.segments)
