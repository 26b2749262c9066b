"""What the client asks of the controller, in the client's own words.

`ControllerClient` asks about scopes, streams, their segments and reader groups, `TransactionCalls` about the
transactions of one stream, `TableCalls` about the key-value tables of one scope.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import NAMESPACE_URL, uuid5

from segmentstore.client.connection import Endpoint
from segmentstore.client.controller_channel import ControllerChannel, check_status, status_of
from segmentstore.client.errors import AlreadyExistsError, ClientError
from segmentstore.client.stream_config import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from segmentstore.client.stream_segments import SegmentRange, Successor
from segmentstore.codec.controller_api import controller_pb2 as messages
from segmentstore.codec.stream_names import transaction_halves, transaction_id_of

_RETENTION_LIMIT_MAX = (1 << 63) - 1
_NO_TRANSACTION_TIMESTAMP = -(1 << 63)


@dataclass(frozen=True, slots=True)
class StreamName:
    """A stream and its scope."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"

    def message(self) -> messages.StreamInfo:
        return messages.StreamInfo(scope=self.scope, stream=self.stream)


class TransactionState(Enum):
    """Where a transaction is in its life."""

    UNKNOWN = "unknown"
    """It never existed, or ended long ago."""
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A new transaction and the segments it writes to."""

    transaction_id: int
    ranges: Sequence[SegmentRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The shape of a table's keys, fixed for its life; lengths in bytes."""

    primary_key_length: int
    """Keys with the same primary part are in one partition."""
    secondary_key_length: int = 0
    partitions: int = 1

    @property
    def key_length(self) -> int:
        """Both parts together: the length of every key."""
        return self.primary_key_length + self.secondary_key_length


class ControllerClient:
    """Every verb raises what ControllerChannel raises; only what is particular is said."""

    def __init__(self, channel: ControllerChannel) -> None:
        self.channel = channel

    async def close(self) -> None:
        await self.channel.close()

    async def create_scope(self, scope: str) -> None:
        """Raises AlreadyExistsError."""
        answer = await self.channel.ask(
            "createScope",
            messages.ScopeInfo(scope=scope),
            messages.CreateScopeStatus,
            what="scope",
            name=scope,
            repeatable=False,
        )
        check_status(answer, what="scope", name=scope)

    async def delete_scope(self, scope: str) -> None:
        """Raises NotFoundError, NotEmptyError."""
        answer = await self.channel.ask(
            "deleteScope",
            messages.ScopeInfo(scope=scope),
            messages.DeleteScopeStatus,
            what="scope",
            name=scope,
            repeatable=False,
        )
        check_status(answer, what="scope", name=scope)

    async def list_scopes(self) -> Sequence[str]:
        """All of them."""
        found: list[str] = []
        token = ""
        while True:
            answer = await self.channel.ask(
                "listScopes",
                messages.ScopesRequest(continuationToken=messages.ContinuationToken(token=token)),
                messages.ScopesResponse,
                what="scopes",
                name="",
            )
            found.extend(answer.scopes)
            if not answer.scopes or answer.continuationToken.token == token:
                return found
            token = answer.continuationToken.token

    async def list_streams(self, scope: str, *, tag: str | None = None) -> Sequence[str]:
        """All streams of a scope, also internal ones; with `tag` those that carry it."""
        found: list[str] = []
        token = ""
        while True:
            continuation = messages.ContinuationToken(token=token)
            info = messages.ScopeInfo(scope=scope)
            if tag is None:
                answer = await self.channel.ask(
                    "listStreamsInScope",
                    messages.StreamsInScopeRequest(scope=info, continuationToken=continuation),
                    messages.StreamsInScopeResponse,
                    what="scope",
                    name=scope,
                )
            else:
                answer = await self.channel.ask(
                    "listStreamsInScopeForTag",
                    messages.StreamsInScopeWithTagRequest(
                        scope=info, tag=tag, continuationToken=continuation
                    ),
                    messages.StreamsInScopeResponse,
                    what="scope",
                    name=scope,
                )
            check_status(answer, what="scope", name=scope)
            found.extend(each.stream for each in answer.streams)
            if not answer.streams or answer.continuationToken.token == token:
                return found
            token = answer.continuationToken.token

    async def create_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Raises AlreadyExistsError, NotFoundError for the scope."""
        answer = await self.channel.ask(
            "createStream",
            _config_message(stream, config),
            messages.CreateStreamStatus,
            what="stream",
            name=str(stream),
            repeatable=False,
        )
        check_status(answer, what="stream", name=str(stream))

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        await self._update("updateStream", stream, _config_message(stream, config))

    async def seal_stream(self, stream: StreamName) -> None:
        await self._update("sealStream", stream, stream.message())

    async def truncate_stream(self, stream: StreamName, offsets: Mapping[int, int]) -> None:
        await self._update(
            "truncateStream",
            stream,
            messages.StreamCut(streamInfo=stream.message(), cut=dict(offsets)),
        )

    async def delete_stream(self, stream: StreamName) -> None:
        """Raises StateConflictError unless the stream is sealed."""
        answer = await self.channel.ask(
            "deleteStream",
            stream.message(),
            messages.DeleteStreamStatus,
            what="stream",
            name=str(stream),
            repeatable=False,
        )
        check_status(answer, what="stream", name=str(stream))

    async def stream_config(self, stream: StreamName) -> StreamConfig:
        answer = await self.channel.ask(
            "getStreamConfiguration",
            stream.message(),
            messages.StreamConfig,
            what="stream",
            name=str(stream),
        )
        scaling, retention = answer.scalingPolicy, answer.retentionPolicy
        return StreamConfig(
            ScalingPolicy(
                ScaleType(scaling.scaleType),
                scaling.targetRate,
                scaling.scaleFactor,
                max(1, scaling.minNumSegments),
            ),
            RetentionPolicy(
                RetentionType(retention.retentionType),
                retention.retentionParam
                if RetentionType(retention.retentionType) is not RetentionType.NONE
                else 0,
            ),
            tuple(answer.tags.tag),
        )

    async def current_segments(self, stream: StreamName) -> Sequence[SegmentRange]:
        """The segments that take events now, by range; none if the stream is sealed."""
        answer = await self.channel.ask(
            "getCurrentSegments",
            stream.message(),
            messages.SegmentRanges,
            what="stream",
            name=str(stream),
        )
        return ranges_of(answer.segmentRanges)

    async def epoch_segments(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        """The segments of one of the stream's epochs."""
        answer = await self.channel.ask(
            "getEpochSegments",
            messages.GetEpochSegmentsRequest(streamInfo=stream.message(), epoch=epoch),
            messages.SegmentRanges,
            what="stream",
            name=str(stream),
        )
        return ranges_of(answer.segmentRanges)

    async def head_offsets(self, stream: StreamName) -> Mapping[int, int]:
        """Where the stream begins: offsets by segment id."""
        answer = await self.channel.ask(
            "getSegments",
            messages.GetSegmentsRequest(streamInfo=stream.message(), timestamp=0),
            messages.SegmentsAtTime,
            what="stream",
            name=str(stream),
        )
        return {each.segmentId.segmentId: each.offset for each in answer.segments}

    async def successors(self, stream: StreamName, segment_id: int) -> Sequence[Successor]:
        """What follows a segment that ended; none if the stream is sealed."""
        answer = await self.channel.ask(
            "getSegmentsImmediatelyFollowing",
            messages.SegmentId(streamInfo=stream.message(), segmentId=segment_id),
            messages.SuccessorResponse,
            what="stream",
            name=str(stream),
        )
        return [Successor(range_of(each.segment), tuple(each.value)) for each in answer.segments]

    async def segment_endpoint(self, scope: str, stream: str, segment_id: int) -> Endpoint:
        """The segment store that serves the segment."""
        name = StreamName(scope, stream)
        answer = await self.channel.ask(
            "getURI",
            messages.SegmentId(streamInfo=name.message(), segmentId=segment_id),
            messages.NodeUri,
            what="stream",
            name=str(name),
        )
        return Endpoint(answer.endpoint, answer.port)

    async def delegation_token(self, scope: str, stream: str) -> str:
        """What segment stores take for the right to use the stream; empty where nobody asks for it."""
        name = StreamName(scope, stream)
        answer = await self.channel.ask(
            "getDelegationToken",
            name.message(),
            messages.DelegationToken,
            what="stream",
            name=str(name),
        )
        return str(answer.delegationToken)

    async def scale(
        self, stream: StreamName, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]
    ) -> int:
        """Begin to replace active segments by new ones; the epoch before it. Raises StateConflictError."""
        answer = await self.channel.ask(
            "scale",
            messages.ScaleRequest(
                streamInfo=stream.message(),
                sealedSegments=list(sealed),
                newKeyRanges=[
                    messages.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges
                ],
                scaleTimestamp=0,
            ),
            messages.ScaleResponse,
            what="stream",
            name=str(stream),
            repeatable=False,
        )
        check_status(answer, what="stream", name=str(stream))
        epoch: int = answer.epoch
        return epoch

    async def is_scale_finished(self, stream: StreamName, epoch: int) -> bool:
        """Whether the scale that `scale` began in this epoch is over. Raises ClientError if it failed."""
        answer = await self.channel.ask(
            "checkScale",
            messages.ScaleStatusRequest(streamInfo=stream.message(), epoch=epoch),
            messages.ScaleStatusResponse,
            what="stream",
            name=str(stream),
        )
        if answer.status == messages.ScaleStatusResponse.SUCCESS:
            return True
        if answer.status == messages.ScaleStatusResponse.IN_PROGRESS:
            return False
        raise ClientError(f"scale failed name={stream} epoch={epoch}")

    async def create_reader_group(
        self, scope: str, group: str, streams: Sequence[StreamName]
    ) -> None:
        """Make the group known, so that it is listed. Raises AlreadyExistsError."""
        group_id = _group_id(scope, group)
        answer = await self.channel.ask(
            "createReaderGroup",
            messages.ReaderGroupConfiguration(
                scope=scope,
                readerGroupName=group,
                readerGroupId=group_id,
                startingStreamCuts=[
                    messages.StreamCut(streamInfo=each.message()) for each in streams
                ],
            ),
            messages.CreateReaderGroupResponse,
            what="reader group",
            name=f"{scope}/{group}",
        )
        check_status(answer, what="reader group", name=f"{scope}/{group}")
        if answer.config.readerGroupId != group_id:
            raise AlreadyExistsError("reader group of another client", f"{scope}/{group}")

    async def delete_reader_group(self, scope: str, group: str) -> None:
        """Forget the group. Raises NotFoundError."""
        answer = await self.channel.ask(
            "deleteReaderGroup",
            messages.ReaderGroupInfo(
                scope=scope, readerGroup=group, readerGroupId=_group_id(scope, group)
            ),
            messages.DeleteReaderGroupStatus,
            what="reader group",
            name=f"{scope}/{group}",
            repeatable=False,
        )
        check_status(answer, what="reader group", name=f"{scope}/{group}")

    async def _update(
        self,
        method: str,
        stream: StreamName,
        request: messages.StreamConfig | messages.StreamInfo | messages.StreamCut,
    ) -> None:
        answer = await self.channel.ask(
            method, request, messages.UpdateStreamStatus, what="stream", name=str(stream)
        )
        check_status(answer, what="stream", name=str(stream))


class TransactionCalls:
    """Transactions of one stream."""

    def __init__(self, controller: ControllerClient, stream: StreamName) -> None:
        self._controller = controller
        self._stream = stream

    async def begin(self, lease_seconds: float) -> BegunTransaction:
        """Repeated after a lost answer: a transaction that nobody knows of ends with its lease."""
        answer = await self._controller.channel.ask(
            "createTransaction",
            messages.CreateTxnRequest(
                streamInfo=self._stream.message(), lease=int(lease_seconds * 1000)
            ),
            messages.CreateTxnResponse,
            what="stream",
            name=str(self._stream),
        )
        found = answer.txnId
        return BegunTransaction(
            transaction_id_of(high=found.highBits, low=found.lowBits),
            ranges_of(answer.activeSegments),
        )

    async def ping(self, transaction_id: int, lease_seconds: float) -> str:
        """Extend the lease; the name of the answer's status."""
        answer = await self._controller.channel.ask(
            "pingTransaction",
            messages.PingTxnRequest(
                streamInfo=self._stream.message(),
                txnId=_transaction_id_message(transaction_id),
                lease=int(lease_seconds * 1000),
            ),
            messages.PingTxnStatus,
            what="transaction",
            name=f"{transaction_id:032x}",
        )
        return status_of(answer)

    async def commit(self, transaction_id: int) -> None:
        """Returns when the commit can no longer be undone; it may still be under way. Raises NotFoundError."""
        await self._end("commitTransaction", transaction_id)

    async def abort(self, transaction_id: int) -> None:
        """Raises NotFoundError."""
        await self._end("abortTransaction", transaction_id)

    async def state(self, transaction_id: int) -> TransactionState:
        answer = await self._controller.channel.ask(
            "checkTransactionState",
            self._request(transaction_id),
            messages.TxnState,
            what="transaction",
            name=f"{transaction_id:032x}",
        )
        return TransactionState(status_of(answer, "state").lower())

    async def completed(self) -> Mapping[int, TransactionState]:
        """Transactions that ended, as far as the controller remembers them."""
        answer = await self._controller.channel.ask(
            "listCompletedTransactions",
            messages.ListCompletedTxnRequest(streamInfo=self._stream.message()),
            messages.ListCompletedTxnResponse,
            what="stream",
            name=str(self._stream),
        )
        return {
            transaction_id_of(high=each.txnId.highBits, low=each.txnId.lowBits): TransactionState(
                status_of(each).lower()
            )
            for each in answer.response
        }

    async def _end(self, method: str, transaction_id: int) -> None:
        name = f"{transaction_id:032x}"
        answer = await self._controller.channel.ask(
            method,
            self._request(transaction_id),
            messages.TxnStatus,
            what="transaction",
            name=name,
        )
        check_status(answer, what="transaction", name=name)

    def _request(self, transaction_id: int) -> messages.TxnRequest:
        return messages.TxnRequest(
            streamInfo=self._stream.message(),
            txnId=_transaction_id_message(transaction_id),
            timestamp=_NO_TRANSACTION_TIMESTAMP,
        )


class TableCalls:
    """Key-value tables of one scope."""

    def __init__(self, controller: ControllerClient, scope: str) -> None:
        self._controller = controller
        self._scope = scope

    async def create(self, table: str, config: TableConfig) -> None:
        """Raises AlreadyExistsError, NotFoundError for the scope."""
        name = f"{self._scope}/{table}"
        answer = await self._controller.channel.ask(
            "createKeyValueTable",
            messages.KeyValueTableConfig(
                scope=self._scope,
                kvtName=table,
                partitionCount=config.partitions,
                primaryKeyLength=config.primary_key_length,
                secondaryKeyLength=config.secondary_key_length,
            ),
            messages.CreateKeyValueTableStatus,
            what="table",
            name=name,
            repeatable=False,
        )
        check_status(answer, what="table", name=name)

    async def delete(self, table: str) -> None:
        """Raises NotFoundError."""
        name = f"{self._scope}/{table}"
        answer = await self._controller.channel.ask(
            "deleteKeyValueTable",
            self._info(table),
            messages.DeleteKVTableStatus,
            what="table",
            name=name,
            repeatable=False,
        )
        check_status(answer, what="table", name=name)

    async def config(self, table: str) -> TableConfig:
        """Raises NotFoundError."""
        name = f"{self._scope}/{table}"
        answer = await self._controller.channel.ask(
            "getKeyValueTableConfiguration",
            self._info(table),
            messages.KeyValueTableConfigResponse,
            what="table",
            name=name,
        )
        check_status(answer, what="table", name=name)
        return TableConfig(
            primary_key_length=answer.config.primaryKeyLength,
            secondary_key_length=answer.config.secondaryKeyLength,
            partitions=answer.config.partitionCount,
        )

    async def segments(self, table: str) -> Sequence[SegmentRange]:
        """The partitions."""
        answer = await self._controller.channel.ask(
            "getCurrentSegmentsKeyValueTable",
            self._info(table),
            messages.SegmentRanges,
            what="table",
            name=f"{self._scope}/{table}",
        )
        return ranges_of(answer.segmentRanges)

    async def list(self) -> Sequence[str]:
        """The tables of the scope."""
        found: list[str] = []
        token = ""
        while True:
            answer = await self._controller.channel.ask(
                "listKeyValueTablesInScope",
                messages.KVTablesInScopeRequest(
                    scope=messages.ScopeInfo(scope=self._scope),
                    continuationToken=messages.ContinuationToken(token=token),
                ),
                messages.KVTablesInScopeResponse,
                what="scope",
                name=self._scope,
            )
            check_status(answer, what="scope", name=self._scope)
            found.extend(each.kvtName for each in answer.kvtables)
            if not answer.kvtables or answer.continuationToken.token == token:
                return found
            token = answer.continuationToken.token

    def _info(self, table: str) -> messages.KeyValueTableInfo:
        return messages.KeyValueTableInfo(scope=self._scope, kvtName=table)


def range_of(message: messages.SegmentRange) -> SegmentRange:
    """In the client's words."""
    return SegmentRange(message.segmentId.segmentId, message.minKey, message.maxKey)


def ranges_of(found: Iterable[messages.SegmentRange]) -> Sequence[SegmentRange]:
    """In ascending order."""
    return sorted((range_of(each) for each in found), key=lambda each: each.low)


def _config_message(stream: StreamName, config: StreamConfig) -> messages.StreamConfig:
    scaling, retention = config.scaling, config.retention
    limit = retention.limit if retention.type is not RetentionType.NONE else _RETENTION_LIMIT_MAX
    return messages.StreamConfig(
        streamInfo=stream.message(),
        scalingPolicy=messages.ScalingPolicy(
            scaleType=messages.ScalingPolicy.ScalingPolicyType.Name(scaling.type),
            targetRate=scaling.target_rate,
            scaleFactor=scaling.scale_factor,
            minNumSegments=scaling.segments_min,
        ),
        retentionPolicy=messages.RetentionPolicy(
            retentionType=messages.RetentionPolicy.RetentionPolicyType.Name(retention.type),
            retentionParam=limit,
        ),
        tags=messages.Tags(tag=list(config.tags)),
    )


def _group_id(scope: str, group: str) -> str:
    """Derived from the name, so that a repeated create recognises its own group and not that of another client."""
    return str(uuid5(NAMESPACE_URL, f"segmentstore-reader-group:{scope}/{group}"))


def _transaction_id_message(transaction_id: int) -> messages.TxnId:
    high, low = transaction_halves(transaction_id)
    return messages.TxnId(highBits=high, lowBits=low)
