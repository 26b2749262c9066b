"""Segments and tables of a whole cluster, for the controller: each call goes to the node that owns the container.

Invariants:

- What an interface of `contracts/` promises holds here too, errors included: a node's error arrives as itself.
- **Nothing was done** if no node could be asked, or the one that was asked does not have the container: then the
  locations are read again, and another owner, if there is one now, is asked. If there is none, ContainerNotFoundError
  says so: the callers of the controller come back, and other containers are not held up meanwhile.
- **The outcome is unknown** if a connection ends behind a call: ContainerStoppedError, as from a container in this
  process that stops. A change is then never sent again; a question is.
- Submissions to one open table or segment (`update`, `remove`, `append`) are made in the order in which they are
  called: they share one connection, the one over which it was opened. When that has ended they fail, and nothing is
  done: open it again.
- What is told without a wait (`info()` of something open) is as of the opening, or of the latest own change that was
  answered. What is in a node's memory is in no memory here: `get_nowait` says that it has to be asked.
- A listing, or a flush, of all containers succeeds or fails as a whole.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from heapq import merge as merge_sorted
from itertools import islice
from typing import Final, TypeVar

from segmentstore.cluster.node_connections import (
    NodeConnection,
    NodeConnections,
    NodeConnectionSettings,
    NodeUnreachableError,
    reply_of,
)
from segmentstore.cluster.remote_handles import RemoteSegment, RemoteTable
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.store_calls import (
    AnswerAttributes,
    AnswerDone,
    AnswerNumbers,
    AnswerSegments,
    AnswerTable,
    CallAttributes,
    CallCreate,
    CallCreateTable,
    CallDelete,
    CallDeleteTable,
    CallFlush,
    CallForgetMerged,
    CallInfo,
    CallList,
    CallMerge,
    CallMergeAll,
    CallOpenTable,
    CallSeal,
    CallTruncate,
    CallUpdateAttributes,
)
from segmentstore.contracts.cluster import ContainerLocations
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    InvalidRequestError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, ContainerId
from segmentstore.contracts.segments import (
    AttributeUpdate,
    Segment,
    SegmentProperties,
    check_segment_name,
)
from segmentstore.contracts.tables import Table
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.runtime.waiting import gather_all

LIST_LIMIT_MAX: Final = 10_000
_ATTEMPTS_MAX: Final = 12
"""Looks at the owner of one container for one call; each owner is asked once, or twice if a connection ended."""

_Result = TypeVar("_Result")


class RemoteStore:
    """Implements SegmentApi and TableApi. run() beside the calls, close() at the end. One for each leadership."""

    def __init__(
        self,
        *,
        locations: ContainerLocations,
        token: str,
        leader_epoch: int,
        settings: NodeConnectionSettings | None = None,
    ) -> None:
        """`token` is what nodes want to see of a controller, `leader_epoch` what makes them refuse an older one."""
        self._locations = locations
        self._nodes = NodeConnections(
            locations=locations,
            token=token,
            leader_epoch=leader_epoch,
            settings=settings or NodeConnectionSettings(),
        )

    async def run(self) -> None:
        """Until cancelled: calls to nodes that are gone or silent end."""
        await self._nodes.run()

    async def close(self) -> None:
        """Calls under way end; what became of them is unknown. Closing twice is fine."""
        await self._nodes.close()

    # --- segments --------------------------------------------------------------------------------

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        return self._open_segment(name)

    @asynccontextmanager
    async def _open_segment(self, name: str) -> AsyncIterator[Segment]:
        properties, connection = await self._answer_of(
            self._container_of(name), lambda number: CallInfo(number, name), _one_segment
        )
        yield RemoteSegment(
            ask=self.question,
            connection=connection,
            container_id=self._container_of(name),
            properties=properties,
        )

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        return await self.change(
            name, lambda number: CallCreate(number, name, attributes), _one_segment
        )

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        await self.change(
            name, lambda number: CallUpdateAttributes(number, name, updates), _nothing
        )

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self.question(
            name,
            lambda number: CallAttributes(number, name, keys),
            lambda reply: dict(reply_of(AnswerAttributes, reply).attributes),
        )

    async def seal(self, name: str) -> int:
        return await self.change(name, lambda number: CallSeal(number, name), _one_number)

    async def truncate(self, name: str, offset: int) -> None:
        await self.change(name, lambda number: CallTruncate(number, name, offset), _nothing)

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        check_segment_name(source)
        return await self.change(
            target,
            lambda number: CallMerge(number, target, source, seal_source, attribute_updates),
            _one_number,
        )

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        for source in sources:
            check_segment_name(source)
        return await self.change(
            target,
            lambda number: CallMergeAll(number, target, sources, seal_sources),
            lambda reply: list(reply_of(AnswerNumbers, reply).numbers),
        )

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        for source in sources:
            check_segment_name(source)
        await self.change(
            target, lambda number: CallForgetMerged(number, target, sources), _nothing
        )

    async def delete(self, name: str) -> None:
        await self.change(name, lambda number: CallDelete(number, name), _nothing)

    async def info(self, name: str) -> SegmentProperties:
        return await self.question(name, lambda number: CallInfo(number, name), _one_segment)

    async def flush(self, name: str | None = None) -> None:
        """Of one segment's container, or of all containers side by side."""
        if name is not None:
            await self._flush(self._container_of(name))
            return
        await gather_all(
            self._flush(ContainerId(number)) for number in range(self._locations.container_count)
        )

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        """Segments of all containers in name order (by code point), at most `limit` of them."""
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidRequestError(
                f"a listing has 1 to {LIST_LIMIT_MAX} segments a page limit={limit}"
            )
        if limit == 1 and start_after < prefix:
            # How long is this segment? One container knows, and a name sorts before all that it is the beginning of.
            first = await self._list(container_of(prefix, self._count), prefix, start_after, 1)
            if first and first[0].name == prefix:
                return first
        pages = await gather_all(
            self._list(ContainerId(number), prefix, start_after, limit)
            for number in range(self._count)
        )
        return list(islice(merge_sorted(*pages, key=lambda segment: segment.name), limit))

    # --- tables ----------------------------------------------------------------------------------

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._open_table(name)

    @asynccontextmanager
    async def _open_table(self, name: str) -> AsyncIterator[Table]:
        state, connection = await self._answer_of(
            self._container_of(name),
            lambda number: CallOpenTable(number, name),
            lambda reply: reply_of(AnswerTable, reply).state,
        )
        yield RemoteTable(
            ask=self.question,
            connection=connection,
            container_id=self._container_of(name),
            state=state,
        )

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await self.change(name, lambda number: CallCreateTable(number, name, key_length), _nothing)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        await self.change(
            name, lambda number: CallDeleteTable(number, name, must_be_empty), _nothing
        )

    # --- calls -----------------------------------------------------------------------------------

    async def question(
        self,
        name: str,
        make: Callable[[int], Command],
        convert: Callable[[Command], _Result],
    ) -> _Result:
        """What changes nothing, and may be asked again. Raises ContainerNotFoundError, and what the node answers."""
        return (await self._answer_of(self._container_of(name), make, convert))[0]

    async def change(
        self,
        name: str,
        make: Callable[[int], Command],
        convert: Callable[[Command], _Result],
    ) -> _Result:
        """Sent to one node, once. Raises as question(), and ContainerStoppedError: the outcome is unknown."""
        container_id = self._container_of(name)
        return (await self._answer_of(container_id, make, convert, repeatable=False))[0]

    async def _answer_of(
        self,
        container_id: ContainerId,
        make: Callable[[int], Command],
        convert: Callable[[Command], _Result],
        *,
        repeatable: bool = True,
    ) -> tuple[_Result, NodeConnection]:
        """The answer of the container's owner, and the connection over which it came."""
        refused: set[HostId] = set()
        broken: set[HostId] = set()
        is_fresh = False
        why = "it is assigned to no node"
        for _ in range(_ATTEMPTS_MAX):
            node = self._locations.node_to_ask(container_id)
            if node is None or node.node_id in refused:
                if is_fresh:
                    break
                await self._locations.refresh()
                is_fresh = True
                continue
            is_fresh = False
            try:
                connection = await self._nodes.connection(node)
                return await await_shielded(connection.submit(make, convert)), connection
            except (NodeUnreachableError, ContainerNotFoundError) as error:
                refused.add(node.node_id)
                why = f"its node does not answer for it ({error})"
            except ContainerStoppedError as error:
                if not repeatable:
                    raise
                # A connection may have ended for reasons of its own: the question goes over a new one, once.
                if node.node_id in broken:
                    refused.add(node.node_id)
                broken.add(node.node_id)
                why = f"its node does not answer ({error})"
        raise ContainerNotFoundError(container_id, why)

    @property
    def _count(self) -> int:
        return self._locations.container_count

    def _container_of(self, name: str) -> ContainerId:
        check_segment_name(name)
        return container_of(name, self._count)

    async def _flush(self, container_id: ContainerId) -> None:
        await self._answer_of(
            container_id, lambda number: CallFlush(number, container_id), _nothing
        )

    async def _list(
        self, container_id: ContainerId, prefix: str, start_after: str, limit: int
    ) -> Sequence[SegmentProperties]:
        found: list[SegmentProperties] = []
        after, left = start_after, limit
        while True:
            answer, _ = await self._answer_of(
                container_id,
                partial(_list_call, container_id, prefix, after, left),
                lambda reply: reply_of(AnswerSegments, reply),
            )
            found += answer.segments
            left = limit - len(found)
            if not answer.cut or left <= 0:
                return found
            after = found[-1].name


def _list_call(
    container_id: ContainerId, prefix: str, start_after: str, limit: int, number: int
) -> Command:
    return CallList(number, container_id, prefix, start_after, limit)


def _one_segment(reply: Command) -> SegmentProperties:
    (properties,) = reply_of(AnswerSegments, reply).segments
    return properties


def _one_number(reply: Command) -> int:
    (number,) = reply_of(AnswerNumbers, reply).numbers
    return number


def _nothing(reply: Command) -> None:
    reply_of(AnswerDone, reply)
