"""The simplest store that keeps every promise of SegmentApi, and ways to break each of them.

It is there to try the workload, the model and the checkers on something small: without bugs no seed may fail, with any
one of BUGS some seed must. State is a list of operations on a disk that knows `written` and `synced`; memory is the
result of replaying it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from segmentstore.contracts.containers import BackupOwner, ContainerHealth, ContainerState
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerStoppedError,
    MergeRefusedError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentNotSealedError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    ReadResultEntryKind,
    SegmentProperties,
)
from tests.sim.loop import SimLoop
from tests.sim.no_tables import NoTables
from tests.sim.reference_attributes import judge
from tests.sim.reference_segment import ReferenceEntry, ReferenceSegment
from tests.sim.reference_state import Change, Memory, ReferenceDisk, SegmentState


class ReferenceContainer(NoTables):
    """A SegmentContainer. One of BUGS may be planted in it."""

    def __init__(
        self, loop: SimLoop, container_id: int, disk: ReferenceDisk, bug: str = ""
    ) -> None:
        self._loop = loop
        self._id = container_id
        self._disk = disk
        self._bug = bug
        self._committed = Memory()
        self._pending = Memory()
        self._epoch = 0
        self._state = ContainerState.CREATED
        self._queue: list[tuple[Change, asyncio.Future[int]]] = []
        self._in_flight: list[tuple[Change, asyncio.Future[int]]] = []
        self._work = asyncio.Event()
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._junk = bytes(64)

    @property
    def container_id(self) -> ContainerId:
        return ContainerId(self._id)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._state = ContainerState.STARTING
        self._disk.epoch += 1
        self._epoch = self._disk.epoch
        if self._bug != "tail served before it is synced":
            await self._loop.run_in_executor(None, self._disk.sync, self._epoch, self._bug)
        for operation in self._disk.operations:
            self._committed.apply(operation, self._bug, replaying=True)
            self._pending.apply(operation, self._bug, replaying=True)
        self._state = ContainerState.RUNNING

    async def run(self) -> None:
        try:
            while True:
                await self._work.wait()
                await self._commit_batch()
        except SegmentStoreError:
            self._state = ContainerState.FAILED
            raise
        finally:
            self._stop()

    async def shorten_log(self) -> None:
        """It has none."""

    async def close(self) -> None:
        self._state = ContainerState.STOPPED
        self._stop()

    def _stop(self) -> None:
        waiting: list[asyncio.Future[Any]] = [f for _, f in self._in_flight + self._queue]
        waiting += [f for waiters in self._waiters.values() for f in waiters]
        for future in waiting:
            if not future.done():
                future.set_exception(ContainerStoppedError("container stopped"))
                future.exception()
        self._queue.clear()
        self._in_flight.clear()
        self._waiters.clear()

    async def _commit_batch(self) -> None:
        batch = self._in_flight = self._queue[:3]
        del self._queue[:3]
        if not self._queue:
            self._work.clear()
        operations = [operation for operation, _ in batch]
        if self._bug == "delete not logged":
            operations = [o for o in operations if o.kind != "delete"]
        if self._bug == "attribute without bytes":
            operations = [
                part
                for o in operations
                for part in ([replace(o, kind="attributes", data=b""), o] if o.data else [o])
            ]
        await self._loop.run_in_executor(None, self._disk.write, operations, self._epoch, self._bug)
        if self._bug == "ack before sync":
            self._complete(batch)
            batch = []
        await self._loop.run_in_executor(None, self._disk.sync, self._epoch, self._bug)
        self._complete(batch)

    def _complete(self, batch: list[tuple[Change, "asyncio.Future[int]"]]) -> None:
        for operation, future in batch:
            self._committed.apply(operation, self._bug)
            length = len(self._committed.segments[operation.segment_id].content)
            if not future.done():
                future.set_result(length)
            self._wake(operation.segment_id)
            if operation.source_id:
                self._wake(operation.source_id)

    def _wake(self, segment_id: int) -> None:
        waiters = self._waiters.pop(segment_id, [])
        if self._bug == "lost wake-up" and len(waiters) > 1:
            self._waiters[segment_id] = [waiters.pop()]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- verbs ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_segment(self, name: str) -> AsyncIterator[ReferenceSegment]:
        self._must_run()
        yield ReferenceSegment(self, self._committed.find(name).segment_id, name)

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        self._must_run()
        if name in self._pending.names:
            raise await self._when_committed(SegmentExistsError(name))
        segment_id = self._disk.next_segment_id
        self._disk.next_segment_id += 1
        values = {update.key: update.value for update in attributes}
        await asyncio.shield(self._submit(Change("create", segment_id, name, attributes=values)))
        return self.properties(segment_id)

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        state = await self._find_pending(name)
        values = judge(state, updates, heedless=self._bug == "condition ignored")
        await asyncio.shield(
            self._submit(Change("attributes", state.segment_id, attributes=values))
        )

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        self._must_run()
        values = self._committed.find(name).attributes
        return {key: values[key] for key in (values if keys is None else keys) if key in values}

    async def seal(self, name: str) -> int:
        state = await self._find_pending(name)
        return await asyncio.shield(self._submit(Change("attributes", state.segment_id, seal=True)))

    async def truncate(self, name: str, offset: int) -> None:
        state = await self._find_pending(name)
        if offset > len(state.content):
            raise await self._when_committed(
                BadOffsetError(name, expected=len(state.content), given=offset)
            )
        await asyncio.shield(self._submit(Change("truncate", state.segment_id, offset=offset)))

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        if target == source:
            raise MergeRefusedError("a segment cannot be merged into itself")
        into = await self._find_pending(target)
        try:
            out = await self._find_pending(source)
        except SegmentNotFoundError:
            if self._bug != "merge forgotten" and source in into.merged:
                return into.merged[source]
            raise
        if not (out.sealed or seal_source):
            raise await self._when_committed(SegmentNotSealedError(source))
        if out.start:
            raise await self._when_committed(SegmentTruncatedError(source, start_offset=out.start))
        if into.sealed:
            raise await self._when_committed(SegmentSealedError(target, length=len(into.content)))
        values = judge(into, attribute_updates, heedless=self._bug == "condition ignored")
        return await asyncio.shield(
            self._submit(
                Change("merge", into.segment_id, source_id=out.segment_id, attributes=values)
            )
        )

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        return [await self.merge(target, source, seal_source=seal_sources) for source in sources]

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        state = await self._find_pending(target)
        for source in sources:
            state.merged.pop(source, None)

    async def delete(self, name: str) -> None:
        state = await self._find_pending(name)
        await asyncio.shield(self._submit(Change("delete", state.segment_id)))

    async def info(self, name: str) -> SegmentProperties:
        self._must_run()
        return self.properties(self._committed.find(name).segment_id)

    async def flush(self, name: str | None = None) -> None:
        self._must_run()

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        self._must_run()
        names = sorted(n for n in self._committed.names if n.startswith(prefix) and n > start_after)
        return [self.properties(self._committed.names[name]) for name in names[:limit]]

    def health(self) -> ContainerHealth:
        running = self._state is ContainerState.RUNNING
        return ContainerHealth(
            self.container_id, self._state, running, self._epoch, "", 0.0, "ok", 0, 0, ""
        )

    @property
    def backups(self) -> BackupOwner:
        raise NotImplementedError("it has no Tier 2")

    def settle_clocks(self) -> None:
        """It has no clock."""

    def metrics(self) -> dict[str, float]:
        return {}

    # --- what a segment does ----------------------------------------------------------------------

    def properties(self, segment_id: int) -> SegmentProperties:
        self._must_run()
        state = self._committed.segments[segment_id]
        if state.gone:
            raise SegmentNotFoundError(state.name)
        return state.properties(self.container_id)

    def append(
        self,
        segment_id: int,
        data: bytes,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        seal: bool,
    ) -> "asyncio.Future[int]":
        try:
            self._must_run()
            state = self._pending.segments[segment_id]
            if state.gone:
                raise SegmentNotFoundError(state.name)
            if state.sealed:
                raise SegmentSealedError(state.name, length=len(state.content))
            if offset is not None and offset != len(state.content):
                raise BadOffsetError(state.name, expected=len(state.content), given=offset)
            values = judge(state, updates, heedless=self._bug == "condition ignored")
        except SegmentStoreError as error:
            return self._refuse(error)
        return self._submit(Change("append", segment_id, data=data, attributes=values, seal=seal))

    def barrier(self, segment_id: int) -> "asyncio.Future[int]":
        return self._submit(Change("attributes", segment_id))

    def committed(self, segment_id: int) -> SegmentState:
        return self._committed.segments[segment_id]

    def pending(self, segment_id: int) -> SegmentState:
        return self._pending.segments[segment_id]

    async def read(
        self, segment_id: int, offset: int, max_length: int
    ) -> AsyncGenerator[ReferenceEntry, None]:
        state = self._committed.segments[segment_id]
        if not 0 <= offset <= len(state.content):
            raise BadOffsetError(state.name, expected=len(state.content), given=offset)
        end = offset + max_length
        while offset < end:
            self._must_run()
            if state.gone:
                raise SegmentNotFoundError(state.name)
            length = len(state.content) - (self._bug == "last byte not readable")
            step = bytes(state.content[offset : min(end, offset + 100, length)])
            if offset < state.start:
                kind = ReadResultEntryKind.TRUNCATED
            elif step:
                kind = ReadResultEntryKind.CACHE
                if self._bug == "recycled bytes in a read" and self._loop.random.random() < 0.01:
                    step = self._junk[: len(step)]
            elif state.sealed:
                kind = ReadResultEntryKind.END_OF_SEGMENT
            else:
                kind = ReadResultEntryKind.FUTURE
            yield ReferenceEntry(self, state, kind, offset, step)
            if not step:
                return
            offset += len(step)
            await asyncio.sleep(self._loop.random.expovariate(2000))

    def read_nowait(self, segment_id: int, offset: int, length_max: int) -> bytes | None:
        self._must_run()
        state = self._committed.segments[segment_id]
        if state.gone:
            raise SegmentNotFoundError(state.name)
        if not 0 <= offset <= len(state.content):
            raise BadOffsetError(state.name, expected=len(state.content), given=offset)
        if offset < state.start:
            raise SegmentTruncatedError(state.name, start_offset=state.start)
        return bytes(state.content[offset : offset + length_max]) or None

    def readable(self, segment_id: int, offset: int) -> "asyncio.Future[None]":
        state = self._committed.segments[segment_id]
        waiter: asyncio.Future[None] = self._loop.create_future()
        if (
            offset < len(state.content)
            or state.sealed
            or state.gone
            or self._state is not ContainerState.RUNNING
        ):
            waiter.set_result(None)
        else:
            self._waiters.setdefault(segment_id, []).append(waiter)
        return waiter

    async def tail(self, state: SegmentState, offset: int) -> bytes:
        while len(state.content) <= offset:
            self._must_run()
            if state.gone:
                raise SegmentNotFoundError(state.name)
            if state.sealed:
                return b""
            await self.readable(state.segment_id, offset)
        return bytes(state.content[offset:])

    # --- inside -----------------------------------------------------------------------------------

    def _must_run(self) -> None:
        if self._state is not ContainerState.RUNNING:
            raise ContainerStoppedError("container does not run")

    async def _find_pending(self, name: str) -> SegmentState:
        self._must_run()
        try:
            return self._pending.find(name)
        except SegmentNotFoundError as error:
            raise await self._when_committed(error) from None

    def _submit(self, operation: Change) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = self._loop.create_future()
        self._pending.apply(operation, self._bug)
        self._queue.append((operation, future))
        self._work.set()
        return future

    def _refuse(self, error: SegmentStoreError) -> "asyncio.Future[int]":
        """Deliver a refusal when everything it was judged against has committed (H24)."""
        future: asyncio.Future[int] = self._loop.create_future()
        behind = self._last()
        if behind is None or self._bug == "refusal judged on pending state":
            future.set_exception(error)
            return future

        def deliver(done: "asyncio.Future[int]") -> None:
            if not future.done():
                future.set_exception(done.exception() or error)

        behind.add_done_callback(deliver)
        return future

    async def _when_committed(self, error: SegmentStoreError) -> SegmentStoreError:
        behind = self._last()
        if behind is not None and self._bug != "refusal judged on pending state":
            await asyncio.shield(behind)
        return error

    def _last(self) -> "asyncio.Future[int] | None":
        waiting = self._in_flight + self._queue
        return waiting[-1][1] if waiting and not waiting[-1][1].done() else None
