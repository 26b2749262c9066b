"""Clients outside every node: each request goes into the model before it is sent and when it is answered.

Errors of the store and NodeDiedError reach the caller after the model has learnt of them. Any other exception, and
any that says that stored bytes are damaged, is a bug and fails the run.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from segmentstore.contracts.errors import (
    ContainerStoppedError,
    ErrorKind,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import TABLE_KEY_LENGTH, AttributeKey, AttributeValue
from segmentstore.contracts.segments import (
    AttributeUpdate,
    ReadResultEntryKind,
    Segment,
    SegmentApi,
    SegmentProperties,
)
from segmentstore.contracts.tables import TableApi
from tests.sim.attempts import Append, ModelBreachError
from tests.sim.directory import Directory
from tests.sim.incarnation import Incarnation, Look
from tests.sim.loop import SimLoop
from tests.sim.model import Model, NameAttempt, Verb
from tests.sim.node import Node, NodeDiedError

Result = TypeVar("Result")

REQUEST_ERRORS = (SegmentStoreError, NodeDiedError)
"""What an actor has to expect of every request."""


_KNOWING_NOTHING = Look(tick=0, length=0, start=0, sealed=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of a read, fetched."""

    kind: ReadResultEntryKind
    offset: int
    data: bytes


class Client:
    """Sends requests to whichever node owns the name, and tells the model."""

    def __init__(self, loop: SimLoop, model: Model, directory: Directory) -> None:
        self.loop = loop
        self.model = model
        self._directory = directory

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> tuple[Incarnation, SegmentProperties]:
        node, api = self._directory.route(name)
        creation = self.model.create_begins(name)
        try:
            info = await self._ask(node, api.create(name, attributes))
        except REQUEST_ERRORS as error:
            self.model.create_failed(creation, error)
            raise
        return self.model.created(creation, info), info

    async def open(self, name: str) -> "OpenSegment":
        node, api = self._directory.route(name)
        began = self.model.next_tick()
        try:
            manager, segment, info = await self._ask(node, _enter(api, name))
        except SegmentNotFoundError:
            self.model.not_found(name, began)
            raise
        try:
            life = self.model.opened(name, info, began)
        except ModelBreachError:
            self.loop.bury(manager)  # so that the breach is not overtaken by a complaint about it
            raise
        return OpenSegment(self, node, manager, segment, life)

    async def info(self, name: str) -> SegmentProperties:
        node, api = self._directory.route(name)
        began = self.model.next_tick()
        looks = {id(life): life.look(began) for life in self.model.alive(name)}
        try:
            info = await self._ask(node, api.info(name))
        except SegmentNotFoundError:
            self.model.not_found(name, began)
            raise
        life = self.model.opened(name, info, began)
        if id(life) in looks:
            life.learn_info(info, looks[id(life)])
        return info

    async def seal(self, name: str) -> int:
        length: int = await self._verb(Verb.SEAL, name, lambda api: api.seal(name), length=True)
        return length

    async def truncate(self, name: str, offset: int) -> None:
        await self._verb(Verb.TRUNCATE, name, lambda api: api.truncate(name, offset), offset=offset)

    async def delete(self, name: str) -> None:
        await self._verb(Verb.DELETE, name, lambda api: api.delete(name))

    async def merge(
        self, target: Incarnation, sources: Sequence[Incarnation], *, seal_sources: bool
    ) -> None:
        """One source by itself, or several at once. All are incarnations that only the caller deletes or creates."""
        node, api = self._directory.route(target.name)
        names = [source.name for source in sources]
        attempts = [self.model.verb_begins(Verb.MERGE, name) for name in names]
        merges = [self.model.merge_begins(target, source) for source in sources]
        try:
            lengths = await self._ask(node, _merge(api, target.name, names, seals=seal_sources))
        except REQUEST_ERRORS as error:
            outcome: BaseException = error
            if len(sources) > 1:
                outcome = ContainerStoppedError(f"those before the refused one are merged: {error}")
            for attempt, merge in zip(attempts, merges, strict=True):
                self.model.merge_failed(merge, outcome)
                self.model.verb_failed(attempt, outcome)
            raise
        for attempt, merge, length in zip(attempts, merges, lengths, strict=True):
            self.model.merge_acked(merge, length)
            self.model.verb_acked(attempt)

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        """The caller will not ask for those merges again."""
        node, api = self._directory.route(target)
        await self._ask(node, api.forget_merged(target, sources))

    async def flush_and_look(self, name: str) -> SegmentProperties | None:
        """Flush, and ask the same container for the result; None if it owns nothing any more by then."""
        node, api = self._directory.route(name)
        await self._ask(node, api.flush(name))
        info = await self._ask(node, api.info(name))
        return info if self.owns(node) else None

    async def flush_everything(self) -> None:
        """Every container; afterwards each says that Tier 2 has all of every segment."""
        for node, api in self.containers():
            await self._ask(node, api.flush())
            for info in await self._ask(node, api.list_segments()):
                if is_table(info):
                    continue  # compaction goes on
                behind = info.storage_length != info.length
                if behind or info.sealed_in_storage != info.sealed:
                    raise ModelBreachError(f"flushed, yet Tier 2 is behind: {info}")

    def containers(self) -> list[tuple[Node, SegmentApi]]:
        """Every container, whatever it owns."""
        return self._directory.every_container()

    def answers_truly(self, node: Node) -> bool:
        return self._directory.answers_truly(node)

    def owns(self, node: Node) -> bool:
        """False for a zombie: it may answer from the past, but may not ack."""
        return self._directory.owns(node)

    async def list_names(
        self, container: tuple[Node, SegmentApi], start_after: str, *, limit: int
    ) -> list[str]:
        """Names that one container lists."""
        node, api = container
        listing = await self._ask(node, api.list_segments("", start_after, limit))
        return [info.name for info in listing]

    async def ask_table(
        self, name: str, work: Callable[[TableApi], Coroutine[Any, Any, Result]]
    ) -> Result:
        node, api = self._directory.route(name)
        return await self._ask(node, work(api))

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        node, api = self._directory.route(name)
        await self._ask(node, api.update_attributes(name, updates))

    async def attributes(self, life: Incarnation, keys: list[AttributeKey]) -> None:
        """Look at attributes by name; only for names that are never created again."""
        node, api = self._directory.route(life.name)
        floors = {key: life.counters[key].floor for key in keys if key in life.counters}
        values = await self._ask(node, api.attributes(life.name, keys))
        life.learn_attributes(values, keys, floors)

    async def _verb(
        self,
        verb: Verb,
        name: str,
        send: Callable[[SegmentApi], Coroutine[Any, Any, Any]],
        *,
        offset: int = 0,
        length: bool = False,
    ) -> Any:
        node, api = self._directory.route(name)
        attempt: NameAttempt = self.model.verb_begins(verb, name, offset)
        try:
            result = await self._ask(node, send(api))
        except REQUEST_ERRORS as error:
            self.model.verb_failed(attempt, error)
            raise
        self.model.verb_acked(attempt, result if length else 0)
        return result

    async def _ask(self, node: Node, work: Coroutine[Any, Any, Result]) -> Result:
        what = getattr(work, "__qualname__", "")
        try:
            answer = await self.loop.invoke(node, work)
        except REQUEST_ERRORS as error:
            self.loop.trace("ask", what, type(error).__name__)
            if isinstance(error, SegmentStoreError):
                judge(error)
            raise
        self.loop.trace("ask", what, "ok")
        return answer


class OpenSegment:
    """A segment held open over one connection. Close it, whatever happened."""

    def __init__(
        self,
        client: Client,
        node: Node,
        manager: AbstractAsyncContextManager[Segment],
        segment: Segment,
        life: Incarnation,
    ) -> None:
        self.life = life
        self.connection = client.model.new_connection()
        self._client = client
        self._node = node
        self._manager = manager
        self._segment = segment

    @property
    def alive(self) -> bool:
        return self._node.alive

    @property
    def owned(self) -> bool:
        """Not the connection to a zombie."""
        return self._client.owns(self._node)

    @property
    def awake(self) -> bool:
        return not self._node.paused

    @property
    def pause_count(self) -> int:
        return self._node.pause_count

    def _look(self) -> Look:
        if not self._client.answers_truly(self._node):
            return _KNOWING_NOTHING
        return self.life.look(self._client.model.next_tick())

    def append(
        self, append: Append, updates: Sequence[AttributeUpdate] = ()
    ) -> "asyncio.Future[int]":
        """Submit it now; outcome() must be awaited with what this returns."""
        work = _append(self._segment, append, updates)
        return self._client.loop.submit(self._node, work)

    async def outcome(self, append: Append, answer: "asyncio.Future[int]") -> int:
        """Wait for the ack, tell the model, give the new length or raise."""
        model = self._client.model
        try:
            length = await answer
        except asyncio.CancelledError as error:
            model.append_failed(append, error)
            raise
        except REQUEST_ERRORS as error:
            self._client.loop.trace("append", append.number, type(error).__name__)
            model.append_failed(append, error)
            if isinstance(error, SegmentStoreError):
                judge(error)
            raise
        self._client.loop.trace("append", append.number, "acked", length)
        model.append_acked(append, length)
        return length

    async def info(self) -> SegmentProperties:
        look = self._look()
        info = await self._ask(_info(self._segment))
        self.life.learn_info(info, look)
        return info

    async def read(self, offset: int, max_length: int, *, wait: bool = False) -> list[Piece]:
        """Fetched entries, checked against the model; with `wait`, what a tail entry brings if nothing else came."""
        look = self._look()
        pieces = await self._ask(_read(self._segment, offset, max_length, wait=wait))
        for piece in pieces:
            self._learn(piece, look.length)
            if piece.data:
                # Bytes never change: a process that was replaced gives those that it has, also truncated ones.
                owned = self._client.owns(self._node)
                self.life.learn_read(piece.offset, piece.data, look if owned else _KNOWING_NOTHING)
        return pieces

    def _learn(self, piece: Piece, known_length: int) -> None:
        life = self.life
        match piece.kind:
            case ReadResultEntryKind.FUTURE if not piece.data and piece.offset < known_length:
                raise ModelBreachError(f"{life}: acked bytes are not readable {piece}")
            case ReadResultEntryKind.END_OF_SEGMENT:
                life.learn_seal(piece.offset)
            case ReadResultEntryKind.TRUNCATED if piece.offset >= life.start_max:
                raise ModelBreachError(f"{life}: truncated, yet nobody did {piece}")

    async def load_attributes(self, keys: list[AttributeKey]) -> dict[AttributeKey, AttributeValue]:
        """Committed values by this connection, behind everything it submitted before."""
        life = self.life
        floors = {key: life.counters[key].floor for key in keys if key in life.counters}
        values = await self._ask(_load(self._segment, keys))
        life.learn_attributes(values, keys, floors)
        return values

    async def close(self) -> None:
        if not self._node.alive:
            return
        try:
            await self._client.loop.invoke(self._node, _leave(self._manager))
        except REQUEST_ERRORS as error:
            if isinstance(error, SegmentStoreError):
                judge(error)

    async def _ask(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await self._client.loop.invoke(self._node, work)
        except SegmentStoreError as error:
            judge(error)
            if isinstance(error, SegmentNotFoundError) and not self.life.gone_attempts:
                raise ModelBreachError(f"{self.life} is lost: {error}") from error
            raise


def is_table(info: SegmentProperties) -> bool:
    return TABLE_KEY_LENGTH in info.core_attributes


def judge(error: SegmentStoreError) -> None:
    """In a world without bit rot nothing may be called corrupt."""
    if error.kind is ErrorKind.CORRUPT:
        raise ModelBreachError(f"corruption was reported: {error}") from error


async def _enter(
    api: SegmentApi, name: str
) -> tuple[AbstractAsyncContextManager[Segment], Segment, SegmentProperties]:
    manager = api.open_segment(name)
    segment = await manager.__aenter__()
    try:
        return manager, segment, segment.info()
    except SegmentStoreError:  # its container has ended in between
        await manager.__aexit__(None, None, None)
        raise


async def _merge(
    api: SegmentApi, target: str, sources: Sequence[str], *, seals: bool
) -> Sequence[int]:
    if len(sources) == 1:
        return [await api.merge(target, sources[0], seal_source=seals)]
    return await api.merge_all(target, sources, seal_sources=seals)


async def _leave(manager: AbstractAsyncContextManager[Segment]) -> None:
    await manager.__aexit__(None, None, None)


async def _append(segment: Segment, append: Append, updates: Sequence[AttributeUpdate]) -> int:
    # Shielded: cancelling a waiter never cancels the work.
    return await asyncio.shield(
        segment.append(
            append.data, offset=append.offset, attribute_updates=updates, seal=append.seals
        )
    )


async def _info(segment: Segment) -> SegmentProperties:
    info = segment.info()
    await segment.confirm()
    return info


async def _load(
    segment: Segment, keys: Sequence[AttributeKey]
) -> dict[AttributeKey, AttributeValue]:
    await asyncio.shield(segment.barrier())
    return dict(await segment.load_attributes(keys))


async def _read(segment: Segment, offset: int, max_length: int, *, wait: bool) -> list[Piece]:
    pieces: list[Piece] = []
    async with aclosing(segment.read(offset, max_length)) as cursor:
        async for entry in cursor:
            blocked = entry.kind is ReadResultEntryKind.FUTURE and (bool(pieces) or not wait)
            useless = entry.kind is ReadResultEntryKind.TRUNCATED
            data = b"" if blocked or useless else await entry.content()
            pieces.append(Piece(entry.kind, entry.offset, data))
            if blocked or useless:
                break
    return pieces
