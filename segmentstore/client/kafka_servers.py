"""The servers of a store that speak Kafka's protocol, as one: each request goes to the one that has what it is about.

Most stores are one server, so a request goes first to the one that was connected to. If that answers that it has not
got the partition, the group or the catalogue, it is asked which server has, and that one gets the request; where it was
found is remembered until the answer is of that kind again.

Invariants:

- A request is sent again only behind an answer that says that nothing was done with it, or where no connection came
  about, and `_PLACES_MAX` times in all; then the last answer is given, or the last error raised.
- What any server can answer is asked of another one where the first cannot be connected to; that one is first then.
- One connection to each server, made when it is needed, and one request after the other over it. How many there are is
  bounded by the servers of the store: one that has ended is forgotten with the next that is made.
- A caller that leaves holds up no other: the connection that owes it an answer is given up. So does a server that says
  nothing for `silence_seconds`, and longer by what the request lets it wait: what was asked has an unknown outcome.
- Behind close() nothing is sent, and no connection is left open: what was under way has an unknown outcome, what waited
  for its turn or a connection has ClosedError.
- What is asked to find a place says nothing of the request that is to go there, which was not sent.
- Memory is bounded by `_REMEMBERED_MAX` places; one that is forgotten is found again as at first.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from segmentstore.client.errors import ClosedError, ConnectionLostError, OutcomeUnknownError
from segmentstore.client.kafka_connection import KafkaConnection, open_kafka_connection
from segmentstore.codec.kafka_protocol.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.keyed_locks import KeyedLocks

Address: TypeAlias = tuple[str, int]
_Response = TypeVar("_Response", bound=Structure)

ELSEWHERE: Final = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
)
"""Nothing was done: another server has it, or none now."""
SILENCE_SECONDS: Final = 40.0
"""More than the servers are told that they may take for an answer."""
_PLACES_MAX: Final = 4
_REMEMBERED_MAX: Final = 10_000
_PAUSE_SECONDS: Final = 0.1
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Of a partition: its leader."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Of a consumer group: its coordinator."""

    group_id: str


@dataclass(frozen=True, slots=True)
class CataloguePlace:
    """Of changes of topics: the controller."""


Place: TypeAlias = PartitionPlace | GroupPlace | CataloguePlace


class KafkaServers:
    """connect(), then ask() any number, then close()."""

    def __init__(
        self, addresses: Sequence[Address], *, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        """Of some of them: the others are told of by these."""
        self._silence_seconds = silence_seconds
        self._given = addresses
        self._home = addresses[0]
        self._connections: dict[Address, KafkaConnection] = {}
        self._turns: KeyedLocks[Address] = KeyedLocks()
        """Held by the one that uses the connection to the server."""
        self._places: dict[Place, Address] = {}
        self._is_closed = False

    async def connect(self) -> None:
        """To the first of the given ones that can be. Raises ConnectionLostError if none can."""
        self._home = await self._any()

    async def close(self) -> None:
        """End all connections, also if this is cancelled. Idempotent."""
        self._is_closed = True
        connections, self._connections = list(self._connections.values()), {}
        for each in connections:
            each.abort()
        for each in connections:
            await each.close()

    async def ask(self, request: Structure, kind: type[_Response]) -> _Response:
        """What any of them answers. Raises what KafkaConnection.ask() does, and ClosedError."""
        try:
            return await self._ask(self._home, request, kind)
        except ConnectionLostError:
            # It was not sent.
            self._home = await self._any()
        return await self._ask(self._home, request, kind)

    async def ask_all(self, request: Structure, kind: type[_Response]) -> Sequence[_Response]:
        """What each of them answers. Raises as ask()."""
        told = await self.ask(_metadata_of(()), MetadataResponse)
        # One that is alone may be known elsewhere by another address than here.
        addresses = (
            [(each.host, each.port) for each in told.brokers]
            if len(told.brokers) > 1
            else [self._home]
        )
        return [await self._ask(address, request, kind) for address in addresses]

    async def ask_at(
        self,
        place: Place,
        request: Structure,
        kind: type[_Response],
        codes: Callable[[_Response], Iterable[int]],
        *,
        wait_seconds: float = 0.0,
    ) -> _Response:
        """What the one says that has the place. `codes`: those of an answer. Raises as ask().

        `wait_seconds`: how long the request lets the server wait before it answers.
        """
        for _ in range(_PLACES_MAX - 1):
            try:
                answer = await self._ask(
                    self._places.get(place, self._home), request, kind, wait_seconds
                )
            except ConnectionLostError:
                # It was not sent.
                pass
            else:
                if not any(code in ELSEWHERE for code in codes(answer)):
                    return answer
            if not await self._look(place):
                await asyncio.sleep(_PAUSE_SECONDS)
        return await self._ask(self._places.get(place, self._home), request, kind, wait_seconds)

    async def _look(self, place: Place) -> bool:
        """Whether a server is known that has it. Raises ConnectionLostError if none of the given ones answers."""
        self._places.pop(place, None)
        self._home = await self._any()
        try:
            address = await self._told_of(place)
        except OutcomeUnknownError:
            return False
        if address is None:
            return False
        while len(self._places) >= _REMEMBERED_MAX:
            self._places.pop(next(iter(self._places)))
        self._places[place] = address
        return True

    async def _told_of(self, place: Place) -> Address | None:
        """The server that has it, as far as the one knows that is asked."""
        if isinstance(place, GroupPlace):
            coordinator = FindCoordinatorRequest(key=place.group_id)
            found = await self._ask(self._home, coordinator, FindCoordinatorResponse)
            return (found.host, found.port) if found.error_code == ErrorCode.NONE else None
        names = (place.topic,) if isinstance(place, PartitionPlace) else ()
        told = await self._ask(self._home, _metadata_of(names), MetadataResponse)
        return _address_in(told, place)

    async def _any(self) -> Address:
        """The one that was asked last, or else another one that can be connected to."""
        others = [each for each in self._given if each != self._home]
        candidates = list(dict.fromkeys([self._home, *others, *self._places.values()]))
        for address in candidates[:-1]:
            try:
                async with self._turns.held(address):
                    await self._connection(address)
            except ConnectionLostError:
                continue
            return address
        async with self._turns.held(candidates[-1]):
            await self._connection(candidates[-1])
        return candidates[-1]

    async def _ask(
        self,
        address: Address,
        request: Structure,
        kind: type[_Response],
        wait_seconds: float = 0.0,
    ) -> _Response:
        async with self._turns.held(address):
            connection = await self._connection(address)
            return await connection.ask(
                request, kind, silence_seconds=self._silence_seconds + wait_seconds
            )

    async def _connection(self, address: Address) -> KafkaConnection:
        """To be called, and the connection to be used, in the turn of the server."""
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        self._check_open()
        made = await open_kafka_connection(*address)
        if self._is_closed:
            await made.close()
            self._check_open()
        # Of all servers: one that is gone may never be asked again.
        ended = [each for each in self._connections.items() if not each[1].is_open]
        for server, _ in ended:
            del self._connections[server]
        self._connections[address] = made
        for _, connection in ended:
            await connection.close()
        return made

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client of topics is closed")


def parse_addresses(text: str) -> Sequence[Address]:
    """HOST:PORT, and more of them with commas between. Raises InvalidRequestError."""
    found = []
    for each in text.split(","):
        host, _, port = each.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) > _PORT_MAX or not _is_text(host):
            raise InvalidRequestError(f"an address is HOST:PORT address={each!r}")
        found.append((host.strip("[]"), int(port)))
    return found


def _is_text(name: str) -> bool:
    """No: a byte of the command line that is not UTF-8 is a lone surrogate here."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _metadata_of(topics: Sequence[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=each) for each in topics),
        allow_auto_topic_creation=False,
    )


def _address_in(told: MetadataResponse, place: PartitionPlace | CataloguePlace) -> Address | None:
    if isinstance(place, CataloguePlace):
        node_id = told.controller_id
    else:
        leaders = [
            each.leader_id
            for topic in told.topics
            for each in topic.partitions
            if (topic.name, each.partition_index) == (place.topic, place.partition)
        ]
        if not leaders:
            return None
        (node_id,) = leaders
    for broker in told.brokers:
        if broker.node_id == node_id:
            return broker.host, broker.port
    return None
