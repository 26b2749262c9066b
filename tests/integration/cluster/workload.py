"""Clients of a cluster that write, read, seal, create, delete and update entries all the time, all of it recorded.

    a writer for each long-lived segment     appends, some of them at an offset: what a fault costs shows in its pauses
    mixed clients                            the same segments, by every verb that leaves them alive
    short-lived segments                     made, appended to, sealed, deleted, and asked for then, by two clients
    a wire client                            appends to the segment of a stream, which the mixed clients read over HTTP
    table clients                            entries by conditions on their versions, and reads of them

HTTP calls go to any node. The content of each append says which client sent it, and as which of its own.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random

import aiohttp

from segmentstore.client.errors import (
    AlreadyExistsError,
    ClientError,
    ConnectionLostError,
    DeadlineExceededError,
    OutcomeUnknownError,
    PlaceUnknownError,
    RefusedError,
    ServiceUnavailableError,
    TableConditionError,
)
from segmentstore.client.settings import ClientSettings
from segmentstore.client.store import Store, connect
from segmentstore.client.stream_config import ScalingPolicy, StreamConfig
from segmentstore.contracts.errors import ErrorKind, SegmentSealedError
from segmentstore.contracts.tables import NOT_EXISTS
from tests.integration.cluster.history import History, NothingDoneError, OutcomeLostError
from tests.integration.cluster.http_calls import HttpCalls, http_session
from tests.integration.cluster.processes import Processes
from tests.linearizability.operation import NO_ENTRY, Operation, Outcome, Verb

_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """How much there is to do. Times in seconds."""

    segments: int = 8
    mixed_clients: int = 4
    short_lived: int = 2
    """Short-lived segments that are there at the same time."""
    table_clients: int = 3
    """0: neither tables nor streams, which need a controller."""
    table_keys: int = 4
    pause_seconds: float = 0.05
    """Of each client between two calls."""
    call_seconds_max: float = 20.0
    """Of a client of streams and tables, which notices by itself that a server is silent."""
    silence_seconds: float = ClientSettings().silence_seconds
    """Behind which it does so."""
    http_seconds_max: float = 4.0


class Workload:
    """Everything that the clients of one run share. Made by `running`."""

    def __init__(
        self,
        processes: Processes,
        session: aiohttp.ClientSession,
        *,
        settings: WorkloadSettings,
        random: Random,
        prefix: str,
    ) -> None:
        self.processes = processes
        self.history = History()
        self.settings = settings
        self.random = random
        self.prefix = prefix
        self.segments = [f"{prefix}/{number}" for number in range(settings.segments)]
        self._session = session
        self._numbers = count(1)
        self._contents = count(1)
        self._is_stopping = False
        self._lengths: dict[str, int] = {}

    def client(self, node: str = "", *, seconds_max: float = 0.0) -> HttpCalls:
        """A client of all nodes, or of one of them."""
        return HttpCalls(
            self._session,
            lambda: [each.http for each in self.processes.rows("node") if node in ("", each.name)],
            history=self.history,
            client=next(self._numbers),
            random=self.random,
            seconds_max=seconds_max or self.settings.http_seconds_max,
        )

    def content(self) -> bytes:
        """Bytes that no other append of this run has."""
        return b"%d;" % next(self._contents) + b"." * self.random.choice((0, 3, 30))

    def known_length(self, name: str) -> int:
        """Of a segment, as some client was told last."""
        return self._lengths.get(name, 0)

    async def prepare(self) -> None:
        """Make the long-lived segments, the stream and the table."""
        client = self.client()
        for name in self.segments:
            await until_told(partial(client.create, name))
        if self.settings.table_clients:
            async with self._store() as store:
                await _made(store.scope(self._scope).create)
                stream = store.stream(f"{self._scope}/stream")
                await _made(lambda: stream.create(StreamConfig(ScalingPolicy.fixed(1))))
                table = store.table(f"{self._scope}/table")
                await _made(lambda: table.create(key_length=_KEY_BYTES))
            self.segments.append(self._stream_segment)
            self.history.note_creation(self._stream_segment)

    @property
    def _scope(self) -> str:
        return re.sub("[^a-z0-9]", "-", self.prefix)

    @property
    def _stream_segment(self) -> str:
        return f"{self._scope}/stream/0.#epoch.0"

    def _store(self) -> Store:
        settings = ClientSettings(
            request_seconds=self.settings.call_seconds_max,
            silence_seconds=self.settings.silence_seconds,
        )
        return connect(self.processes.controllers, settings=settings)

    async def run(self) -> None:
        """Until `stop`, and then until every call has ended."""
        async with asyncio.TaskGroup() as group:
            for name in self.segments:
                if name != self._stream_segment:
                    group.create_task(self._write(name))
            for _ in range(self.settings.mixed_clients):
                group.create_task(self._mix())
            for number in range(self.settings.short_lived):
                group.create_task(self._short_lives(number))
            if self.settings.table_clients:
                group.create_task(self._use_store())

    def stop(self) -> None:
        self._is_stopping = True

    async def read_everything(self) -> None:
        """What is there in the end is part of the history."""
        client = self.client()
        for name in self.segments:
            told = await until_told(partial(client.info, name))
            await until_told(partial(client.read, name, told.start or 0, 1 << 30))

    async def append_once(self, client: HttpCalls, name: str) -> Operation | None:
        offset = self.known_length(name) if self.random.random() < 0.2 else None
        told = await client.append(name, self.content(), offset=offset)
        return self._noted(told)

    def _noted(self, told: Operation | None) -> Operation | None:
        if told is not None and told.length is not None:
            self._lengths[told.target] = max(told.length, self.known_length(told.target))
        return told

    async def _pause(self) -> None:
        await asyncio.sleep(self.settings.pause_seconds * 2 * self.random.random())

    async def _write(self, name: str) -> None:
        client = self.client()
        while not self._is_stopping:
            await self.append_once(client, name)
            await self._pause()

    async def _mix(self) -> None:
        client = self.client()
        while not self._is_stopping:
            await self.any_call(client, self.random.choice(self.segments))
            await self._pause()

    async def any_call(self, client: HttpCalls, name: str) -> Operation | None:
        """One call that leaves the segment alive."""
        length = self.known_length(name)
        match self.random.choices(
            ("append", "info", "tail", "whole", "truncate"), (4, 4, 6, 1, 0.3)
        )[0]:
            case "append":
                return await self.append_once(client, name)
            case "info":
                return self._noted(await client.info(name))
            case "tail":
                return self._noted(await client.read(name, max(length - 50, 0), 100_000))
            case "whole":
                return self._noted(await client.read(name, 0, 1 << 30))
        return await client.truncate(name, max(0, length - self.random.randrange(2000)))

    async def _short_lives(self, place: int) -> None:
        lives = count()
        while not self._is_stopping:
            name = f"{self.prefix}/short/{place}/{next(lives)}"
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(self._live(self.client(), name))

    async def _live(self, client: HttpCalls, name: str) -> None:
        append = partial(self.append_once, client, name)
        read = partial(client.read, name, 0, 100_000)
        seal, delete = partial(client.seal, name), partial(client.delete, name)
        info = partial(client.info, name)
        for step in (
            partial(client.create, name),
            append,
            append,
            append,
            seal,
            append,
            read,
            delete,
            info,
        ):
            if self._is_stopping:
                return
            await step()
            await self._pause()

    # --- streams and tables -----------------------------------------------------------------------

    async def _use_store(self) -> None:
        async with self._store() as store, asyncio.TaskGroup() as group:
            group.create_task(self._write_wire(store, self._stream_segment))
            for _ in range(self.settings.table_clients):
                group.create_task(self._update_entries(store, f"{self._scope}/table"))

    async def _write_wire(self, store: Store, name: str) -> None:
        segment = store.segment(name)
        client = next(self._numbers)
        while not self._is_stopping:
            content = self.content()
            asked = Operation(client, name, Verb.APPEND, Outcome.OK, 0.0, content=content)

            async def request(asked: Operation = asked, content: bytes = content) -> Operation:
                try:
                    return replace(asked, length=await segment.append(content))
                except PlaceUnknownError:
                    return asked
                except SegmentSealedError as error:
                    raise AssertionError("the segment of a stream is open") from error

            await self._recorded(asked, request)
            await self._pause()

    async def _update_entries(self, store: Store, name: str) -> None:
        table = store.table(name)
        client = next(self._numbers)
        versions: dict[bytes, int] = {}
        while not self._is_stopping:
            key = b"key%05d" % self.random.randrange(self.settings.table_keys)
            target = f"{name} {key.decode()}"
            verb = self.random.choices((Verb.PUT, Verb.GET, Verb.REMOVE), (5, 4, 1))[0]
            version = versions.get(key, NO_ENTRY)
            asked = Operation(client, target, verb, Outcome.OK, 0.0)
            if verb is not Verb.GET:
                content = self.content() if verb is Verb.PUT else None
                asked = replace(asked, version=version, content=content)
            if verb is Verb.REMOVE and version == NO_ENTRY:
                continue

            async def request(asked: Operation = asked, key: bytes = key) -> Operation:
                try:
                    match asked.verb:
                        case Verb.GET:
                            entry = await table.get(key)
                            if entry is None:
                                return replace(asked, content=None)
                            return replace(
                                asked, content=bytes(entry.value), new_version=entry.version
                            )
                        case Verb.REMOVE:
                            assert asked.version is not None, asked
                            await table.remove(key, version=asked.version)
                            return asked
                    if asked.version == NO_ENTRY:
                        new = await table.insert(key, asked.content or b"")
                    else:
                        assert asked.version is not None, asked
                        new = await table.replace(key, asked.content or b"", version=asked.version)
                    return replace(asked, new_version=new)
                except TableConditionError:
                    return replace(asked, outcome=Outcome.BAD_VERSION)

            told = await self._recorded(asked, request)
            if told is not None:
                if told.outcome is Outcome.OK:
                    versions[key] = NO_ENTRY if told.new_version is None else told.new_version
                elif told.verb is not Verb.GET:
                    versions.pop(key, None)
            await self._pause()

    async def _recorded(
        self, asked: Operation, request: Callable[[], Awaitable[Operation]]
    ) -> Operation | None:
        async def translated() -> Operation:
            try:
                return await request()
            except (OutcomeUnknownError, DeadlineExceededError) as error:
                raise OutcomeLostError(str(error)) from error
            except (ConnectionLostError, ServiceUnavailableError) as error:
                raise NothingDoneError(str(error)) from error
            except (RefusedError, ClientError) as error:
                raise OutcomeLostError(str(error)) from error

        try:
            return await self.history.record(asked, translated)
        except OutcomeLostError:
            return None


assert NOT_EXISTS == NO_ENTRY, "a condition of an entry has one form"


async def _made(call: Callable[[], Awaitable[object]]) -> None:
    """Until what the call makes is there."""
    while True:
        try:
            await call()
        except AlreadyExistsError:
            return
        except ClientError as error:
            if error.kind is not ErrorKind.UNAVAILABLE:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def until_told(call: Callable[[], Awaitable[Operation | None]]) -> Operation:
    """Calls until there is an answer. For what may be done twice."""
    while True:
        told = await call()
        if told is not None:
            return told
        await asyncio.sleep(0.1)


@asynccontextmanager
async def running(
    processes: Processes, *, settings: WorkloadSettings, random: Random, prefix: str
) -> AsyncIterator[Workload]:
    """Clients at work inside the block; behind it they have ended. A client that fails ends the block."""
    async with http_session() as session:
        workload = Workload(processes, session, settings=settings, random=random, prefix=prefix)
        await workload.prepare()
        async with asyncio.TaskGroup() as group:
            working = group.create_task(workload.run())
            yield workload
            workload.stop()
            await working
            await workload.read_everything()
