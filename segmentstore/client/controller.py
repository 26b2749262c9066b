"""What the client asks of the controller, in the client's own words.

`ControllerClient` has a section for each thing that a controller knows: scopes, streams, their segments, transactions,
stages, reader groups, key-value tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self, TypeVar
from uuid import NAMESPACE_URL, uuid5

from google.protobuf.message import Message

from segmentstore.client.connection import ServerAddress
from segmentstore.client.controller_channel import (
    Answer,
    ControllerChannel,
    status_of,
)
from segmentstore.client.errors import (
    AlreadyExistsError,
    ClientError,
    NotDoneError,
    StateConflictError,
    StreamSealedError,
    TransactionClosedError,
)
from segmentstore.client.stream_config import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from segmentstore.client.stream_segments import SegmentRange, Successor
from segmentstore.codec.controller_api import OWN_SERVICE, SERVICE
from segmentstore.codec.controller_api import controller_pb2 as messages
from segmentstore.codec.controller_api import staged_commits_pb2 as stage_messages
from segmentstore.codec.stream_names import transaction_halves, transaction_id_of
from segmentstore.contracts.errors import InvalidRequestError

_RETENTION_LIMIT_MAX = (1 << 63) - 1
_NO_TRANSACTION_TIMESTAMP = -(1 << 63)
_LEASE_MS_END = 1 << 63
_TABLE_SIZE_END = 1 << 31
_TRANSACTION_ID_BYTES = 16

Item = TypeVar("Item")
Page = TypeVar(
    "Page",
    messages.ScopesResponse,
    messages.StreamsInScopeResponse,
    messages.KVTablesInScopeResponse,
)
"""Answers that give a part and a token for the next one."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """A stream and its scope; also a reader group, or a table, in theirs."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"

    @classmethod
    def parse(cls, text: str, *, what: str = "stream") -> Self:
        """What `str()` wrote. Raises InvalidRequestError, which says `what` it should be the name of."""
        scope, slash, stream = text.partition("/")
        if not slash or not scope or not stream or "/" in stream:
            raise InvalidRequestError(f"a {what} is named scope/name given={text!r}")
        return cls(scope, stream)

    def message(self) -> messages.StreamInfo:
        return messages.StreamInfo(scope=self.scope, stream=self.stream)


class TransactionState(Enum):
    """Whether a transaction is open, or how far its commit or abort is."""

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
class StagesAnswer:
    """How far the commit of stages is."""

    is_duplicate: bool
    is_completed: bool
    transaction_ids: Sequence[int]
    """What the stages became, as far as they are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The shape of a table's keys, fixed when it is created; lengths in bytes."""

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
        self._channel = channel

    async def close(self) -> None:
        await self._channel.close()

    # Scopes

    async def create_scope(self, scope: str) -> None:
        """Raises AlreadyExistsError."""
        await self._channel.ask(
            "createScope",
            messages.ScopeInfo(scope=scope),
            messages.CreateScopeStatus,
            what="scope",
            name=scope,
            repeatable=False,
        )

    async def delete_scope(self, scope: str) -> None:
        """Raises NotFoundError, NotEmptyError."""
        await self._channel.ask(
            "deleteScope",
            messages.ScopeInfo(scope=scope),
            messages.DeleteScopeStatus,
            what="scope",
            name=scope,
            repeatable=False,
        )

    async def list_scopes(self) -> Sequence[str]:
        """All of them."""
        return await self._pages(
            "listScopes",
            lambda token: messages.ScopesRequest(continuationToken=token),
            messages.ScopesResponse,
            lambda page: page.scopes,
            scope="",
        )

    async def list_streams(self, scope: str, *, tag: str | None = None) -> Sequence[str]:
        """All streams of a scope, also internal ones; with `tag` those that carry it."""
        info = messages.ScopeInfo(scope=scope)

        def request(token: messages.ContinuationToken) -> Message:
            if tag is None:
                return messages.StreamsInScopeRequest(scope=info, continuationToken=token)
            return messages.StreamsInScopeWithTagRequest(
                scope=info, tag=tag, continuationToken=token
            )

        return await self._pages(
            "listStreamsInScope" if tag is None else "listStreamsInScopeForTag",
            request,
            messages.StreamsInScopeResponse,
            lambda page: [each.stream for each in page.streams],
            scope=scope,
        )

    async def list_tables(self, scope: str) -> Sequence[str]:
        """The key-value tables of a scope."""
        return await self._pages(
            "listKeyValueTablesInScope",
            lambda token: messages.KVTablesInScopeRequest(
                scope=messages.ScopeInfo(scope=scope), continuationToken=token
            ),
            messages.KVTablesInScopeResponse,
            lambda page: [each.kvtName for each in page.kvtables],
            scope=scope,
        )

    # Streams

    async def create_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Raises AlreadyExistsError, NotFoundError for the scope."""
        await self._ask(
            "createStream",
            stream,
            _config_message(stream, config),
            messages.CreateStreamStatus,
            repeatable=False,
        )

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Raises StreamSealedError."""
        request = _config_message(stream, config)
        try:
            await self._ask("updateStream", stream, request, messages.UpdateStreamStatus)
        except NotDoneError as error:
            await self._check_not_sealed(stream, error)
            raise

    async def seal_stream(self, stream: StreamName) -> None:
        await self._ask("sealStream", stream, stream.message(), messages.UpdateStreamStatus)

    async def truncate_stream(self, stream: StreamName, offsets: Mapping[int, int]) -> None:
        """Raises StreamSealedError, StateConflictError for a cut that is none of the stream as it is now."""
        request = messages.StreamCut(streamInfo=stream.message(), cut=dict(offsets))
        try:
            await self._ask("truncateStream", stream, request, messages.UpdateStreamStatus)
        except NotDoneError as error:
            await self._check_not_sealed(stream, error)
            raise StateConflictError(
                f"stream cannot be truncated there: the cut lies before its head or past its end name={str(stream)!r}"
            ) from error

    async def _check_not_sealed(self, stream: StreamName, error: NotDoneError) -> None:
        """Raises StreamSealedError: controllers have no word of their own for it where it forbids a change."""
        if not await self.current_segments(stream):
            raise StreamSealedError(str(stream)) from error

    async def delete_stream(self, stream: StreamName) -> None:
        """Raises StateConflictError unless the stream is sealed."""
        await self._ask(
            "deleteStream",
            stream,
            stream.message(),
            messages.DeleteStreamStatus,
            repeatable=False,
        )

    async def stream_config(self, stream: StreamName) -> StreamConfig:
        answer = await self._ask(
            "getStreamConfiguration", stream, stream.message(), messages.StreamConfig
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

    async def scale(
        self, stream: StreamName, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]
    ) -> int:
        """Begin to replace active segments by new ones; the epoch before it. Raises StateConflictError."""
        answer = await self._ask(
            "scale",
            stream,
            messages.ScaleRequest(
                streamInfo=stream.message(),
                sealedSegments=list(sealed),
                newKeyRanges=[
                    messages.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges
                ],
                scaleTimestamp=0,
            ),
            messages.ScaleResponse,
            repeatable=False,
        )
        epoch: int = answer.epoch
        return epoch

    async def is_scale_finished(self, stream: StreamName, epoch: int) -> bool:
        """Whether the scale that `scale` began in this epoch is over. Raises ClientError if it failed."""
        answer = await self._ask(
            "checkScale",
            stream,
            messages.ScaleStatusRequest(streamInfo=stream.message(), epoch=epoch),
            messages.ScaleStatusResponse,
            checked=False,
        )
        if answer.status == messages.ScaleStatusResponse.SUCCESS:
            return True
        if answer.status == messages.ScaleStatusResponse.IN_PROGRESS:
            return False
        raise ClientError(f"scale failed name={stream} epoch={epoch}")

    async def delegation_token(self, scope: str, stream: str) -> str:
        """What segment stores take for the right to use the stream; empty where no segment store asks for it."""
        name = StreamName(scope, stream)
        answer = await self._ask(
            "getDelegationToken", name, name.message(), messages.DelegationToken
        )
        return str(answer.delegationToken)

    # Segments of streams

    async def current_segments(self, stream: StreamName) -> Sequence[SegmentRange]:
        """The segments that take events now, by range; none if the stream is sealed."""
        answer = await self._ask(
            "getCurrentSegments", stream, stream.message(), messages.SegmentRanges
        )
        return _ranges_of(answer.segmentRanges)

    async def epoch_segments(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        """The segments of one of the stream's epochs."""
        request = messages.GetEpochSegmentsRequest(streamInfo=stream.message(), epoch=epoch)
        answer = await self._ask("getEpochSegments", stream, request, messages.SegmentRanges)
        return _ranges_of(answer.segmentRanges)

    async def head_offsets(self, stream: StreamName) -> Mapping[int, int]:
        """Where the stream begins: offsets by segment id."""
        request = messages.GetSegmentsRequest(streamInfo=stream.message(), timestamp=0)
        answer = await self._ask("getSegments", stream, request, messages.SegmentsAtTime)
        return {each.segmentId.segmentId: each.offset for each in answer.segments}

    async def successors(self, stream: StreamName, segment_id: int) -> Sequence[Successor]:
        """What follows a segment that ended; none if the stream is sealed."""
        answer = await self._ask(
            "getSegmentsImmediatelyFollowing",
            stream,
            messages.SegmentId(streamInfo=stream.message(), segmentId=segment_id),
            messages.SuccessorResponse,
        )
        return [Successor(_range_of(each.segment), tuple(each.value)) for each in answer.segments]

    async def segment_endpoint(self, scope: str, stream: str, segment_id: int) -> ServerAddress:
        """The segment store that serves the segment."""
        name = StreamName(scope, stream)
        request = messages.SegmentId(streamInfo=name.message(), segmentId=segment_id)
        answer = await self._ask("getURI", name, request, messages.NodeUri)
        return ServerAddress(answer.endpoint, answer.port)

    # Transactions

    async def begin_transaction(self, stream: StreamName, lease_seconds: float) -> BegunTransaction:
        """Repeated after a lost answer: a transaction that no client knows of ends with its lease."""
        answer = await self._ask(
            "createTransaction",
            stream,
            messages.CreateTxnRequest(streamInfo=stream.message(), lease=_lease_ms(lease_seconds)),
            messages.CreateTxnResponse,
        )
        return BegunTransaction(
            transaction_id_of(high=answer.txnId.highBits, low=answer.txnId.lowBits),
            _ranges_of(answer.activeSegments),
        )

    async def extend_lease(
        self, stream: StreamName, transaction_id: int, lease_seconds: float
    ) -> bool:
        """False if the transaction is too old for another lease: it is open as long as it has the one before.

        Raises NotFoundError, TransactionClosedError, InvalidRequestError for a lease that is too long.
        """
        answer = await self._ask_transaction(
            "pingTransaction",
            transaction_id,
            messages.PingTxnRequest(
                streamInfo=stream.message(),
                txnId=_transaction_id_message(transaction_id),
                lease=_lease_ms(lease_seconds),
            ),
            messages.PingTxnStatus,
            checked=False,
        )
        if answer.status == messages.PingTxnStatus.LEASE_TOO_LARGE:
            raise InvalidRequestError(
                f"the controller grants no lease that is so long seconds={lease_seconds:g}"
            )
        if answer.status == messages.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED:
            return False
        if answer.status != messages.PingTxnStatus.OK:
            raise TransactionClosedError(f"{transaction_id:032x}", status_of(answer).lower())
        return True

    async def commit_transaction(self, stream: StreamName, transaction_id: int) -> None:
        """Returns when the commit can no longer be undone; it may still be under way.

        Raises NotFoundError, TransactionClosedError if it was aborted.
        """
        await self._decide("commitTransaction", stream, transaction_id)

    async def abort_transaction(self, stream: StreamName, transaction_id: int) -> None:
        """Raises NotFoundError, TransactionClosedError if it was committed."""
        await self._decide("abortTransaction", stream, transaction_id)

    async def _decide(self, method: str, stream: StreamName, transaction_id: int) -> None:
        request = _transaction_message(stream, transaction_id)
        try:
            await self._ask_transaction(method, transaction_id, request, messages.TxnStatus)
        except NotDoneError as error:
            # That it was decided otherwise is no word of its own: only its state tells it from "not now".
            state = await self.transaction_state(stream, transaction_id)
            if state is TransactionState.OPEN:
                raise
            raise TransactionClosedError(f"{transaction_id:032x}", state.value) from error

    async def transaction_state(self, stream: StreamName, transaction_id: int) -> TransactionState:
        request = _transaction_message(stream, transaction_id)
        answer = await self._ask_transaction(
            "checkTransactionState", transaction_id, request, messages.TxnState
        )
        return TransactionState(status_of(answer, "state").lower())

    async def completed_transactions(self, stream: StreamName) -> Mapping[int, TransactionState]:
        """Transactions that ended, as far as the controller remembers them."""
        answer = await self._ask(
            "listCompletedTransactions",
            stream,
            messages.ListCompletedTxnRequest(streamInfo=stream.message()),
            messages.ListCompletedTxnResponse,
        )
        return {
            transaction_id_of(high=each.txnId.highBits, low=each.txnId.lowBits): TransactionState(
                status_of(each).lower()
            )
            for each in answer.response
        }

    # Stages

    async def begin_stage(self, stream: StreamName, lease_seconds: float) -> BegunTransaction:
        """Repeated after a lost answer: a stage that no client knows of ends with its lease."""
        answer = await self._ask(
            "beginStage",
            stream,
            stage_messages.BeginStageRequest(
                scope=stream.scope, stream=stream.stream, lease_ms=_lease_ms(lease_seconds)
            ),
            stage_messages.BeginStageResponse,
            service=OWN_SERVICE,
        )
        return BegunTransaction(
            int.from_bytes(answer.transaction_id, "big"),
            [SegmentRange(each.segment_id, each.low, each.high) for each in answer.ranges],
        )

    async def commit_stages(
        self,
        stream: StreamName,
        stages: Sequence[int],
        *,
        application_id: str,
        version: int,
        forgettable: bool,
    ) -> StagesAnswer:
        """Decide the commit, or ask how far it is. Raises StateConflictError."""
        answer = await self._ask(
            "commitStages",
            stream,
            stage_messages.CommitStagesRequest(
                scope=stream.scope,
                stream=stream.stream,
                application_id=application_id,
                version=version,
                transaction_ids=[each.to_bytes(_TRANSACTION_ID_BYTES, "big") for each in stages],
                forgettable=forgettable,
            ),
            stage_messages.CommitStagesResponse,
            service=OWN_SERVICE,
        )
        return StagesAnswer(
            is_duplicate=answer.duplicate,
            is_completed=answer.completed,
            transaction_ids=[int.from_bytes(each, "big") for each in answer.transaction_ids],
        )

    async def last_version(self, stream: StreamName, application_id: str) -> int | None:
        """The version that the application committed last, None if there is none."""
        answer = await self._ask(
            "lastVersion",
            stream,
            stage_messages.LastVersionRequest(
                scope=stream.scope, stream=stream.stream, application_id=application_id
            ),
            stage_messages.LastVersionResponse,
            service=OWN_SERVICE,
        )
        return answer.version if answer.known else None

    # Reader groups

    async def create_reader_group(
        self, scope: str, group: str, cuts: Mapping[StreamName, Mapping[int, int]]
    ) -> None:
        """Make the group known, so that it is listed; an empty cut is the head of its stream.

        Raises AlreadyExistsError, InvalidRequestError (a cut is none of its stream).
        """
        group_id = _group_id(scope, group)
        answer = await self._channel.ask(
            "createReaderGroup",
            messages.ReaderGroupConfiguration(
                scope=scope,
                readerGroupName=group,
                readerGroupId=group_id,
                startingStreamCuts=[
                    messages.StreamCut(streamInfo=stream.message(), cut=cut)
                    for stream, cut in cuts.items()
                ],
            ),
            messages.CreateReaderGroupResponse,
            what="reader group",
            name=f"{scope}/{group}",
        )
        if answer.config.readerGroupId != group_id:
            raise AlreadyExistsError("reader group of another client", f"{scope}/{group}")

    async def delete_reader_group(self, scope: str, group: str) -> None:
        """Forget the group. Raises NotFoundError."""
        await self._channel.ask(
            "deleteReaderGroup",
            messages.ReaderGroupInfo(
                scope=scope, readerGroup=group, readerGroupId=_group_id(scope, group)
            ),
            messages.DeleteReaderGroupStatus,
            what="reader group",
            name=f"{scope}/{group}",
            repeatable=False,
        )

    # Key-value tables

    async def create_table(self, scope: str, table: str, config: TableConfig) -> None:
        """Raises AlreadyExistsError, NotFoundError for the scope, InvalidRequestError for sizes that none has."""
        sizes = (config.partitions, config.primary_key_length, config.secondary_key_length)
        if not all(abs(each) < _TABLE_SIZE_END for each in sizes):
            raise InvalidRequestError(f"no table has such sizes given={sizes}")
        await self._channel.ask(
            "createKeyValueTable",
            messages.KeyValueTableConfig(
                scope=scope,
                kvtName=table,
                partitionCount=config.partitions,
                primaryKeyLength=config.primary_key_length,
                secondaryKeyLength=config.secondary_key_length,
            ),
            messages.CreateKeyValueTableStatus,
            what="table",
            name=f"{scope}/{table}",
            repeatable=False,
        )

    async def delete_table(self, scope: str, table: str) -> None:
        """Raises NotFoundError."""
        await self._channel.ask(
            "deleteKeyValueTable",
            messages.KeyValueTableInfo(scope=scope, kvtName=table),
            messages.DeleteKVTableStatus,
            what="table",
            name=f"{scope}/{table}",
            repeatable=False,
        )

    async def table_config(self, scope: str, table: str) -> TableConfig:
        """Raises NotFoundError."""
        answer = await self._channel.ask(
            "getKeyValueTableConfiguration",
            messages.KeyValueTableInfo(scope=scope, kvtName=table),
            messages.KeyValueTableConfigResponse,
            what="table",
            name=f"{scope}/{table}",
        )
        return TableConfig(
            primary_key_length=answer.config.primaryKeyLength,
            secondary_key_length=answer.config.secondaryKeyLength,
            partitions=answer.config.partitionCount,
        )

    async def table_segments(self, scope: str, table: str) -> Sequence[SegmentRange]:
        """The partitions of a table."""
        answer = await self._channel.ask(
            "getCurrentSegmentsKeyValueTable",
            messages.KeyValueTableInfo(scope=scope, kvtName=table),
            messages.SegmentRanges,
            what="table",
            name=f"{scope}/{table}",
        )
        return _ranges_of(answer.segmentRanges)

    # How it is asked

    async def _ask(
        self,
        method: str,
        stream: StreamName,
        request: Message,
        answer: type[Answer],
        *,
        repeatable: bool = True,
        checked: bool = True,
        service: str = SERVICE,
    ) -> Answer:
        return await self._channel.ask(
            method,
            request,
            answer,
            what="stream",
            name=str(stream),
            repeatable=repeatable,
            checked=checked,
            service=service,
        )

    async def _ask_transaction(
        self,
        method: str,
        transaction_id: int,
        request: Message,
        answer: type[Answer],
        *,
        checked: bool = True,
    ) -> Answer:
        return await self._channel.ask(
            method,
            request,
            answer,
            what="transaction",
            name=f"{transaction_id:032x}",
            checked=checked,
        )

    async def _pages(
        self,
        method: str,
        request: Callable[[messages.ContinuationToken], Message],
        answer: type[Page],
        items: Callable[[Page], Iterable[Item]],
        *,
        scope: str,
    ) -> Sequence[Item]:
        """What is on all pages of a list."""
        found: list[Item] = []
        token = messages.ContinuationToken(token="")
        while True:
            page = await self._channel.ask(method, request(token), answer, what="scope", name=scope)
            before = len(found)
            found.extend(items(page))
            if len(found) == before or page.continuationToken.token == token.token:
                return found
            token = page.continuationToken


def _range_of(message: messages.SegmentRange) -> SegmentRange:
    return SegmentRange(message.segmentId.segmentId, message.minKey, message.maxKey)


def _ranges_of(found: Iterable[messages.SegmentRange]) -> Sequence[SegmentRange]:
    """In ascending order."""
    return sorted((_range_of(each) for each in found), key=lambda each: each.low)


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


def _lease_ms(seconds: float) -> int:
    """Raises InvalidRequestError for what is no number of milliseconds; the rest is the controller's to say."""
    if not abs(seconds) * 1000 < _LEASE_MS_END:
        raise InvalidRequestError(f"no lease is that long seconds={seconds}")
    return int(seconds * 1000)


def _transaction_message(stream: StreamName, transaction_id: int) -> messages.TxnRequest:
    return messages.TxnRequest(
        streamInfo=stream.message(),
        txnId=_transaction_id_message(transaction_id),
        timestamp=_NO_TRANSACTION_TIMESTAMP,
    )


def _transaction_id_message(transaction_id: int) -> messages.TxnId:
    high, low = transaction_halves(transaction_id)
    return messages.TxnId(highBits=high, lowBits=low)
