"""Answers the calls of controllers in other processes (codec/wire_protocol/store_calls.py) from this node's containers.

A controller is not a client: its records below "_system/" are its own, and it needs verbs that clients lack. So its
calls are apart from their commands, and a connection opens them with the cluster's token and the epoch of its leader.

Invariants:

- Without the token nothing is called. A node that was given none takes no calls at all.
- **One leader.** A call of a lower epoch than the highest that this node knows is refused and does nothing; and a call
  of the highest begins when no older one that names the same segment is under way any more. So whatever a new leader
  reads, the leader before it cannot change behind its back. The node knows epochs from the controllers themselves, and
  from the assignment that gave it its containers (`newest_epoch`): a container that was given away is given by a
  leader, and the node that gets it has heard of that leader. Callers that are no leader's (NO_LEADER) are outside of
  that order: their changes are conditional, each by itself.
- Appends, updates and removals of one name are submitted in the order in which they came, and every other call that
  names it begins behind the submissions before it.
- A call goes on when its connection ends: what it submitted is on its way to the log in any case.
- Each call is answered once, by what it gave or by the error itself. A fault of ours ends the connection instead.
- A node whose lease is not valid does nothing that it is called for: another one may have its containers.
- At most `store_calls_max` calls are under way on a node; one more is refused.
"""

import asyncio
import hmac
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.refusals import TOKEN_CHECK_FAILED, AuthTokenCheckFailed
from segmentstore.codec.wire_protocol.store_calls import (
    NO_LEADER,
    AnswerAttributes,
    AnswerChanged,
    AnswerContent,
    AnswerDelta,
    AnswerDone,
    AnswerEntries,
    AnswerEntryPage,
    AnswerKeyPage,
    AnswerNumbers,
    AnswerRefused,
    AnswerSegments,
    AnswerTable,
    CallAppend,
    CallAttributes,
    CallBarrier,
    CallCreate,
    CallCreateTable,
    CallDelete,
    CallDeleteTable,
    CallFlush,
    CallForgetMerged,
    CallGet,
    CallInfo,
    CallList,
    CallMerge,
    CallMergeAll,
    CallOpenTable,
    CallRead,
    CallReadDelta,
    CallReadPage,
    CallRemoveKeys,
    CallSeal,
    CallTruncate,
    CallUpdateAttributes,
    CallUpdateTable,
    CarriedError,
    OpenStoreCalls,
    StoreCall,
)
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    LeaderReplacedError,
    SegmentNotFoundError,
    SegmentStoreError,
    TooManyWaitersError,
)
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import SegmentApi, SegmentProperties, read_available
from segmentstore.contracts.tables import Table, TableApi, TableInfo
from segmentstore.runtime.cancellation import await_shielded, retrieve_exception
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.replies import LEASE_IS_OVER, SendBuffer

_LOGGER = logging.getLogger(__name__)
_READ_BYTES_MAX: Final = 4 << 20

_Outcome = TypeVar("_Outcome")


def _no_epoch() -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCallAccess:
    """What a node needs to take calls of controllers."""

    token: str
    """What a controller has to show; every process of the cluster knows it, and no client."""
    containers: Callable[[int], SegmentApi]
    """A container of this node, for its listing and its flush. Raises ContainerNotFoundError."""
    newest_epoch: Callable[[], int] = _no_epoch
    """The highest epoch of a leader that the node has heard of otherwise."""


class ControllerConnection:
    """What a connection is to the calls: who sends them, and where their answers go."""

    def __init__(self, *, outgoing: SendBuffer, fail: Callable[[str], None]) -> None:
        self.outgoing = outgoing
        self.fail = fail
        self.epoch: int | None = None
        """None until it has opened its calls."""


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """A call."""

    epoch: int
    names: Sequence[str]
    """Segments that it may change or read; none: all of a container."""

    def shares_names(self, other: "_UnderWay") -> bool:
        if not self.names or not other.names:
            return True
        return any(name in other.names for name in self.names)


class StoreCalls:
    """take() any number, then close()."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        tables: TableApi,
        access: StoreCallAccess,
        calls_max: int,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        """`has_lease` says whether no other node can have been given a container of this one."""
        self._has_lease = has_lease
        self._segments = segments
        self._tables = tables
        self._access = access
        self._calls_max = calls_max
        self._newest_epoch = 0
        self._tasks = TaskSet(on_failure=self._call_failed)
        self._order = KeyedLocks[str]()
        # A dict, for its order.
        self._under_way: dict[_UnderWay, None] = {}
        self._older_ended = asyncio.Event()

    def __len__(self) -> int:
        """Calls under way."""
        return len(self._under_way)

    def check(self) -> None:
        """O(calls under way)."""
        self._order.check()
        assert len(self._under_way) <= self._calls_max, f"calls={len(self._under_way)}"
        epochs = [call.epoch for call in self._under_way if call.epoch != NO_LEADER]
        assert epochs == sorted(epochs), f"a call of an older leader came late epochs={epochs}"
        assert not epochs or epochs[-1] <= self._newest_epoch, f"newest={self._newest_epoch}"

    async def close(self) -> None:
        """Calls under way end without an answer; what they have submitted goes on."""
        await self._tasks.close()

    def take(self, command: Command, connection: ControllerConnection) -> None:
        """It is answered later. Raises ProtocolError for a call on a connection that has not opened its calls."""
        if isinstance(command, OpenStoreCalls):
            self._open(command, connection)
            return
        if connection.epoch is None:
            raise ProtocolError(f"a call before its connection has opened them type={command.type}")
        assert isinstance(command, StoreCall), f"no call type={command.type}"
        try:
            self._require_newest(connection.epoch)
            if not self._has_lease():
                raise ContainerNotFoundError(-1, LEASE_IS_OVER)
            if len(self._under_way) >= self._calls_max:
                raise TooManyWaitersError(
                    f"too many calls of controllers are under way calls={len(self._under_way)}"
                )
        except SegmentStoreError as error:
            connection.outgoing.reply(AnswerRefused(command.request_id, CarriedError.of(error)))
            return
        call = _UnderWay(connection.epoch, _names_of(command))
        self._under_way[call] = None
        self._tasks.start(self._answer(command, call, connection))

    def _open(self, command: OpenStoreCalls, connection: ControllerConnection) -> None:
        if not hmac.compare_digest(command.token.encode(), self._access.token.encode()):
            connection.outgoing.reply(
                AuthTokenCheckFailed(command.request_id, "", TOKEN_CHECK_FAILED)
            )
            return
        try:
            self._require_newest(command.leader_epoch)
        except LeaderReplacedError as error:
            connection.outgoing.reply(AnswerRefused(command.request_id, CarriedError.of(error)))
            return
        connection.epoch = command.leader_epoch
        connection.outgoing.reply(AnswerDone(command.request_id))

    def _require_newest(self, epoch: int) -> None:
        """Raises LeaderReplacedError for the epoch of an older leader."""
        if epoch == NO_LEADER:
            return
        self._newest_epoch = max(self._newest_epoch, epoch, self._access.newest_epoch())
        if epoch < self._newest_epoch:
            raise LeaderReplacedError(given=epoch, newest=self._newest_epoch)

    # --- one call --------------------------------------------------------------------------------

    async def _answer(
        self, command: StoreCall, call: _UnderWay, connection: ControllerConnection
    ) -> None:
        try:
            try:
                frame = await self._frame(command, call)
            except SegmentStoreError as error:
                frame = AnswerRefused(command.request_id, CarriedError.of(error)).encode()
            connection.outgoing.send(frame)
        except Exception as bug:
            _LOGGER.exception("a controller's call failed by a fault of ours type=%d", command.type)
            connection.fail(f"internal error: {bug!r}")
        finally:
            del self._under_way[call]
            self._older_ended.set()

    async def _frame(self, command: StoreCall, call: _UnderWay) -> bytes:
        """Of the answer. Raises SegmentStoreError: ProtocolError for an answer that no frame holds."""
        match command:
            case CallAppend() | CallBarrier():
                return (await self._append(command, call)).encode()
            case CallUpdateTable() | CallRemoveKeys():
                return (await self._change_table(command, call)).encode()
        async with AsyncExitStack() as turn:
            for name in call.names:
                await turn.enter_async_context(self._order.held(name))
            await self._until_older_ended(call)
        match command:
            case CallList():
                return await self._list(command)
            case CallReadPage():
                return await self._page(command)
            case CallReadDelta():
                return await self._delta(command)
            case CallGet() | CallOpenTable():
                return (await self._table_answer(command)).encode()
            case _:
                return (await self._segment_answer(command)).encode()

    async def _until_older_ended(self, call: _UnderWay) -> None:
        while self._is_behind_older(call):
            self._older_ended.clear()
            await self._older_ended.wait()

    def _is_behind_older(self, call: _UnderWay) -> bool:
        """O(calls of older leaders): none of them comes behind one of a newer leader."""
        if call.epoch == NO_LEADER:
            return False
        for other in self._under_way:
            if other.epoch == NO_LEADER:
                continue
            if other.epoch == call.epoch:
                return False
            if other.shares_names(call):
                return True
        return False

    async def _append(self, command: CallAppend | CallBarrier, call: _UnderWay) -> Command:
        async with AsyncExitStack() as opened:
            async with self._order.held(command.segment):
                await self._until_older_ended(call)
                segment = await opened.enter_async_context(
                    self._segments.open_segment(command.segment)
                )
                submitted = (
                    segment.barrier()
                    if isinstance(command, CallBarrier)
                    else segment.append(
                        command.data,
                        offset=command.offset,
                        attribute_updates=command.attributes,
                        seal=command.seal,
                        events=command.events,
                    )
                )
            return AnswerNumbers(command.request_id, (await _outcome(submitted),))

    async def _change_table(
        self, command: CallUpdateTable | CallRemoveKeys, call: _UnderWay
    ) -> Command:
        async with AsyncExitStack() as opened:
            async with self._order.held(command.segment):
                await self._until_older_ended(call)
                table = await opened.enter_async_context(self._tables.open_table(command.segment))
                before = table.info()
                outcomes = _submit(table, command)
            told = [
                each if isinstance(each, int) else CarriedError.of(each) for each in await outcomes
            ]
            return AnswerChanged(command.request_id, told, _info_behind_a_change(table, before))

    async def _segment_answer(self, command: StoreCall) -> Command:
        segments, tables, request_id = self._segments, self._tables, command.request_id
        match command:
            case CallInfo(segment=name):
                return _one_segment(request_id, await segments.info(name))
            case CallCreate(segment=name, attributes=attributes):
                return _one_segment(request_id, await segments.create(name, attributes))
            case CallSeal(segment=name):
                return AnswerNumbers(request_id, (await segments.seal(name),))
            case CallMerge(segment=target, source=source):
                length = await segments.merge(
                    target,
                    source,
                    attribute_updates=command.attributes,
                    seal_source=command.seal_source,
                )
                return AnswerNumbers(request_id, (length,))
            case CallMergeAll(segment=target, sources=sources):
                lengths = await segments.merge_all(
                    target, sources, seal_sources=command.seal_sources
                )
                return AnswerNumbers(request_id, lengths)
            case CallAttributes(segment=name, keys=keys):
                wanted = None if keys is None else [AttributeKey(key) for key in keys]
                found = await segments.attributes(name, wanted)
                return AnswerAttributes(request_id, tuple(found.items()))
            case CallRead():
                return await self._read(command)
            case CallTruncate(segment=name, offset=offset):
                await segments.truncate(name, offset)
            case CallForgetMerged(segment=target, sources=sources):
                await segments.forget_merged(target, sources)
            case CallDelete(segment=name):
                await segments.delete(name)
            case CallUpdateAttributes(segment=name, attributes=attributes):
                await segments.update_attributes(name, attributes)
            case CallFlush(container_id=container_id):
                await self._access.containers(container_id).flush()
            case CallCreateTable(segment=name, key_length=key_length):
                await tables.create_table(name, key_length=key_length)
            case CallDeleteTable(segment=name, must_be_empty=must_be_empty):
                await tables.delete_table(name, must_be_empty=must_be_empty)
            case _:
                raise AssertionError(f"a call without an answer type={command.type}")
        return AnswerDone(request_id)

    async def _read(self, command: CallRead) -> Command:
        async with self._segments.open_segment(command.segment) as segment:
            # Before the bytes: if it was sealed then, no bytes follow these.
            sealed = segment.info().sealed
            length_max = min(command.length_max, _READ_BYTES_MAX)
            content = await read_available(segment, command.offset, length_max)
        return AnswerContent(command.request_id, sealed, content)

    async def _list(self, command: CallList) -> bytes:
        found = await self._access.containers(command.container_id).list_segments(
            command.prefix, command.start_after, command.limit
        )

        def answer(count: int) -> Command:
            return AnswerSegments(command.request_id, count < len(found), found[:count])

        return _largest_frame(answer, len(found))

    async def _table_answer(self, command: CallGet | CallOpenTable) -> Command:
        async with self._tables.open_table(command.segment) as table:
            if isinstance(command, CallOpenTable):
                return AnswerTable(command.request_id, table.info())
            return AnswerEntries(command.request_id, await table.get(command.keys))

    async def _page(self, command: CallReadPage) -> bytes:
        async with self._tables.open_table(command.segment) as table:
            count = command.count
            while True:
                try:
                    return (await _read_page(table, command, count)).encode()
                except ProtocolError:
                    if count <= 1:
                        raise
                    count //= 2

    async def _delta(self, command: CallReadDelta) -> bytes:
        async with self._tables.open_table(command.segment) as table:
            count = command.count
            while True:
                delta = await table.read_delta(position=command.position, count=count)
                try:
                    return AnswerDelta(
                        command.request_id,
                        delta.should_clear,
                        delta.reached_end,
                        delta.last_position,
                        delta.entries,
                    ).encode()
                except ProtocolError:
                    if count <= 1:
                        raise
                    count //= 2

    def _call_failed(self, error: BaseException) -> None:
        _LOGGER.error("a controller's call ended without an answer", exc_info=error)


def _names_of(command: StoreCall) -> Sequence[str]:
    """Each once, in order: two calls that name the same segments cannot wait for each other."""
    match command:
        case CallList() | CallFlush():
            return ()
        case CallMerge():
            return sorted({command.segment, command.source})
        case CallMergeAll() | CallForgetMerged():
            return sorted({command.segment, *command.sources})
        case _:
            return (command.segment,)


def _submit(
    table: Table, command: CallUpdateTable | CallRemoveKeys
) -> "Awaitable[Sequence[int | SegmentStoreError]]":
    """Synchronous: it has its place in the table when this returns."""
    match command:
        case CallRemoveKeys():
            return _none(_outcome(table.remove(command.keys, offset=command.offset)))
        case CallUpdateTable(each=True):
            return _outcome(table.update_each(command.entries))
        case CallUpdateTable():
            return _outcome(table.update(command.entries, offset=command.offset))


def _info_behind_a_change(table: Table, before: TableInfo) -> TableInfo:
    """As it was before, if the container goes away now: the change is done, and has to be answered as that."""
    try:
        return table.info()
    except (ContainerNotFoundError, SegmentNotFoundError):
        return before


def _outcome(submitted: "Future[_Outcome]") -> "Awaitable[_Outcome]":
    """What the submission gives; it goes on if this is given up."""
    submitted.add_done_callback(retrieve_exception)
    return await_shielded(submitted)


async def _none(removal: Awaitable[None]) -> Sequence[int | SegmentStoreError]:
    await removal
    return ()


def _one_segment(request_id: int, properties: SegmentProperties) -> Command:
    return AnswerSegments(request_id, False, (properties,))


async def _read_page(table: Table, command: CallReadPage, count: int) -> Command:
    token, first, last = command.token, command.first, command.last
    if command.values:
        entries = await table.read_entries(count=count, token=token, first=first, last=last)
        return AnswerEntryPage(command.request_id, entries.token, entries.entries)
    keys = await table.read_keys(count=count, token=token, first=first, last=last)
    return AnswerKeyPage(command.request_id, keys.token, keys.keys)


def _largest_frame(answer: Callable[[int], Command], count: int) -> bytes:
    """The frame with as many items as one holds. Raises ProtocolError if it does not hold the first."""
    while True:
        try:
            return answer(count).encode()
        except ProtocolError:
            if count <= 1:
                raise
            count //= 2
