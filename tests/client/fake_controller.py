"""A controller in a few hundred lines, over real gRPC, for the fake store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as messages
from segmentstore.codec.stream_names import (
    number_of,
    segment_name,
    table_segment,
    transaction_id_of,
    transaction_segment,
)
from tests.client.fake_store import FakeStore

Context: TypeAlias = "grpc.aio.ServicerContext[Message, Message]"

SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"


class ForeignCutError(Exception):
    """A cut names segments that its stream never had."""


class NotSealedError(Exception):
    """Nobody knows yet what will follow."""


@dataclass
class FakeStream:
    """Segments by epoch, and who follows whom."""

    config: messages.StreamConfig
    ranges: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Every segment that ever was."""
    epochs: list[list[int]] = field(default_factory=list)
    """Active segments by epoch."""
    following: dict[int, list[int]] = field(default_factory=dict)
    predecessors: dict[int, list[int]] = field(default_factory=dict)
    head: dict[int, int] = field(default_factory=dict)
    is_sealed: bool = False
    transactions: dict[int, int] = field(default_factory=dict)
    """State by id, numbered as TxnState."""

    @property
    def active(self) -> list[int]:
        return [] if self.is_sealed else self.epochs[-1]


@dataclass
class FakeTable:
    """A table's shape."""

    config: messages.KeyValueTableConfig
    numbers: range


class FakeController:
    """Its address is `address`; `unavailable` is how many more calls are refused."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.scopes: dict[str, dict[str, FakeStream]] = {}
        self.tables: dict[str, dict[str, FakeTable]] = {}
        self.table_numbers: dict[str, int] = {}
        """Where the numbers of a table that is created again begin."""
        self.groups: set[str] = set()
        self.address = ""
        self.unavailable = 0
        self.calls: list[str] = []
        self.authorizations: list[str] = []
        """What clients showed with their calls."""
        self.tokens_given = 0
        self.pings = 0
        self.leases_ms: list[int] = []
        """What these asked for."""
        self.lease_ms_max = 600_000
        self.is_too_old = False
        """Every transaction, for another lease."""

    @asynccontextmanager
    async def serving(self, *, port: int = 0) -> AsyncIterator["FakeController"]:
        server = grpc.aio.server()
        handlers = {
            name.removeprefix("rpc_"): grpc.unary_unary_rpc_method_handler(
                self._handler(getattr(self, name)),
                request_deserializer=getattr(self, name).__annotations__["request"].FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name in dir(self)
            if name.startswith("rpc_")
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        self.address = f"tcp://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await server.stop(None)

    def _handler(
        self, answer: Callable[[Message], Message]
    ) -> Callable[[Message, Context], Awaitable[Message]]:
        async def handle(request: Message, context: Context) -> Message:
            self.calls.append(answer.__name__.removeprefix("rpc_"))
            for name, value in context.invocation_metadata() or ():
                if name == "authorization":
                    self.authorizations.append(str(value))
            if self.unavailable:
                self.unavailable -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "recovering")
            try:
                return answer(request)
            except NotSealedError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "segment is not sealed")
                raise AssertionError("abort raises") from None
            except ForeignCutError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a cut is none of its stream")
                raise AssertionError("abort raises") from None
            except KeyError:
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
                raise AssertionError("abort raises") from None

        return handle

    def stream(self, info: messages.StreamInfo) -> FakeStream:
        return self.scopes[info.scope][info.stream]

    def rpc_getDelegationToken(self, request: messages.StreamInfo) -> Message:  # noqa: N802
        self.tokens_given += 1
        return messages.DelegationToken(
            delegationToken=f"{request.scope}/{request.stream} {self.tokens_given}"
        )

    def rpc_createScope(self, request: messages.ScopeInfo) -> Message:  # noqa: N802  # the RPC's name
        if request.scope in self.scopes:
            return messages.CreateScopeStatus(status="SCOPE_EXISTS")
        self.scopes[request.scope] = {}
        self.tables[request.scope] = {}
        return messages.CreateScopeStatus(status="SUCCESS")

    def rpc_deleteScope(self, request: messages.ScopeInfo) -> Message:  # noqa: N802
        if request.scope not in self.scopes:
            return messages.DeleteScopeStatus(status="SCOPE_NOT_FOUND")
        if self.scopes[request.scope]:
            return messages.DeleteScopeStatus(status="SCOPE_NOT_EMPTY")
        del self.scopes[request.scope]
        return messages.DeleteScopeStatus(status="SUCCESS")

    def rpc_listScopes(self, request: messages.ScopesRequest) -> Message:  # noqa: N802
        later = [name for name in sorted(self.scopes) if name > request.continuationToken.token][:2]
        token = later[-1] if later else request.continuationToken.token
        return messages.ScopesResponse(
            scopes=later, continuationToken=messages.ContinuationToken(token=token)
        )

    def rpc_listStreamsInScope(self, request: messages.StreamsInScopeRequest) -> Message:  # noqa: N802
        return self._streams(request.scope.scope, request.continuationToken.token, None)

    def rpc_listStreamsInScopeForTag(  # noqa: N802
        self, request: messages.StreamsInScopeWithTagRequest
    ) -> Message:
        return self._streams(request.scope.scope, request.continuationToken.token, request.tag)

    def _streams(self, scope: str, token: str, tag: str | None) -> Message:
        streams = self.scopes[scope]
        later = [
            name
            for name in sorted(streams)
            if name > token and (tag is None or tag in streams[name].config.tags.tag)
        ][:2]
        return messages.StreamsInScopeResponse(
            streams=[messages.StreamInfo(scope=scope, stream=name) for name in later],
            continuationToken=messages.ContinuationToken(token=later[-1] if later else token),
        )

    def rpc_createStream(self, request: messages.StreamConfig) -> Message:  # noqa: N802
        info = request.streamInfo
        if info.scope not in self.scopes:
            return messages.CreateStreamStatus(status="SCOPE_NOT_FOUND")
        if info.stream in self.scopes[info.scope]:
            return messages.CreateStreamStatus(status="STREAM_EXISTS")
        stream = self.scopes[info.scope][info.stream] = FakeStream(request)
        count = request.scalingPolicy.minNumSegments
        for number in range(count):
            stream.ranges[number] = (number / count, (number + 1) / count)
            self.store.create(segment_name(info.scope, info.stream, number))
        stream.epochs.append(list(range(count)))
        stream.head = dict.fromkeys(range(count), 0)
        return messages.CreateStreamStatus(status="SUCCESS")

    def rpc_updateStream(self, request: messages.StreamConfig) -> Message:  # noqa: N802
        stream = self.stream(request.streamInfo)
        if stream.is_sealed:
            return messages.UpdateStreamStatus(status="FAILURE")
        stream.config = request
        return messages.UpdateStreamStatus(status="SUCCESS")

    def rpc_getStreamConfiguration(self, request: messages.StreamInfo) -> Message:  # noqa: N802
        return self.stream(request).config

    def rpc_sealStream(self, request: messages.StreamInfo) -> Message:  # noqa: N802
        stream = self.stream(request)
        for segment_id in stream.active:
            self.store.seal(segment_name(request.scope, request.stream, segment_id))
        stream.is_sealed = True
        return messages.UpdateStreamStatus(status="SUCCESS")

    def rpc_truncateStream(self, request: messages.StreamCut) -> Message:  # noqa: N802
        info = request.streamInfo
        stream = self.stream(info)
        if stream.is_sealed or any(
            offset > len(self.store.segments[segment_name(info.scope, info.stream, each)].content)
            for each, offset in request.cut.items()
        ):
            return messages.UpdateStreamStatus(status="FAILURE")
        stream.head = dict(request.cut)
        for segment_id, offset in request.cut.items():
            name = segment_name(info.scope, info.stream, segment_id)
            self.store.segments[name].start_offset = offset
        return messages.UpdateStreamStatus(status="SUCCESS")

    def rpc_deleteStream(self, request: messages.StreamInfo) -> Message:  # noqa: N802
        if not self.stream(request).is_sealed:
            return messages.DeleteStreamStatus(status="STREAM_NOT_SEALED")
        del self.scopes[request.scope][request.stream]
        return messages.DeleteStreamStatus(status="SUCCESS")

    def _range(self, info: messages.StreamInfo, segment_id: int) -> messages.SegmentRange:
        low, high = self.stream(info).ranges[segment_id]
        return messages.SegmentRange(
            segmentId=messages.SegmentId(streamInfo=info, segmentId=segment_id),
            minKey=low,
            maxKey=high,
        )

    def rpc_getCurrentSegments(self, request: messages.StreamInfo) -> Message:  # noqa: N802
        ranges = [self._range(request, each) for each in self.stream(request).active]
        return messages.SegmentRanges(segmentRanges=ranges)

    def rpc_getEpochSegments(self, request: messages.GetEpochSegmentsRequest) -> Message:  # noqa: N802
        info = request.streamInfo
        ranges = [self._range(info, each) for each in self.stream(info).epochs[request.epoch]]
        return messages.SegmentRanges(segmentRanges=ranges)

    def rpc_getSegments(self, request: messages.GetSegmentsRequest) -> Message:  # noqa: N802
        info = request.streamInfo
        return messages.SegmentsAtTime(
            segments=[
                messages.SegmentsAtTime.SegmentLocation(
                    segmentId=messages.SegmentId(streamInfo=info, segmentId=each), offset=offset
                )
                for each, offset in self.stream(info).head.items()
            ]
        )

    def rpc_getSegmentsImmediatelyFollowing(self, request: messages.SegmentId) -> Message:  # noqa: N802
        stream = self.stream(request.streamInfo)
        if request.segmentId in stream.active:
            raise NotSealedError
        return messages.SuccessorResponse(
            segments=[
                messages.SuccessorResponse.SegmentEntry(
                    segment=self._range(request.streamInfo, each), value=stream.predecessors[each]
                )
                for each in stream.following.get(request.segmentId, [])
            ]
        )

    def rpc_getURI(self, request: messages.SegmentId) -> Message:  # noqa: N802
        return messages.NodeUri(endpoint=self.store.endpoint.host, port=self.store.endpoint.port)

    def rpc_scale(self, request: messages.ScaleRequest) -> Message:
        info = request.streamInfo
        stream = self.stream(info)
        sealed = list(request.sealedSegments)
        if any(each not in stream.active for each in sealed):
            return messages.ScaleResponse(status="PRECONDITION_FAILED")
        epoch = len(stream.epochs)
        number = max(number_of(each) for each in stream.ranges) + 1
        new = []
        for index, entry in enumerate(request.newKeyRanges):
            segment_id = epoch << 32 | number + index
            new.append(segment_id)
            stream.ranges[segment_id] = (entry.start, entry.end)
            stream.predecessors[segment_id] = [
                each
                for each in sealed
                if stream.ranges[each][0] < entry.end and entry.start < stream.ranges[each][1]
            ]
            self.store.create(segment_name(info.scope, info.stream, segment_id))
        for each in sealed:
            stream.following[each] = [s for s in new if each in stream.predecessors[s]]
        stream.epochs.append([each for each in stream.active if each not in sealed] + new)
        for each in sealed:
            self.store.seal(segment_name(info.scope, info.stream, each))
        return messages.ScaleResponse(status="STARTED", epoch=epoch - 1)

    def rpc_checkScale(self, request: messages.ScaleStatusRequest) -> Message:  # noqa: N802
        done = len(self.stream(request.streamInfo).epochs) - 1 > request.epoch
        return messages.ScaleStatusResponse(status="SUCCESS" if done else "IN_PROGRESS")

    def rpc_createTransaction(self, request: messages.CreateTxnRequest) -> Message:  # noqa: N802
        info = request.streamInfo
        stream = self.stream(info)
        epoch = len(stream.epochs) - 1
        high, low = epoch << 32 | 7, len(stream.transactions)
        transaction_id = transaction_id_of(high=high, low=low)
        stream.transactions[transaction_id] = messages.TxnState.OPEN
        for each in stream.active:
            name = segment_name(info.scope, info.stream, each)
            self.store.create(transaction_segment(name, transaction_id))
        return messages.CreateTxnResponse(
            txnId=messages.TxnId(highBits=high, lowBits=low),
            activeSegments=[self._range(info, each) for each in stream.active],
        )

    def rpc_pingTransaction(self, request: messages.PingTxnRequest) -> Message:  # noqa: N802
        self.pings += 1
        self.leases_ms.append(request.lease)
        if request.lease > self.lease_ms_max:
            return messages.PingTxnStatus(status="LEASE_TOO_LARGE")
        state = self.stream(request.streamInfo).transactions[_number(request.txnId)]
        if state == messages.TxnState.OPEN:
            return messages.PingTxnStatus(
                status="MAX_EXECUTION_TIME_EXCEEDED" if self.is_too_old else "OK"
            )
        is_committed = state == messages.TxnState.COMMITTED
        return messages.PingTxnStatus(status="COMMITTED" if is_committed else "ABORTED")

    def rpc_commitTransaction(self, request: messages.TxnRequest) -> Message:  # noqa: N802
        return self._end(request, messages.TxnState.COMMITTED)

    def rpc_abortTransaction(self, request: messages.TxnRequest) -> Message:  # noqa: N802
        return self._end(request, messages.TxnState.ABORTED)

    def _end(self, request: messages.TxnRequest, state: int) -> messages.TxnStatus:
        info = request.streamInfo
        stream = self.stream(info)
        number = _number(request.txnId)
        if stream.transactions[number] != messages.TxnState.OPEN:
            is_so = stream.transactions[number] == state
            return messages.TxnStatus(status="SUCCESS" if is_so else "FAILURE")
        stream.transactions[number] = state
        for each in stream.active:
            name = segment_name(info.scope, info.stream, each)
            content = self.store.segments.pop(transaction_segment(name, number)).content
            if state == messages.TxnState.COMMITTED:
                self.store.segments[name].content += content
                self.store.segments[name].wake()
        return messages.TxnStatus(status="SUCCESS")

    def rpc_checkTransactionState(self, request: messages.TxnRequest) -> Message:  # noqa: N802
        found = self.stream(request.streamInfo).transactions.get(_number(request.txnId), 0)
        return messages.TxnState(state=messages.TxnState.State.Name(found))

    def rpc_createReaderGroup(self, request: messages.ReaderGroupConfiguration) -> Message:  # noqa: N802
        for each in request.startingStreamCuts:
            # A real one would keep whatever name it is told.
            stream = self.stream(each.streamInfo)
            if not set(each.cut) <= set(stream.ranges):
                raise ForeignCutError
        self.groups.add(f"{request.scope}/{request.readerGroupName}")
        return messages.CreateReaderGroupResponse(status="SUCCESS", config=request)

    def rpc_deleteReaderGroup(self, request: messages.ReaderGroupInfo) -> Message:  # noqa: N802
        self.groups.remove(f"{request.scope}/{request.readerGroup}")
        return messages.DeleteReaderGroupStatus(status="SUCCESS")

    def rpc_createKeyValueTable(self, request: messages.KeyValueTableConfig) -> Message:  # noqa: N802
        if request.kvtName in self.tables[request.scope]:
            return messages.CreateKeyValueTableStatus(status="TABLE_EXISTS")
        first = self.table_numbers.get(f"{request.scope}/{request.kvtName}", 1)
        table = FakeTable(request, range(first, first + request.partitionCount))
        self.tables[request.scope][request.kvtName] = table
        for number in table.numbers:
            segment = self.store.create(
                table_segment(request.scope, request.kvtName, number=number)
            )
            segment.entries = {}
            segment.key_length = request.primaryKeyLength + request.secondaryKeyLength
        return messages.CreateKeyValueTableStatus(status="SUCCESS")

    def rpc_deleteKeyValueTable(self, request: messages.KeyValueTableInfo) -> Message:  # noqa: N802
        table = self.tables[request.scope].pop(request.kvtName, None)
        if table is None:
            return messages.DeleteKVTableStatus(status="TABLE_NOT_FOUND")
        for number in table.numbers:
            del self.store.segments[table_segment(request.scope, request.kvtName, number=number)]
        self.table_numbers[f"{request.scope}/{request.kvtName}"] = table.numbers.stop
        return messages.DeleteKVTableStatus(status="SUCCESS")

    def rpc_getKeyValueTableConfiguration(self, request: messages.KeyValueTableInfo) -> Message:  # noqa: N802
        table = self.tables[request.scope].get(request.kvtName)
        if table is None:
            return messages.KeyValueTableConfigResponse(status="TABLE_NOT_FOUND")
        return messages.KeyValueTableConfigResponse(status="SUCCESS", config=table.config)

    def rpc_getCurrentSegmentsKeyValueTable(self, request: messages.KeyValueTableInfo) -> Message:  # noqa: N802
        numbers = self.tables[request.scope][request.kvtName].numbers
        count = len(numbers)
        info = messages.StreamInfo(scope=request.scope, stream=f"{request.kvtName}_kvtable")
        return messages.SegmentRanges(
            segmentRanges=[
                messages.SegmentRange(
                    segmentId=messages.SegmentId(streamInfo=info, segmentId=number),
                    minKey=place / count,
                    maxKey=(place + 1) / count,
                )
                for place, number in enumerate(numbers)
            ]
        )

    def rpc_listKeyValueTablesInScope(self, request: messages.KVTablesInScopeRequest) -> Message:  # noqa: N802
        scope, token = request.scope.scope, request.continuationToken.token
        later = [name for name in sorted(self.tables[scope]) if name > token][:2]
        return messages.KVTablesInScopeResponse(
            kvtables=[messages.KeyValueTableInfo(scope=scope, kvtName=name) for name in later],
            continuationToken=messages.ContinuationToken(token=later[-1] if later else token),
        )


def _number(message: messages.TxnId) -> int:
    return transaction_id_of(high=message.highBits, low=message.lowBits)


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
