"""The cluster of tests/controller with everything beyond streams, and small words for what clients do."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from random import Random

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import StreamSegment
from segmentstore.codec.controller_records.transaction_records import NO_TIMESTAMP
from segmentstore.codec.stream_names import transaction_id_of, transaction_segment
from segmentstore.controller.components import ControllerComponents
from segmentstore.controller.settings import ControllerSettings
from segmentstore.controller.streams.stream_history import all_scopes
from segmentstore.controller.streams.stream_queries import Successor
from segmentstore.controller.transactions.transaction_states import Phase
from tests.controller.cluster import Cluster
from tests.controller.crashing_doors import CrashingSegments, CrashingTables

TxnId = api.TxnId
State = api.TxnState.State


class FeatureCluster(Cluster):
    """Transactions are finished inside `finishing()`; the other components are driven by the tests, step by step."""

    def __init__(
        self, *, settings: ControllerSettings | None = None, forget_seconds: float = 0.0
    ) -> None:
        given = settings or ControllerSettings()
        self.controller_settings = replace(
            given, transactions=replace(given.transactions, forget_seconds=forget_seconds)
        )
        self.random = Random(1)
        self.before_start: Callable[[FeatureCluster], Awaitable[None]] | None = None
        super().__init__(settings=self.controller_settings.streams)

    def _build(self) -> None:
        self.segments = CrashingSegments(self.memory_segments, self.plan)
        self.tables = CrashingTables(self.memory_tables, self.plan)
        self.components = ControllerComponents(
            segments=self.segments,
            tables=self.tables,
            wall_clock=self.clock,
            random=self.random,
            settings=self.controller_settings,
        )
        self.metadata = self.components.metadata
        self.streams = self.components.streams
        self.scopes = self.components.scopes
        self.transactions = self.components.transactions

    async def start(self) -> None:
        if self.before_start is not None:
            await self.before_start(self)
        await self.metadata.start()
        await self.transactions.start()
        await self.scopes.resume_all()
        async with aclosing(all_scopes(self.metadata)) as scopes:
            async for scope in scopes:
                await self.streams.operations.resume(scope)
                await self.components.reader_groups.items.resume(scope)
                await self.components.key_value_tables.items.resume(scope)

    @asynccontextmanager
    async def finishing(self) -> AsyncIterator[None]:
        """Transactions are finished in the background."""
        task = asyncio.create_task(self.transactions.run())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- what clients do -------------------------------------------------------------------------

    async def begin(self, stream: str, *, lease_ms: int = 60_000) -> api.CreateTxnResponse:
        return await self.transactions.create_transaction(
            api.CreateTxnRequest(streamInfo=self.info(stream), lease=lease_ms)
        )

    async def write(
        self, stream: str, begun: api.CreateTxnResponse, events: Sequence[bytes]
    ) -> None:
        """Event n goes to the n-th segment of the transaction, and round again."""
        history = await self.streams.operations.history("s", stream)
        ranges = begun.activeSegments
        for place, event in enumerate(events):
            parent = history.segment_name(ranges[place % len(ranges)].segmentId.segmentId)
            name = transaction_segment(parent, id_of(begun.txnId))
            async with self.memory_segments.open_segment(name) as segment:
                await segment.append(framed(event), events=1)

    async def commit(
        self, stream: str, txn: TxnId, *, writer: str = "", timestamp: int = NO_TIMESTAMP
    ) -> api.TxnStatus.Status:
        answer = await self.transactions.commit_transaction(
            api.TxnRequest(
                streamInfo=self.info(stream), txnId=txn, writerId=writer, timestamp=timestamp
            )
        )
        return answer.status

    async def abort(self, stream: str, txn: TxnId) -> api.TxnStatus.Status:
        answer = await self.transactions.abort_transaction(
            api.TxnRequest(streamInfo=self.info(stream), txnId=txn)
        )
        return answer.status

    async def state(self, stream: str, txn: TxnId) -> api.TxnState.State:
        answer = await self.transactions.check_transaction_state(
            api.TxnRequest(streamInfo=self.info(stream), txnId=txn)
        )
        return answer.state

    async def ping(self, stream: str, txn: TxnId, *, lease_ms: int) -> api.PingTxnStatus.Status:
        answer = await self.transactions.ping_transaction(
            api.PingTxnRequest(streamInfo=self.info(stream), txnId=txn, lease=lease_ms)
        )
        return answer.status

    async def settled(self, stream: str) -> None:
        """Until no transaction of the stream is committing or aborting, and all are forgotten by their segments."""
        for _ in range(10_000):
            if not self.has_work(stream):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"never settles complaints={self.components.completer.complaints()}")

    def has_work(self, stream: str) -> bool:
        """Whether transactions are committing, aborting, or to be forgotten."""
        states = self.components.transaction_states.known("s", stream)
        return states is not None and (
            states.has(Phase.JOINING, Phase.COMMITTING, Phase.ABORTING, Phase.MERGED)
            or states.has_work
        )

    async def check_epochs(self, stream: str) -> None:
        """The stream's records and segments fit each other; transactions that are open may have segments besides."""
        history = await self.streams.operations.history("s", stream)
        await self._check_stream(history)

    async def append_event(self, stream: str, segment_id: int, event: bytes) -> None:
        history = await self.streams.operations.history("s", stream)
        async with self.memory_segments.open_segment(history.segment_name(segment_id)) as segment:
            await segment.append(framed(event), events=1)

    async def scale(self, stream: str, ranges: Sequence[tuple[float, float]]) -> None:
        """Replace all active segments."""
        await self.streams.scaling.scale(
            "s", stream, sealed=await self.current(stream), ranges=ranges
        )

    async def read_all(self, stream: str) -> dict[int, list[bytes]]:
        """The events of every segment of the stream, in the order of epochs; transactions not counted."""
        history = await self.streams.operations.history("s", stream)
        state = await history.state()
        events: dict[int, list[bytes]] = {}
        for number in range(state.last_epoch + 1):
            for segment in (await history.epoch(number)).segments:
                name = history.segment_name(segment.segment_id)
                events[segment.segment_id] = events_in(self.memory_segments.content(name))
        return events

    async def read_in_order(self, stream: str) -> list[bytes]:
        """The events as one reader meets them that starts at the head and follows successors."""
        ready = [each.segment_id for each in (await self._first_epoch(stream))]
        history = await self.streams.operations.history("s", stream)
        done: list[int] = []
        events: list[bytes] = []
        while ready:
            segment_id = ready.pop(0)
            done.append(segment_id)
            name = history.segment_name(segment_id)
            events += events_in(self.memory_segments.content(name))
            if not (await self.memory_segments.info(name)).sealed:
                continue
            for successor in await self._successors(stream, segment_id):
                born = successor.segment.segment_id
                if born not in ready and all(each in done for each in successor.predecessors):
                    ready.append(born)
        return events

    def info(self, stream: str) -> api.StreamInfo:
        return api.StreamInfo(scope="s", stream=stream)

    async def _first_epoch(self, stream: str) -> Sequence[StreamSegment]:
        history = await self.streams.operations.history("s", stream)
        return list((await history.epoch(0)).segments)

    async def _successors(self, stream: str, segment_id: int) -> Sequence[Successor]:
        return await self.streams.queries.successors("s", stream, segment_id)


def id_of(txn: TxnId) -> int:
    return transaction_id_of(high=txn.highBits, low=txn.lowBits)


def framed(event: bytes) -> bytes:
    return struct.pack(">ii", 0, len(event)) + event


def events_in(content: bytes) -> list[bytes]:
    events: list[bytes] = []
    position = 0
    while position < len(content):
        _, length = struct.unpack_from(">ii", content, position)
        events.append(content[position + 8 : position + 8 + length])
        position += 8 + length
    return events
