"""Commits transactions whose segments were replaced since, by a detour of two epochs.

    epoch E      active when the plan is made
    epoch E + 1  the shape of the transactions' epoch: takes the transactions in and is sealed with them
    epoch E + 2  the shape of E again: becomes the active one

Segments of the two epochs have the numbers of the segments whose shape they repeat, so that they are in the same
containers. Readers come from E to E + 1 to E + 2 and meet the events of the transactions behind everything that
was written before and before everything that is written after.

    intent       state COMMITTING, last epoch E + 2, both epochs, the plan: one batch
    1            create the segments of E + 1 and E + 2
    2            merge the transactions into E + 1, in order
    3            publish E + 1 behind E and E + 2 behind E + 1
    4            seal E + 1, then E: a writer that leaves E finds E + 1 sealed and goes on to E + 2
    5            record the transactions as committed
    completion   state ACTIVE, current epoch E + 2, lengths, no plan: one batch

Invariants:

- Every step may be repeated, by any task that holds the stream; the plan decides, nothing is decided again.
- A segment of E + 1 that is sealed has taken in all of its transactions. It says nothing of the others: behind a
  recovery from Tier 2 alone one container may know less than another.
"""

import dataclasses
from collections.abc import Mapping

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    StreamSegment,
    StreamState,
)
from segmentstore.codec.controller_records.transaction_records import (
    RollingPlanRecord,
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import segment_id_of
from segmentstore.controller.errors import MetadataConflictError, RetryLaterError
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from segmentstore.controller.streams.scaling import EpochTransition
from segmentstore.controller.streams.stream_history import StreamHistory, epoch_key, state_key
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.transactions.merges import Merged, Merges
from segmentstore.controller.transactions.transaction_states import TransactionStates
from segmentstore.controller.transactions.transaction_table import (
    TransactionName,
    TransactionTable,
)
from segmentstore.runtime.clock import WallClock


class RollingCommit:
    """Begins such commits, and drives streams in the state COMMITTING."""

    def __init__(
        self,
        *,
        operations: StreamOperations,
        transition: EpochTransition,
        segments: StreamSegments,
        merges: Merges,
        table: TransactionTable,
        wall_clock: WallClock,
        states: TransactionStates,
    ) -> None:
        self._operations = operations
        self._transition = transition
        self._segments = segments
        self._merges = merges
        self._table = table
        self._wall_clock = wall_clock
        self._states = states
        operations.register(StreamState.COMMITTING, self._resume)

    async def commit(
        self,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        active: EpochRecord,
        transaction_ids: tuple[int, ...],
    ) -> None:
        """Commit transactions of the epoch `sources`. The caller holds the stream, which is ACTIVE."""
        state = await history.any_state()
        record = state.record
        assert record is not None, f"nothing to commit to stream={history.name!r}"
        assert record.state is StreamState.ACTIVE, f"stream is not active state={record}"
        recorded = await self._require_undone(history, transaction_ids)
        # Behind the intent it would be too late: what is lost then keeps the stream from everything.
        await self._merges.require_sources(
            history, sources=sources, last_epoch=active.epoch, recorded=recorded
        )
        now_ms = max(self._wall_clock.now_ms(), active.created_ms)
        detour = repeated_shape(sources, epoch=record.last_epoch + 1, now_ms=now_ms)
        after = repeated_shape(active, epoch=record.last_epoch + 2, now_ms=now_ms)
        plan = RollingPlanRecord(
            transaction_epoch=sources.epoch,
            active_epoch=active.epoch,
            transaction_ids=transaction_ids,
        )
        stream = history.stream
        batch = Batch()
        batch.put(
            state_key(stream),
            dataclasses.replace(record, state=StreamState.COMMITTING, last_epoch=after.epoch),
            state,
        )
        for epoch in (detour, after):
            epoch.check()
            key = epoch_key(stream, epoch.epoch)
            batch.put(key, epoch, await history.table.read(key))
        batch.put(rolling_key(stream), plan, await history.table.read(rolling_key(stream)))
        batch.list_name(PENDING_INDEX, stream)
        await history.table.commit(batch)
        await self._operations.drive(history)

    async def _require_undone(
        self, history: StreamHistory, transaction_ids: tuple[int, ...]
    ) -> dict[int, Mapping[int, int]]:
        """What of each transaction is recorded as merged.

        Raises MetadataConflictError if another controller has committed one: the plan could never be carried out.
        """
        recorded: dict[int, Mapping[int, int]] = {}
        for transaction_id in transaction_ids:
            name = TransactionName(history.scope, history.stream, transaction_id)
            record = await self._table.read(name)
            if record is None or record.state is not TransactionState.COMMITTING:
                raise MetadataConflictError(f"a transaction was committed meanwhile {name}")
            recorded[transaction_id] = record.merged
        return recorded

    async def _resume(self, history: StreamHistory) -> None:
        if not self._states.is_loaded:
            # What is recorded here while the table is being read could be overtaken by what was read before.
            raise RetryLaterError("the controller is still reading its transactions")
        state = await history.any_state()
        versioned = await history.table.read(rolling_key(history.stream))
        plan = versioned.record
        assert state.record is not None, f"nothing to commit to stream={history.name!r}"
        assert plan is not None, f"a commit without a plan stream={history.name!r}"
        active = await history.epoch(plan.active_epoch)
        detour = await history.epoch(plan.active_epoch + 1)
        after = await history.epoch(plan.active_epoch + 2)
        await self._transition.create_segments(history, active, detour)
        await self._transition.create_segments(history, detour, after)
        merged = await self._merge(history, plan, detour)
        await self._transition.publish_successors(history, active, detour)
        await self._transition.publish_successors(history, detour, after)
        lengths = await self._transition.seal_replaced(history, detour, after)
        lengths |= await self._transition.seal_replaced(history, active, detour)
        await self._record(history, plan, merged)
        batch = Batch()
        await self._transition.add_lengths(history, batch, lengths)
        record = dataclasses.replace(
            state.record, state=StreamState.ACTIVE, current_epoch=after.epoch
        )
        record.check()
        batch.put(state_key(history.stream), record, state)
        batch.remove(rolling_key(history.stream), versioned)
        batch.unlist_name(PENDING_INDEX, history.stream)
        await history.table.commit(batch)

    async def _merge(
        self, history: StreamHistory, plan: RollingPlanRecord, detour: EpochRecord
    ) -> Mapping[int, Merged]:
        infos = await self._segments.info(
            [history.segment_name(segment.segment_id) for segment in detour.segments]
        )
        # Sealed after the last merge and not before: an earlier attempt came this far. It is not asked again, since a
        # sealed segment takes nothing in, not even what it remembers.
        done = {
            segment.segment_id: info.length
            for segment, info in zip(detour.segments, infos, strict=True)
            if info is not None and info.sealed
        }
        records = {
            each: await self._table.read(TransactionName(history.scope, history.stream, each))
            for each in plan.transaction_ids
        }
        # After a recovery the table of transactions may be newer than the plan.
        ended = [
            each
            for each, record in records.items()
            if record is None or record.state is not TransactionState.COMMITTING
        ]
        return await self._merges.merge(
            history,
            sources=await history.epoch(plan.transaction_epoch),
            targets=detour,
            transaction_ids=plan.transaction_ids,
            recorded={
                each: {
                    **(record.merged if record is not None and each not in ended else {}),
                    **done,
                }
                for each, record in records.items()
            },
            ended=ended,
        )

    async def _record(
        self, history: StreamHistory, plan: RollingPlanRecord, merged: Mapping[int, Merged]
    ) -> None:
        changes: dict[TransactionName, tuple[TransactionRecord, TransactionRecord | None]] = {}
        for transaction_id in plan.transaction_ids:
            name = TransactionName(history.scope, history.stream, transaction_id)
            record = await self._table.read(name)
            if record is None or record.state is not TransactionState.COMMITTING:
                # An earlier attempt was cancelled between the batch and the states.
                self._states.follow_table(name, record)
            else:
                changes[name] = (
                    record,
                    dataclasses.replace(
                        record,
                        state=TransactionState.COMMITTED,
                        completed_ms=self._wall_clock.now_ms(),
                        merged=merged[transaction_id],
                    ),
                )
        await self._table.replace(changes)
        for name, (_, record) in changes.items():
            self._states.follow_table(name, record)


def repeated_shape(shape: EpochRecord, *, epoch: int, now_ms: int) -> EpochRecord:
    """An epoch with segments of the same numbers and ranges, born in it."""
    return EpochRecord(
        epoch,
        shape.reference_epoch,
        now_ms,
        tuple(
            StreamSegment(
                segment_id_of(number=segment.number, creation_epoch=epoch),
                segment.low,
                segment.high,
                now_ms,
            )
            for segment in shape.segments
        ),
    )


def rolling_key(stream: str) -> RecordKey[RollingPlanRecord]:
    """Where the plan of a stream stands, in the table of its scope."""
    return RecordKey(record_keys.rolling_plan(stream), RollingPlanRecord.decode)
