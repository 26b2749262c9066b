"""The storage writer: moves what is committed from the log to Tier 2, in order, many segments in one publication.

Two loops work side by side. One reads items from the log into aggregators. The other flushes: select what is due,
agree with Tier 2 on where each segment stands (containers.writer.reconciler), fold and check it
(containers.writer.publication), publish, tell the container, acknowledge. Reading goes on while a publication is
under way; publications follow one another. What earlier owners left in Tier 2 is looked for beside both, once.

Invariants:
- a published record is the state after exactly the operations that were folded into it;
- acknowledge(n) only when everything of every operation at or below n is under a published manifest;
- the container learns of a publication after it is durable, never before: storage_length is never ahead of Tier 2;
- an operation is published only when all its items were handed out: never an append without its seal;
- one publication at a time, and neither garbage collection nor maintenance beside it.

When Tier 2 fails: a publication whose outcome may be unknown is handed in again, unchanged, until it succeeds, with
growing pauses. When it is full and segments were deleted or truncated meanwhile, the publication is given up, the
deletions go alone until that succeeds (which settles what became of the given-up one), then small things that may
free space, all on top of what Tier 2 says when asked anew. So a disk full of one segment is freed by deleting it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from random import Random

from containers.container_settings import WriterSettings
from containers.writer.backlog import AckCalculator, Backlog, CachePressure, FlushKind
from containers.writer.data_source import WriterDataSource
from containers.writer.publication import PublicationBuilder, PublicationCompletion
from containers.writer.reconciler import Reconciler
from containers.writer.segment_flush import SegmentFlush
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    ErrorKind,
    SegmentStoreError,
    StorageError,
    StorageUnavailableError,
    StoreFullError,
)
from segmentstore.contracts.identifiers import NO_SEQUENCE_NUMBER, ContainerId, SequenceNumber
from segmentstore.contracts.storage import ClaimedManifest, Publication, Storage
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import wait_for_event

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A snapshot for `/health` and `/metrics`. Counters grow from the start of the writer."""

    state: str
    """"ok", "unavailable" or "full": Tier 2 as last seen."""
    last_error: str
    failures: int
    failures_in_a_row: int
    consumed_up_to: int
    acknowledged_up_to: int
    pending_segments: int
    pending_items: int
    pending_bytes: int
    publications: int
    published_bytes: int
    compared_bytes: int
    """Replayed bytes that were found equal to Tier 2's."""


class StorageWriter:
    """The storage writer of one container. Call start(), then run() once."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        source: WriterDataSource,
        storage: Storage,
        settings: WriterSettings,
        executor: Executor | None,
        random: Random,
    ) -> None:
        self._container_id = container_id
        self._source = source
        self._storage = storage
        self._settings = settings
        self._backlog = Backlog(source=source, settings=settings)
        self.reconciler = Reconciler(source=source, storage=storage, settings=settings)
        """Recovery tells it which replayed bytes to compare, before run()."""
        self._executor = executor
        self._builder = self._new_builder()
        self._completion = PublicationCompletion(
            source=source, backlog=self._backlog, reconciler=self.reconciler, settings=settings
        )
        self._health = WriterHealth(settings=settings, random=random)
        self._wake = asyncio.Event()
        self._claimed: ClaimedManifest | None = None
        self._stopped = False
        self._pressure = CachePressure()
        self._waiters = FlushWaiters()
        self._consumed_up_to = NO_SEQUENCE_NUMBER
        self._published_up_to = NO_SEQUENCE_NUMBER
        self._acknowledged_up_to = NO_SEQUENCE_NUMBER
        self._wake_ups = 0
        self._not_before = 0.0
        """Loop time before which another round would find nothing new, unless it is woken."""
        self._kind = FlushKind.NORMAL
        self._publications_since_maintenance = 0
        self._maintained_at = 0.0
        self._publications = 0
        self._published_bytes = 0

    # --- what the container calls -------------------------------------------------------------

    def start(self, claimed: ClaimedManifest) -> None:
        """Continue above the numbers of the manifest that was claimed. Before run()."""
        self._claimed = claimed
        self.reconciler.set_new_above(claimed.highest_sequence_number)

    async def run(self) -> None:
        """Work until cancelled. Raises StorageNotPrimaryError (fenced), ServiceHaltError, DataCorruptionError."""
        assert self._claimed is not None, "run() before start()"
        self._maintained_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._consume(), name="writer-consume")
                group.create_task(self._flush_loop(), name="writer-rounds")
                group.create_task(self._sweep_orphans(), name="writer-sweep")
        except BaseExceptionGroup as failures:
            # The first failure cancels the other loop, so it is the cause; the container reports it as it is.
            raise failures.exceptions[0] from None
        finally:
            self._stopped = True
            self._waiters.fail(ContainerStoppedError("storage writer has stopped"))

    async def flush(self, up_to: SequenceNumber) -> None:
        """Returns when everything of every operation at or below `up_to` is in Tier 2.

        Waits for operations that are not committed yet. Raises ContainerStoppedError.
        """
        if self._stopped:
            raise ContainerStoppedError("storage writer has stopped")
        if up_to <= self._published_up_to:
            return
        waiter = self._waiters.add(up_to)
        self._wake_up()
        await self._waiters.wait(waiter)

    def set_pressure(self, pressure: CachePressure) -> None:
        """Of the cache, now."""
        if pressure != self._pressure:
            self._pressure = pressure
            self._wake_up()

    @property
    def storage_is_full(self) -> bool:
        """Whether Tier 2 refused the latest publication for that."""
        return self._health.state is StorageState.FULL

    @property
    def pending_items(self) -> int:
        """Items taken from the log and not published, those of merged sources included."""
        return self._backlog.item_count

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            state=self._health.word,
            last_error=self._health.last_error,
            failures=self._health.failures,
            failures_in_a_row=self._health.failures_in_a_row,
            consumed_up_to=self._consumed_up_to,
            acknowledged_up_to=self._acknowledged_up_to,
            pending_segments=len(self._backlog),
            pending_items=self._backlog.item_count,
            pending_bytes=self._backlog.total_bytes,
            publications=self._publications,
            published_bytes=self._published_bytes,
            compared_bytes=self.reconciler.compared_bytes,
        )

    def describe(self) -> str:
        """Everything pending, for the message of a failed check. O(n)."""
        return f"{self.statistics()} {self._kind}\n{self._backlog.describe()}"

    def check(self) -> None:
        """Prove the invariants; O(pending items). Between two rounds or during one."""
        self._backlog.check()
        assert self._acknowledged_up_to <= self._published_up_to <= self._consumed_up_to, (
            f"acknowledged {self._acknowledged_up_to} published {self._published_up_to}"
            f" consumed {self._consumed_up_to}"
        )

    # --- reading ------------------------------------------------------------------------------

    async def _consume(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        while True:
            items = await self._source.read(settings.read_items_max)
            # Taken in the stretch of the read: what comes later is not among these items.
            handed_out = self._source.handed_out_sequence_number
            for first in range(0, len(items), settings.slice_count):
                now = loop.time()
                for item in items[first : first + settings.slice_count]:
                    self._backlog.consume(item, now)
                await asyncio.sleep(0)
            assert handed_out >= self._consumed_up_to, f"{handed_out} < {self._consumed_up_to}"
            self._consumed_up_to = handed_out
            self._wake_up()

    def _wake_up(self) -> None:
        self._wake_ups += 1
        self._not_before = 0.0
        self._wake.set()

    # --- rounds -------------------------------------------------------------------------------

    async def _flush_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due_at = max(self._flush_due_at(), self._not_before)
            maintenance_at = self._maintained_at + self._settings.maintenance_seconds
            if due_at <= now:
                await self._try(self._flush_once)
                if self._publications_since_maintenance >= self._settings.maintenance_publications:
                    await self._try(self._maintain)
            elif maintenance_at <= now:
                await self._try(self._maintain)
            else:
                await wait_for_event(self._wake, until=min(due_at, maintenance_at))
                self._wake.clear()

    def _flush_due_at(self) -> float:
        if len(self._waiters) or self._kind is not FlushKind.NORMAL:
            return 0.0
        if not len(self._backlog) and self._acknowledged_up_to < self._consumed_up_to:
            return 0.0
        return self._backlog.due_at(self._pressure)

    async def _flush_once(self) -> None:
        assert self._claimed is not None, "not started"
        started = asyncio.get_running_loop().time()
        wake_ups = self._wake_ups
        space_freeing_items = self._backlog.space_freeing_items
        up_to = self._consumed_up_to
        candidates = await self._backlog.select(
            started,
            pressure=self._pressure,
            forced_up_to=self._waiters.highest,
            kind=self._kind,
        )
        flushes: list[SegmentFlush] = []
        if candidates:
            await self.reconciler.resolve(candidates)
            flushes = await self._builder.plan(candidates, up_to=up_to, bytes_max=self._bytes_max())
        if flushes or self._kind is FlushKind.DELETIONS:
            publication = await self._builder.build(
                flushes,
                highest_segment_id=max(
                    self._claimed.highest_segment_id, self._backlog.highest_segment_id
                ),
                highest_sequence_number=max(
                    self._claimed.highest_sequence_number, self._consumed_up_to
                ),
            )
            try:
                await self._publish(publication, space_freeing_items)
            except _GivenUpError:
                self._give_up(flushes)
                return
            self._published_bytes += await self._completion.complete(flushes, started)
        elif wake_ups == self._wake_ups:
            # Nothing could be taken: the rest of what is due is still in the log.
            self._not_before = started + self._settings.look_again_seconds
        deletions = self._kind is FlushKind.DELETIONS
        self._kind = FlushKind.FRUGAL if deletions else FlushKind.NORMAL
        await self._acknowledge()

    def _bytes_max(self) -> int:
        settings = self._settings
        is_frugal = self._kind is FlushKind.FRUGAL
        return settings.frugal_bytes_max if is_frugal else settings.publication_bytes_max

    # --- publishing ---------------------------------------------------------------------------

    async def _publish(self, publication: Publication, space_freeing_items: int) -> None:
        """Until it succeeds. Raises _GivenUpError if Tier 2 is full and there is something to publish first.

        Even an empty one settles what became of one that was given up.
        """
        if not publication.segments and self._kind is FlushKind.NORMAL:
            return
        while True:
            try:
                await self._hand_over(publication)
            except (StorageError, StoreFullError) as error:
                if not is_retriable(error):
                    raise
                await self._pause(error)
                if self._health.state is StorageState.FULL:
                    await self._try(self._storage.collect_garbage)
                    freed = self._backlog.space_freeing_items > space_freeing_items
                    if freed or self._kind is FlushKind.DELETIONS:
                        raise _GivenUpError from error
            else:
                break
        self._health.succeeded()
        self._publications += 1
        self._publications_since_maintenance += 1

    async def _hand_over(self, publication: Publication) -> None:
        await self._storage.publish(publication)

    def _give_up(self, flushes: Sequence[SegmentFlush]) -> None:
        for flush in flushes:
            flush.aggregator.abandon()
            self.reconciler.note_unknown_outcome(flush.aggregator.segment_id)
        self._kind = FlushKind.DELETIONS

    # --- acknowledging ------------------------------------------------------------------------

    async def _acknowledge(self) -> None:
        calculator = self._new_ack_calculator()
        await self._backlog.recompute_marks(calculator)
        up_to = calculator.result
        assert up_to >= self._published_up_to, f"{up_to} < {self._published_up_to}"
        self._published_up_to = up_to
        self._waiters.reached(up_to)
        if up_to > self._acknowledged_up_to:
            await self.reconciler.compare_rest()
            await self._source.acknowledge(up_to)
            self._acknowledged_up_to = up_to

    def _new_ack_calculator(self) -> AckCalculator:
        return AckCalculator(self._consumed_up_to)

    def _new_builder(self) -> PublicationBuilder:
        return PublicationBuilder(
            source=self._source, settings=self._settings, executor=self._executor
        )

    # --- looking after Tier 2 -----------------------------------------------------------------

    async def _maintain(self) -> None:
        self._publications_since_maintenance = 0
        self._maintained_at = asyncio.get_running_loop().time()
        await self._storage.maintain()
        await self._storage.collect_garbage()
        await self._storage.scrub(self._source.read_cached)
        if self._health.state is StorageState.UNAVAILABLE:
            self._health.succeeded()

    async def _sweep_orphans(self) -> None:
        """Once for each claim, and beside the flushes: a large store has very many objects to look at."""
        while True:
            try:
                await self._storage.sweep_orphans()
            except (StorageError, StoreFullError) as error:
                if not is_retriable(error):
                    raise
                _LOG.info(
                    "container %d: orphans are looked for later: %s", self._container_id, error
                )
                await asyncio.sleep(self._settings.maintenance_seconds)
            else:
                return

    async def _try(self, step: Callable[[], Awaitable[object]]) -> None:
        """Once; if Tier 2 fails in a way that may pass, pause instead."""
        try:
            await step()
        except (StorageError, StoreFullError) as error:
            if not is_retriable(error):
                raise
            await self._pause(error)

    async def _pause(self, error: SegmentStoreError) -> None:
        seconds = self._health.failed(error)
        _LOG.warning(
            "container %d: Tier 2 is %s, trying again in %.1f s: %s",
            self._container_id,
            self._health.word,
            seconds,
            error,
        )
        await asyncio.sleep(seconds)


class _GivenUpError(Exception):
    """The publication will not be tried again: what may free space has to go first."""


class FlushWaiters:
    """Callers that wait until everything up to their sequence number is in Tier 2.

    Every waiter ends once: reached, failed or cancelled. There are as many as requests, which the edges bound.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], SequenceNumber] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def highest(self) -> SequenceNumber:
        """The highest number that a caller waits for. O(n)."""
        return max(self._waiters.values(), default=NO_SEQUENCE_NUMBER)

    def add(self, up_to: SequenceNumber) -> "asyncio.Future[None]":
        """Hand the result to wait()."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = up_to
        return waiter

    async def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Raises what fail() was given."""
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    def reached(self, up_to: SequenceNumber) -> None:
        """Everything at or below it is in Tier 2."""
        for waiter, wanted in self._waiters.items():
            if wanted <= up_to and not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """The storage writer has ended: every waiter gets the error."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)


class StorageState(Enum):
    """Tier 2 as the writer last saw it, in a word for `/health`."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    FULL = "full"


class WriterHealth:
    """How Tier 2 has been doing lately, and how long to leave it alone: failures in a row, and the pause after them."""

    def __init__(self, *, settings: WriterSettings, random: Random) -> None:
        self._backoff = Backoff(
            seconds_first=settings.retry_seconds_first,
            seconds_max=settings.retry_seconds_max,
            random=random,
        )
        self.state = StorageState.OK
        self.word = self.state.value
        """The state in the word of the object store, which may know more: throttled, clock_skew, ..."""
        self.failures = 0
        self.last_error = ""

    @property
    def failures_in_a_row(self) -> int:
        return self._backoff.attempts

    def succeeded(self) -> None:
        self.state = StorageState.OK
        self.word = self.state.value
        self._backoff.reset()
        self.last_error = ""

    def failed(self, error: SegmentStoreError) -> float:
        """Note the failure; gives the seconds to wait: doubling up to a limit, half of it by chance."""
        full = error.kind is ErrorKind.FULL
        self.state = StorageState.FULL if full else StorageState.UNAVAILABLE
        self.word = error.state if isinstance(error, StorageUnavailableError) else self.state.value
        self.last_error = str(error)
        self.failures += 1
        return self._backoff.next_seconds()


def is_retriable(error: SegmentStoreError) -> bool:
    """Whether the same call may succeed later. Fenced, corrupt and impossible are final."""
    return isinstance(error, StorageError | StoreFullError) and error.kind in (
        ErrorKind.UNAVAILABLE,
        ErrorKind.FULL,
    )
