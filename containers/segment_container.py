"""One segment container: owns a log, a read index and a storage writer, and is one failure domain.

    start()  recover (log first, then manifest, then replay), write a checkpoint, then accept
    run()    the admission queue, the storage writer, fetches, housekeeping; ends when one of them fails
    close()  refuse new work and what waits to be accepted, finish what is in flight, close the log

`StreamSegmentContainer` is the container, `ContainerBackups` the backups of one.

Invariants:
- at most one owner of a container id acknowledges anything: the log's epoch decides;
- when one part fails, the container stops whole, once, and says why. States move one way: a container that stopped or
  failed never runs again and never restarts itself;
- corruption disables the log, so that no retry destroys the evidence;
- what only the owner can know is told while this is known to be the owner (containers/ownership.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from random import Random

from containers.cache.cache_manager import CacheManager
from containers.container_components import ContainerComponents, build_components
from containers.container_settings import ContainerSettings
from containers.held_changes import HeldChanges
from containers.log.checkpoints import CheckpointPolicy
from containers.log.in_memory_log import InMemoryLog
from containers.log.log_truncation import TruncationMarkers
from containers.log.operation_processor import log_full_error
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.read_index.container_read_index import ContainerReadIndex
from containers.recovery.recovery import RecoveredState, Recovery, RecoverySummary
from containers.segments.segment_handle import SegmentHandle, SegmentMerges, properties_of
from segmentstore.contracts.cluster import Lease
from segmentstore.contracts.containers import ContainerHealth, ContainerState
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    BackupInterruptedError,
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.segments import AttributeUpdate, SegmentProperties
from segmentstore.contracts.storage import SnapshotInfo, Storage
from segmentstore.contracts.tables import Table
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.clock import WallClock

_LOGGER = logging.getLogger(__name__)
_LOST_DRAIN_SECONDS_MAX = 2.0

THROTTLE_DELAY_SECONDS_MAX = 3600.0
"""What "until something changes" is shown as."""

_ALLOWED_MOVES: Mapping[ContainerState, frozenset[ContainerState]] = {
    ContainerState.CREATED: frozenset({ContainerState.STARTING, ContainerState.STOPPED}),
    ContainerState.STARTING: frozenset({ContainerState.RUNNING, ContainerState.FAILED}),
    ContainerState.RUNNING: frozenset({ContainerState.STOPPING, ContainerState.FAILED}),
    ContainerState.STOPPING: frozenset({ContainerState.STOPPED, ContainerState.FAILED}),
    ContainerState.STOPPED: frozenset(),
    ContainerState.FAILED: frozenset(),
}


class ContainerBackups:
    """Implements contracts.containers.BackupOwner: a snapshot is made and dropped by the owner of the manifest."""

    def __init__(
        self,
        *,
        storage: Storage,
        flush: Callable[[], Awaitable[None]],
        held: HeldChanges,
        settle_table: Callable[[str], Awaitable[None]],
    ) -> None:
        """`settle_table`: returns when what was submitted to that table before is durable, if it is here."""
        self._storage = storage
        self._flush = flush
        self._held = held
        self._settle_table = settle_table
        self._made: tuple[str, SnapshotInfo] | None = None
        """Under which hold the last one was made."""

    async def flush(self) -> None:
        """See BackupOwner."""
        await self._flush()

    async def hold(self, hold_id: str, tables: Collection[str]) -> None:
        """See BackupOwner, and HeldChanges."""
        await self._held.hold(hold_id, tables)
        for table in tables:
            await self._settle_table(table)

    def is_held(self, hold_id: str) -> bool:
        """See BackupOwner."""
        return self._held.is_on(hold_id)

    def let_go(self, hold_id: str) -> None:
        """See BackupOwner."""
        self._held.let_go(hold_id)

    async def make(self, name: str, *, hold_id: str = "") -> SnapshotInfo:
        """Flush first, so that everything acknowledged before the call is in it."""
        if not hold_id:
            await self._flush()
            return await self._storage.create_snapshot(name)
        self._held.require(hold_id)
        await self._flush()
        self._held.require(hold_id)
        made = await self._storage.create_snapshot(name, is_proved=False)
        self._made = hold_id, made
        return made

    async def prove(self, name: str, *, hold_id: str) -> None:
        """See BackupOwner. By its version: another maker may have made one of that name meanwhile."""
        made_here = self._made
        is_proved = (
            made_here is not None
            and made_here[0] == hold_id
            and await self._storage.prove_snapshot(name, made_here[1].version)
        )
        if not is_proved:
            raise BackupInterruptedError(
                f"what was made for the backup is not here any more; make it again name={name!r}"
            )

    async def drop(self, name: str) -> bool:
        return await self._storage.delete_snapshot(name)

    async def list(self) -> Sequence[SnapshotInfo]:
        return await self._storage.snapshots()


class StreamSegmentContainer:
    """Implements contracts.containers.SegmentContainer."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        log: DurableDataLog,
        storage: Storage,
        cache: CacheManager,
        wall_clock: WallClock,
        random: Random,
        executor: Executor | None,
        settings: ContainerSettings,
        lease: Lease | None,
    ) -> None:
        """lease: of the host, for all of its containers; None: the log is asked instead (containers/ownership.py)."""
        self._container_id = container_id
        self._wall_clock = wall_clock
        self._random = random
        self._executor = executor
        self._settings = settings
        self._lease = lease
        self._lifecycle_state = ContainerState.CREATED
        self._cause: BaseException | None = None
        """What ended it, if it failed."""
        self._parts_ended = asyncio.Event()
        self._parts_ended.set()
        self._closed = asyncio.Event()
        self._start_failure: Exception | None = None
        metadata = ContainerMetadata(container_id=container_id)
        self._recovered = RecoveredState(
            log=log,
            storage=storage,
            cache=cache,
            metadata=metadata,
            memory_log=InMemoryLog(metadata=metadata),
            read_index=ContainerReadIndex(
                cache=cache,
                storage=storage,
                settings=settings.read_index,
                fail=self._fail_in_callback,
            ),
            markers=TruncationMarkers(),
            checkpoints=CheckpointPolicy(settings.checkpoints),
        )
        """What it has of its segments; empty until start() has filled it."""
        self._components: ContainerComponents
        """What works on that, once it is filled."""
        self._held = HeldChanges(container_id=container_id, fail=self._fail_in_callback)
        self._merges = SegmentMerges(open_segment=self._opened, held=self._held)
        self._backups = ContainerBackups(
            storage=storage,
            flush=lambda: self._components.housekeeping.flush(),
            held=self._held,
            settle_table=self._settle_table,
        )
        self._stop_listening: Callable[[], None] = lambda: None
        self.recovery_summary: RecoverySummary | None = None
        """None until it has recovered."""

    @property
    def container_id(self) -> ContainerId:
        return self._container_id

    # --- start and end ---------------------------------------------------------------------------

    @property
    def _is_running(self) -> bool:
        return self._lifecycle_state is ContainerState.RUNNING

    @property
    def _is_closing(self) -> bool:
        """Its owner has ended it, or is about to have."""
        return self._lifecycle_state in (ContainerState.STOPPING, ContainerState.STOPPED)

    def _move_to(self, state: ContainerState, *, cause: BaseException | None = None) -> None:
        allowed = _ALLOWED_MOVES[self._lifecycle_state]
        assert state in allowed, f"container moves from {self._lifecycle_state} to {state}"
        self._lifecycle_state = state
        self._cause = cause

    async def start(self) -> None:
        """Recover. On an error nothing is left running and the log is closed (and disabled after corruption)."""
        self._move_to(ContainerState.STARTING)
        try:
            await self._recover()
            if self._start_failure is not None:
                raise self._start_failure
        except BaseException as error:
            self._move_to(ContainerState.FAILED, cause=error)
            await self._release(error)
            raise
        self._listen()
        self._move_to(ContainerState.RUNNING)

    async def _recover(self) -> None:
        began = asyncio.get_running_loop().time()
        recovery = Recovery(
            state=self._recovered, settings=self._settings.writer, executor=self._executor
        )
        self.recovery_summary = await recovery.run()
        self._components = build_components(
            self._recovered,
            truncate=self.truncate,
            settings=self._settings,
            wall_clock=self._wall_clock,
            random=self._random,
            executor=self._executor,
            lease=self._lease,
            held=self._held,
        )
        self._components.housekeeping.start_writer(self.recovery_summary, recovery.overlap)
        await self._components.processor.first_checkpoint()
        loop = asyncio.get_running_loop()
        _LOGGER.info(
            "container=%d recovered epoch=%d frames=%d bytes=%d segments=%d seconds=%.3f%s",
            self._container_id,
            self.recovery_summary.epoch,
            self.recovery_summary.frames,
            self.recovery_summary.data_bytes,
            self.recovery_summary.active_segments,
            loop.time() - began,
            "".join(f" {step}={each:.3f}" for step, each in self.recovery_summary.seconds.items()),
        )

    async def run(self) -> None:
        """Until close(), or cancelled; raises what ended the container otherwise."""
        if self._lifecycle_state in (ContainerState.STOPPING, ContainerState.STOPPED):
            return  # closed before it was run
        assert self._is_running, f"run() of a container that is {self._lifecycle_state}"
        try:
            await self._run_parts()
        except BaseExceptionGroup as group:
            cause = first_cause(group)
            if self._is_closing:
                # close() ended the parts; one that failed by itself at the same time is not to be hidden.
                if not isinstance(cause, ContainerStoppedError):
                    raise cause from None
                return
            await self._end(cause)
            raise cause from None
        except asyncio.CancelledError:
            await self.close()
            raise

    def _fail_in_callback(self, bug: Exception) -> None:
        """A part failed where no task sees it: end as if a task had."""
        if self._lifecycle_state is ContainerState.STARTING:
            self._start_failure = bug
        elif self._is_running or self._is_closing:
            self._components.processor.fail(bug)
        else:
            _LOGGER.error("container=%d failed while it ended", self._container_id, exc_info=bug)

    async def _run_parts(self) -> None:
        self._parts_ended.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._components.processor.run())
                tasks.create_task(self._components.housekeeping.run_writer())
                tasks.create_task(self._components.housekeeping.run())
                for run in self._components.background_tasks:
                    tasks.create_task(run())
        finally:
            self._parts_ended.set()

    async def _end(self, cause: BaseException) -> None:
        """One part failed: stop whole."""
        if self._lifecycle_state not in (ContainerState.RUNNING, ContainerState.STOPPING):
            return
        self._move_to(ContainerState.FAILED, cause=cause)
        _LOGGER.error("container=%d stopped: %s", self._container_id, cause)
        self._components.processor.fail(cause)
        await self._release(cause)

    async def close(self) -> None:
        """Stop in order. Everything acknowledged is in the log; nothing is flushed for it.

        Without the lease what is under way is waited for no longer than two seconds: the next owner finds out what of
        it is durable, and the host can be no other node before its containers are closed.

        Cancelling it gives up waiting for what is under way, whose outcome is unknown then; the rest is done in any
        case, and another caller of close() waits for that.
        """
        if self._lifecycle_state is ContainerState.CREATED:
            self._move_to(ContainerState.STOPPED)
            await self._recovered.read_index.close()
            return
        if self._lifecycle_state is ContainerState.STOPPING:
            await self._closed.wait()
            return
        if not self._is_running:
            return
        self._move_to(ContainerState.STOPPING)
        began = asyncio.get_running_loop().time()
        try:
            if self._components.processor.failure is None:
                self._components.processor.stop()
                has_lease = self._lease is None or self._lease.is_valid()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if has_lease else _LOST_DRAIN_SECONDS_MAX):
                        await self._components.processor.drain()
        finally:
            drained = asyncio.get_running_loop().time()
            await finish_despite_cancellation(self._close_parts())
            _LOGGER.info(
                "container=%d closed seconds=%.3f drain=%.3f",
                self._container_id,
                asyncio.get_running_loop().time() - began,
                drained - began,
            )

    async def _close_parts(self) -> None:
        closed = ContainerStoppedError(f"container is closing container={self._container_id}")
        try:
            self._components.processor.fail(closed)
            # The memory that the storage writer looks at goes back to the cache only when it has ended.
            await self._parts_ended.wait()
            await self._give_back(closed)
            self._move_to(ContainerState.STOPPED)
        finally:
            self._closed.set()

    async def _release(self, cause: BaseException) -> None:
        # To the end also when the container is taken away meanwhile: no next owner can open a log that stays locked.
        await finish_despite_cancellation(self._give_back(cause))

    async def _give_back(self, cause: BaseException) -> None:
        self._stop_listening()
        self._held.close()
        error = ContainerStoppedError(f"the container stopped: {cause}")
        for segment in list(self._recovered.metadata.by_id.values()):
            segment.read_index.end_reads(error)
        async with AsyncExitStack() as parts:
            # From the last one up, each also when one before it raises: a log that stays open is locked.
            parts.push_async_callback(self._recovered.log.close)
            parts.push_async_callback(self._recovered.storage.close)
            parts.push_async_callback(self._recovered.read_index.close)
            if isinstance(cause, SegmentStoreError) and cause.kind is ErrorKind.CORRUPT:
                await self._recovered.log.disable(str(cause))

    def _listen(self) -> None:
        space_freed = self._components.housekeeping.space_freed
        self._recovered.cache.on_space_freed.append(space_freed)
        self._stop_listening = lambda: self._recovered.cache.on_space_freed.remove(space_freed)

    # --- verbs -----------------------------------------------------------------------------------
    #
    # What they judge by what is remembered here is told when it is confirmed: refusals of every verb, and the results
    # of those that write nothing. Refusals that the operation processor judged are confirmed before it tells them.

    def _require_running(self) -> None:
        if not self._is_running:
            raise ContainerNotFoundError(self._container_id, f"it is {self._lifecycle_state.value}")

    def _confirming(self, *, refusals_only: bool = False) -> AbstractAsyncContextManager[None]:
        """Around what judges. Raises ContainerNotFoundError unless the container runs."""
        self._require_running()
        return self._components.ownership.confirming(refusals_only=refusals_only)

    @asynccontextmanager
    async def open_segment(self, name: str) -> AsyncIterator[SegmentHandle]:
        """Resolve, activate and pin."""
        async with self._confirming(refusals_only=True):
            segment = await self._components.mapper.resolve(name)
        try:
            await self._components.ownership.confirm()
            yield self._handle(segment)
        finally:
            segment.pins -= 1

    @asynccontextmanager
    async def _opened(self, name: str) -> AsyncIterator[SegmentHandle]:
        """The same for a verb that confirms what comes of it."""
        self._require_running()
        segment = await self._components.mapper.resolve(name)
        try:
            yield self._handle(segment)
        finally:
            segment.pins -= 1

    def _handle(self, segment: SegmentMetadata) -> SegmentHandle:
        return SegmentHandle(
            metadata=segment,
            processor=self._components.processor,
            mapper=self._components.mapper,
        )

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        async with self._confirming(refusals_only=True):
            segment = await self._components.mapper.create(name, attributes)
            try:
                return properties_of(segment, self._container_id)
            finally:
                segment.pins -= 1

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        async with self._confirming(refusals_only=True), self._opened(name) as handle:
            await asyncio.shield(handle.update_attributes(updates))

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        async with self._confirming(refusals_only=keys is not None), self._opened(name) as handle:
            if keys is not None:
                return await handle.load_attributes(keys)
            return await self._components.queries.all_attributes(handle.metadata)

    async def seal(self, name: str) -> int:
        async with self._confirming(refusals_only=True), self._opened(name) as handle:
            return await asyncio.shield(self._components.processor.seal(handle.metadata))

    async def truncate(self, name: str, offset: int, segment_id: SegmentId | None = None) -> None:
        """With an id: raises SegmentNotFoundError if the name is another segment's by now."""
        async with self._confirming(refusals_only=True), self._opened(name) as handle:
            if segment_id not in (None, handle.segment_id):
                raise SegmentNotFoundError(name)
            handle.require_no_table()
            await asyncio.shield(self._components.processor.truncate(handle.metadata, offset))

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        async with self._confirming(refusals_only=True):
            return await self._merges.merge(
                target, source, attribute_updates=attribute_updates, seal_source=seal_source
            )

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        async with self._confirming(refusals_only=True):
            return await self._merges.merge_all(target, sources, seal_sources=seal_sources)

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        async with self._confirming(refusals_only=True), self._opened(target) as handle:
            await handle.forget_merged(sources)

    async def delete(self, name: str) -> None:
        async with self._confirming(refusals_only=True), self._opened(name) as handle:
            await asyncio.shield(self._components.processor.delete(handle.metadata))

    async def info(self, name: str) -> SegmentProperties:
        async with self._confirming():
            return await self._components.queries.info(name)

    async def flush(self, name: str | None = None) -> None:
        """Returns when everything acknowledged before is in Tier 2."""
        async with self._confirming(refusals_only=True), AsyncExitStack() as opened:
            if name is not None:
                await opened.enter_async_context(self._opened(name))
            await self._components.housekeeping.flush()

    async def shorten_log(self) -> None:
        """Returns when its next owner would replay only what was logged since the call. It serves all the while."""
        self._require_running()
        checkpoint = SequenceNumber(await self._components.processor.checkpoint())
        await self._components.housekeeping.flush()
        await self._components.source.wait_until_log_begins_at(checkpoint)

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        async with self._confirming():
            return await self._components.queries.list_segments(prefix, start_after, limit)

    @asynccontextmanager
    async def open_table(self, name: str) -> AsyncIterator[Table]:
        """Resolve, activate and pin. What its table reads is confirmed then."""
        async with AsyncExitStack() as opened:
            async with self._confirming(refusals_only=True):
                table = await opened.enter_async_context(self._components.tables.open_table(name))
            yield table

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        async with self._confirming(refusals_only=True):
            await self._components.tables.create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        async with self._confirming(refusals_only=True):
            await self._components.tables.delete_table(name, must_be_empty=must_be_empty)

    @property
    def backups(self) -> ContainerBackups:
        """Snapshots of the manifest. Raises ContainerNotFoundError."""
        self._require_running()
        return self._backups

    async def _settle_table(self, name: str) -> None:
        try:
            async with self._opened(name) as handle:
                await asyncio.shield(handle.barrier())
        except SegmentNotFoundError:
            return

    # --- health and metrics ----------------------------------------------------------------------

    def health(self) -> ContainerHealth:
        """What `/health` says of it, now."""
        reason, delay_seconds, ready = "", 0.0, False
        storage_state = storage_cause = complaint = ""
        if self._is_running:
            processor = self._components.processor
            housekeeping = self._components.housekeeping
            throttle = processor.throttle
            reason = "tier1_full" if processor.log_full else throttle.reason
            delay_seconds = throttle.delay_seconds
            ready = processor.failure is None
            storage_state = housekeeping.storage_state
            storage_cause = housekeeping.storage_cause
            full = str(log_full_error()) if processor.log_full else ""
            complaint = "; ".join(filter(None, (full, self._components.expiry.complaint())))
        return ContainerHealth(
            container_id=self._container_id,
            state=self._lifecycle_state,
            ready=ready,
            epoch=self._recovered.metadata.epoch,
            throttle=reason,
            throttle_delay_seconds=delay_seconds,
            storage_state=storage_state,
            active_segments=len(self._recovered.metadata.by_id),
            unflushed_bytes=self._recovered.read_index.unflushed_bytes,
            cause="" if self._cause is None else str(self._cause),
            storage_cause=storage_cause,
            complaint=complaint,
        )

    def settle_clocks(self) -> None:
        """A person says that the present time is right: rules of age go on."""
        if self._is_running:
            self._components.expiry.clock_watch.settle()

    def metrics(self) -> dict[str, float]:
        """Its numbers under the names by which `/metrics` shows them, now; none while it does not run.

        Names that end in `_total` are counters from the start of the process, all others are gauges.
        """
        if not self._is_running:
            return {}
        log, storage = self._recovered.log.statistics(), self._recovered.storage.statistics()
        read_index = self._recovered.read_index.statistics()
        written = self._components.processor.statistics()
        return {
            **self._components.mapper.metrics(),
            "append_operations_total": written.appended_operations,
            "append_bytes_total": written.appended_bytes,
            "frames_total": written.frames,
            "frame_bytes_total": written.frame_bytes,
            "queued_operations": written.queued_operations,
            "waiting_requests": written.waiting_requests,
            "tier1_outstanding_bytes": log.outstanding_bytes,
            "tier1_stored_bytes": log.stored_bytes,
            "tier1_sync_seconds": log.sync_seconds_recent,
            "tier1_cut_frames_total": log.cut_frames,
            "tier2_puts_total": storage.puts,
            "tier2_gets_total": storage.gets,
            "tier2_put_bytes_total": storage.put_bytes,
            "tier2_get_bytes_total": storage.get_bytes,
            "tier2_bytes_before_compression_total": storage.stored_bytes_before_compression,
            "tier2_bytes_after_compression_total": storage.stored_bytes_after_compression,
            "tier2_checksum_failures_total": storage.checksum_failures,
            "tier2_garbage_objects": storage.garbage_objects,
            "tier2_joined_chunks_total": storage.joined_chunks,
            "tier2_joined_bytes_total": storage.joined_bytes,
            "tier2_scrubbed_chunks_total": storage.scrubbed_chunks,
            "tier2_scrubbed_bytes_total": storage.scrubbed_bytes,
            "tier2_scrub_damages_total": storage.scrub_damages,
            "tier2_scrub_repairs_total": storage.scrub_repairs,
            "tier2_scrub_passes_total": storage.scrub_passes,
            "tier2_last_scrubbed_seconds": storage.last_scrubbed_ms / 1000,
            "unflushed_bytes": read_index.unflushed_bytes,
            "indexed_segments": read_index.segments,
            "tail_waiters": read_index.waiters,
            "storage_fetches_running": read_index.fetches_running,
            "storage_fetches_total": read_index.fetches,
            "storage_fetches_joined_total": read_index.fetches_joined,
            "storage_fetched_bytes_total": read_index.fetched_bytes,
            "expiry_truncations_total": self._components.expiry.truncations,
            "throttle_delay_seconds": min(
                self._components.processor.throttle.delay_seconds, THROTTLE_DELAY_SECONDS_MAX
            ),
            "last_acknowledged_sequence_number": self._components.source.acknowledged,
        }

    def check(self) -> None:
        """Prove the invariants of every part; O(everything)."""
        self._recovered.metadata.check()
        self._recovered.memory_log.check()
        for segment in self._recovered.metadata.by_id.values():
            segment.read_index.check()

    @property
    def container_metadata(self) -> ContainerMetadata:
        """For checkers and benchmarks."""
        return self._recovered.metadata


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real cause inside nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return first_cause(error)
        return error
    raise AssertionError("an empty exception group")
