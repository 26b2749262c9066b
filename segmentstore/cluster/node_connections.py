"""Connections of a controller to nodes: one for each node, over which its calls go in the order in which they are made.

Invariants:

- A call is submitted synchronously and has one outcome: what it gave, the error that the node carried back, or
  ContainerStoppedError if the connection ended first: what became of it is then not known. It is never sent twice.
- A connection carries nothing before the node has accepted the token and the epoch of the leader.
- A connection with calls under way ends when the node's registration is gone, or when the node says nothing for
  `silence_seconds` though it was asked: no call waits for a node that was stopped or cut off. Time in which
  this process itself stood still does not count: the answer may be here, and not read yet.
- An attempt to connect that fails has failed for all that waited for it: none waits for more than one.
- At most `calls_per_node_max` calls are under way on a connection; one more is refused, and nothing is done.
- There is one task, run(): it looks at silent connections.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from segmentstore.client.connection import ServerAddress, WireConnection, open_connection
from segmentstore.client.errors import ConnectionLostError
from segmentstore.codec.wire_protocol.command import Command, KeepAlive
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.refusals import AuthTokenCheckFailed
from segmentstore.codec.wire_protocol.store_calls import AnswerDone, AnswerRefused, OpenStoreCalls
from segmentstore.contracts.cluster import ClusterNode, ContainerLocations
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    InvalidRequestError,
    SegmentStoreError,
    TooManyWaitersError,
)
from segmentstore.runtime.cancellation import fail_unless_done, retrieve_exception
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.runtime.waiting import sleep_and_tell_lateness

_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind", bound=Command)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConnectionSettings:
    """Limits of the calls to nodes."""

    connect_seconds: float = 3.0
    silence_seconds: float = 8.0
    """A node that owes an answer and says nothing for so long is given up. It is asked for a sign of life half-way."""
    look_seconds: float = 0.5
    calls_per_node_max: int = 4_096


class NodeUnreachableError(SegmentStoreError):
    """The node did not get the call: no connection could be made, or it had ended. Nothing was done."""


class _CallUnderWay(Generic[_Result]):
    """Takes the one answer of a call."""

    __slots__ = ("_connection", "_convert", "_request_id", "future")

    def __init__(
        self,
        connection: "NodeConnection",
        request_id: int,
        convert: Callable[[Command], _Result],
    ) -> None:
        self._connection = connection
        self._request_id = request_id
        self._convert = convert
        self.future: Future[_Result] = asyncio.get_running_loop().create_future()
        # Its caller may have left.
        self.future.add_done_callback(retrieve_exception)

    def received(self, reply: Command) -> None:
        self._connection.call_ended(self._request_id)
        if isinstance(reply, AnswerRefused):
            fail_unless_done(self.future, reply.error.error())
            return
        try:
            result = self._convert(reply)
        except Exception as error:  # noqa: BLE001  (an answer to something else, or a bug: its caller hears of it)
            fail_unless_done(self.future, error)
            return
        if not self.future.done():
            self.future.set_result(result)

    def lost(self, error: ConnectionLostError) -> None:
        self._connection.call_ended(self._request_id)
        fail_unless_done(
            self.future,
            ContainerStoppedError(
                f"the node did not answer; whether it was done is unknown: {error}"
            ),
        )


class NodeConnection:
    """submit() any number."""

    def __init__(self, wire: WireConnection, node: ClusterNode, *, calls_max: int) -> None:
        self.node = node
        self._wire = wire
        self._calls_max = calls_max
        self._under_way = 0
        self._silent_since = 0.0
        """Since when it owes an answer and was not heard of; later by what this process stood still."""
        self._asked_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._wire.is_open

    def submit(
        self, make: Callable[[int], Command], convert: Callable[[Command], _Result]
    ) -> "Future[_Result]":
        """Send a call; the future gives what `convert` makes of its answer.

        Raises NodeUnreachableError, TooManyWaitersError, InvalidRequestError (it fits into no frame): nothing was done.
        """
        if self._under_way >= self._calls_max:
            raise TooManyWaitersError(
                f"too many calls are under way node={self.node.node_id} calls={self._under_way}"
            )
        wire = self._wire
        request_id = wire.next_request_id()
        call = _CallUnderWay(self, request_id, convert)
        try:
            wire.subscribe(request_id, call)
            wire.send(make(request_id))
        except ConnectionLostError as error:
            wire.unsubscribe(request_id)
            raise NodeUnreachableError(str(error)) from error
        except ProtocolError as error:
            wire.unsubscribe(request_id)
            raise InvalidRequestError(f"it does not fit into one request: {error}") from error
        if not self._under_way:
            self._silent_since = asyncio.get_running_loop().time()
        self._under_way += 1
        return call.future

    def call_ended(self, request_id: int) -> None:
        """Called by the call."""
        self._under_way -= 1
        self._wire.unsubscribe(request_id)
        assert self._under_way >= 0, f"under_way={self._under_way}"

    def look(self, now: float, *, silence_seconds: float, stood_still_seconds: float) -> None:
        """End it if the node owes an answer and has been silent for too long.

        `stood_still_seconds`: this process, since the last look; what the node said meanwhile may not be read yet.
        """
        heard_at = now - self._wire.silent_seconds
        self._silent_since = min(max(self._silent_since, heard_at) + stood_still_seconds, now)
        if not self._under_way:
            return
        silent = now - self._silent_since
        if silent >= silence_seconds:
            self._wire.abort()
        elif silent >= silence_seconds / 2 and now - self._asked_at >= silence_seconds / 2:
            self._asked_at = now
            try:
                self._wire.send(KeepAlive())
            except ConnectionLostError:
                return

    def abort(self) -> None:
        """End it; what is under way is unknown."""
        self._wire.abort()

    async def close(self) -> None:
        await self._wire.close()


class NodeConnections:
    """connection(node) while run() runs; close() at the end."""

    def __init__(
        self,
        *,
        locations: ContainerLocations,
        token: str,
        leader_epoch: int,
        settings: NodeConnectionSettings,
    ) -> None:
        self._locations = locations
        self._token = token
        self._leader_epoch = leader_epoch
        self._settings = settings
        self._connections: dict[HostId, NodeConnection] = {}
        self._locks = KeyedLocks[HostId]()
        self._failures = 0
        """Attempts to connect that have failed."""
        self._failed: dict[HostId, tuple[int, str]] = {}
        """The last one of each registered node: which it was, and why."""
        self._is_closed = False

    async def run(self) -> None:
        """Look at the connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            late = await sleep_and_tell_lateness(self._settings.look_seconds)
            self.look(loop.time(), stood_still_seconds=late)

    def look(self, now: float, *, stood_still_seconds: float) -> None:
        """End those to nodes that are gone, and those that are silent. O(connections and nodes)."""
        registered = {node.node_id for node in self._locations.nodes()}
        self._failed = {n: each for n, each in self._failed.items() if n in registered}
        for node_id, connection in list(self._connections.items()):
            if node_id not in registered:
                connection.abort()
            if not connection.is_open:
                del self._connections[node_id]
                continue
            connection.look(
                now,
                silence_seconds=self._settings.silence_seconds,
                stood_still_seconds=stood_still_seconds,
            )

    async def connection(self, node: ClusterNode) -> NodeConnection:
        """An open one. Raises NodeUnreachableError, LeaderReplacedError: nothing was done."""
        connection = self._connections.get(node.node_id)
        if connection is not None and connection.is_open:
            return connection
        failures_before = self._failures
        async with self._locks.held(node.node_id):
            connection = self._connections.get(node.node_id)
            if connection is not None and connection.is_open:
                return connection
            number, why = self._failed.get(node.node_id, (0, ""))
            if number > failures_before:
                raise NodeUnreachableError(why)
            try:
                connection = await self._connect(node)
            except NodeUnreachableError as error:
                self._failures += 1
                self._failed[node.node_id] = (self._failures, str(error))
                raise
            self._connections[node.node_id] = connection
            return connection

    async def close(self) -> None:
        """End all of them. Closing twice is fine."""
        self._is_closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort()
        for connection in connections.values():
            await connection.close()

    async def _connect(self, node: ClusterNode) -> NodeConnection:
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                wire = await open_connection(_address(node.wire))
                try:
                    await self._open_calls(wire, node)
                except BaseException:
                    wire.abort()
                    raise
        except TimeoutError as error:
            raise NodeUnreachableError(
                f"connecting takes too long node={node.node_id} address={node.wire}"
            ) from error
        except (ConnectionLostError, ProtocolError) as error:
            raise NodeUnreachableError(f"node={node.node_id}: {error}") from error
        if self._is_closed:
            wire.abort()
            raise NodeUnreachableError(f"the connections are closed node={node.node_id}")
        return NodeConnection(wire, node, calls_max=self._settings.calls_per_node_max)

    async def _open_calls(self, wire: WireConnection, node: ClusterNode) -> None:
        answer = await wire.request(
            lambda request_id: OpenStoreCalls(request_id, self._token, self._leader_epoch)
        )
        match answer:
            case AnswerDone():
                return
            case AnswerRefused():
                raise answer.error.error()
            case AuthTokenCheckFailed():
                raise NodeUnreachableError(
                    f"the node does not take this cluster's token node={node.node_id}"
                )
        raise ProtocolError(f"an answer to something else type={answer.type}")


def reply_of(kind: type[_Kind], reply: Command) -> _Kind:
    """The reply, which has to be of this kind. Raises InvalidRequestError: the node speaks another protocol."""
    if not isinstance(reply, kind):
        raise InvalidRequestError(
            f"an answer to something else type={reply.type} expected={kind.__name__}"
        )
    return reply


def _address(text: str) -> ServerAddress:
    host, _, port = text.rpartition(":")
    return ServerAddress(host.removeprefix("[").removesuffix("]"), int(port))
