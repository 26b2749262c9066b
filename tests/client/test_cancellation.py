"""Every wait of the client library is cancelled in turn: nothing is lost, stored twice, stuck or left behind.

A scenario prepares something, does the work that is cancelled, and checks what is there afterwards: whoever goes on
with the same objects must be able to, and what was certain before the cancellation must be so behind it.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import pytest

from segmentstore.client import (
    ByteSegment,
    Event,
    EventWriter,
    GroupReader,
    ReaderGroup,
    ScalingPolicy,
    Store,
    Stream,
    StreamConfig,
    StreamReader,
    Transaction,
    TransactionState,
    connect,
)
from segmentstore.client.errors import (
    AlreadyExistsError,
    ClientError,
    NotFoundError,
)
from segmentstore.client.transaction import Stage
from segmentstore.codec.event_frame import frame_event
from segmentstore.codec.stream_names import segment_name
from segmentstore.codec.wire_protocol.appends import AppendBlockEnd
from segmentstore.codec.wire_protocol.command import Command, Hello
from segmentstore.codec.wire_protocol.reads import ReadSegment
from segmentstore.codec.wire_protocol.tables import UpdateTableEntries
from tests.client.cancellation import HOWS, cancelled_at
from tests.client.conftest import SETTINGS
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore
from tests.client.test_staged_transactions import RANGES, name_of, stage_in

_SMALL = replace(
    SETTINGS,
    retry_seconds_first=0.001,
    retry_seconds_max=0.002,
    event_bytes_max=100,
    block_bytes_max=40,
    unacknowledged_events_max=2,
    commit_seconds=1000.0,
    reader_timeout_seconds=1000.0,
)
_LARGE = b"large" * 100


@dataclass
class World:
    """What a scenario works with: servers that all attempts share, a client and a name of its own."""

    fake: FakeStore
    controller: FakeController
    store: Store
    number: int
    how: str

    async def stream(self, segments: int = 1) -> Stream:
        stream = self.store.stream(f"s/t{self.number}")
        await stream.create(StreamConfig(ScalingPolicy.fixed(segments)))
        return stream

    def events(self, stream: Stream) -> list[bytes]:
        """Everything that is stored, predecessors first."""
        known = self.controller.scopes[stream.name.scope][stream.name.stream]
        return [
            event
            for each in sorted(known.ranges)
            for event in self.fake.events(segment_name(stream.name.scope, stream.name.stream, each))
        ]


class Scenario:
    """prepare(), then work() is cancelled, then check()."""

    async def prepare(self, world: World) -> None:
        """What is not cancelled."""

    async def work(self, world: World) -> None:
        raise NotImplementedError

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        """What must hold behind it."""


@dataclass
class Written:
    """What a writer tried in order, and what was certainly stored."""

    tried: list[bytes] = field(default_factory=list)
    sure: int = 0

    def next(self) -> bytes:
        self.tried.append(b"%d" % len(self.tried))
        return self.tried[-1]

    def large(self) -> bytes:
        self.tried.append(b"%d" % len(self.tried) + _LARGE)
        return self.tried[-1]

    def all_sure(self) -> None:
        self.sure = len(self.tried)

    def check(self, stored: Sequence[bytes]) -> None:
        """Each at most once, in order, and all that are sure."""
        assert [event for event in self.tried if event in stored] == list(stored)
        assert set(self.tried[: self.sure]) <= set(stored)


async def _write(writer: EventWriter | Transaction, written: Written) -> None:
    for _ in range(3):
        await writer.write(written.next(), key="k")
    await writer.flush()
    if isinstance(writer, EventWriter):
        written.all_sure()
        await writer.write_and_wait(written.next(), key="k")
        written.all_sure()
    await writer.write(written.large(), key="k")
    await writer.write(written.next(), key="k")


class WholeWriter(Scenario):
    """A writer from its beginning to its end."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.written = Written()

    async def work(self, world: World) -> None:
        async with self.stream.writer() as writer:
            await _write(writer, self.written)
        self.written.all_sure()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        self.written.check(world.events(self.stream))


class WriterThatGoesOn(Scenario):
    """Calls of a writer over a scale; the writer is used afterwards."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.written = Written()
        self.writer = self.stream.writer()
        await self.writer.open()

    async def work(self, world: World) -> None:
        await _write(self.writer, self.written)
        await self.stream.scale_to(2)
        await _write(self.writer, self.written)

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        await self.writer.write_and_wait(self.written.next(), key="k")
        await self.writer.write(self.written.next(), key="k")
        await self.writer.flush()
        self.writer.check()
        await self.writer.close()
        self.written.tried = [
            each for each in self.written.tried if each in world.events(self.stream)
        ]
        self.written.all_sure()
        self.written.check(world.events(self.stream))


class WriterClosing(Scenario):
    """Only the end of a writer that has something outstanding."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.writer = self.stream.writer()
        await self.writer.open()
        await self.writer.write_and_wait(b"first")
        await self.writer.write(b"second")

    async def work(self, world: World) -> None:
        await self.writer.__aexit__(None, None, None)

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        with pytest.raises(ClientError, match="closed"):
            await self.writer.write(b"behind")


async def _scaled_stream(world: World) -> tuple[Stream, list[bytes]]:
    """Four keys through two scales, sealed."""
    stream = await world.stream(2)
    written: list[bytes] = []
    for number, segments in enumerate((3, 1, 0)):
        async with stream.writer() as writer:
            for key in range(4):
                for part in range(2):
                    event = b"%d:%d" % (key, 2 * number + part)
                    written.append(event)
                    await writer.write(event, key=f"key {key}")
        if segments:
            await stream.scale_to(segments)
    await stream.seal()
    return stream, written


def _assert_once_and_in_order(seen: Sequence[bytes], written: Sequence[bytes]) -> None:
    assert Counter(seen) == Counter(written)
    for key in range(4):
        of_key = [event for event in seen if event.startswith(b"%d:" % key)]
        assert of_key == sorted(of_key)


class WholeReader(Scenario):
    """A reader from its beginning to its end."""

    async def prepare(self, world: World) -> None:
        self.stream, self.written = await _scaled_stream(world)

    async def work(self, world: World) -> None:
        async with self.stream.read() as reader:
            async for _ in reader:
                pass

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        async with self.stream.read() as reader:
            _assert_once_and_in_order([event.data async for event in reader], self.written)


class ReaderThatGoesOn(Scenario):
    """Waits for events; the reader is used afterwards."""

    async def prepare(self, world: World) -> None:
        self.stream, self.written = await _scaled_stream(world)
        self.seen: list[bytes] = []
        self.reader: StreamReader = self.stream.read()
        await self.reader.__aenter__()

    async def work(self, world: World) -> None:
        async for event in self.reader:
            self.seen.append(event.data)

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        cut = self.reader.cut()
        await self.work(world)
        _assert_once_and_in_order(self.seen, self.written)
        await self.reader.__aexit__(None, None, None)
        async with self.stream.read(cut) as reader:
            rest = [event.data async for event in reader]
        assert Counter(rest) <= Counter(self.written)


async def _group(world: World) -> tuple[ReaderGroup, list[bytes]]:
    stream, written = await _scaled_stream(world)
    group = world.store.reader_group(f"s/g{world.number}")
    await group.create([stream.name.stream])
    return group, written


class WholeGroupReader(Scenario):
    """A reader of a group from its beginning to its end, and another that takes over."""

    async def prepare(self, world: World) -> None:
        self.group, self.written = await _group(world)
        self.seen: list[bytes] = []
        self.acknowledged = 0
        self.is_leaving = False

    async def work(self, world: World) -> None:
        async with self.group.reader("first") as reader:
            async for event in reader:
                self.seen.append(event.data)
                if len(self.seen) % 5 == 0:
                    await reader.checkpoint()
                    self.acknowledged = len(self.seen)
            self.is_leaving = True
        self.acknowledged = len(self.seen)

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        readers = (await self.group.info()).readers
        if world.how == "twice" or (was_cancelled and self.is_leaving):
            # Its farewell may be cancelled; the others notice in time.
            await self.group.reader_offline("first")
        else:
            assert not readers
        async with self.group.reader("second") as reader:
            rest = [event.data async for event in reader]
        assert set(self.seen) | set(rest) == set(self.written)
        assert len(set(rest)) == len(rest)
        assert not set(self.seen[: self.acknowledged]) & set(rest)


class GroupReaderThatGoesOn(Scenario):
    """Events and checkpoints beside a second reader, to whom segments are given; the reader is used afterwards."""

    async def prepare(self, world: World) -> None:
        self.group, self.written = await _group(world)
        self.seen: list[bytes] = []
        self.reader: GroupReader = self.group.reader("first")
        await self.reader.__aenter__()
        await self.reader._table.change(lambda state: state.join("other", 1))

    async def work(self, world: World) -> None:
        for _ in range(3):
            self._take(await anext(self.reader))
        await self.reader.checkpoint()
        self._take(await anext(self.reader))
        await self.reader.checkpoint()

    def _take(self, event: Event) -> None:
        self.seen.append(event.data)

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        await self.group.reader_offline("other")
        await self.reader.checkpoint()
        async for event in self.reader:
            self._take(event)
        _assert_once_and_in_order(self.seen, self.written)
        await self.reader.__aexit__(None, None, None)
        assert not (await self.group.info()).readers


class GroupMade(Scenario):
    """A group is created; if it may not be, it is created again."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.group = world.store.reader_group(f"s/g{world.number}")

    async def work(self, world: World) -> None:
        await self.group.create([self.stream.name.stream])

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        with suppress(AlreadyExistsError):
            await self.group.create([self.stream.name.stream])
        async with self.group.reader("r"):
            assert (await self.group.info()).readers == {"r": [f"{self.stream.name}/0"]}
        await self.group.delete()


class GroupDeleted(Scenario):
    """A group is deleted; if it may still be there, it is deleted again."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.group = world.store.reader_group(f"s/g{world.number}")
        await self.group.create([self.stream.name.stream])

    async def work(self, world: World) -> None:
        await self.group.delete()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        with suppress(NotFoundError):
            await self.group.delete()
        assert f"s/g{world.number}" not in world.controller.groups
        with pytest.raises(NotFoundError):
            await self.group.info()
        await self.group.create([self.stream.name.stream])


class WholeTransaction(Scenario):
    """A transaction from its beginning to its end."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.written = Written()

    async def work(self, world: World) -> None:
        async with self.stream.transaction() as transaction:
            await _write(transaction, self.written)
        self.written.all_sure()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        stored = world.events(self.stream)
        assert stored in ([], self.written.tried)
        self.written.check(stored)


class TransactionThatGoesOn(Scenario):
    """Writes and a commit; the transaction is committed afterwards."""

    async def prepare(self, world: World) -> None:
        self.stream = await world.stream()
        self.written = Written()
        self.transaction = self.stream.transaction()
        await self.transaction.__aenter__()

    async def work(self, world: World) -> None:
        await _write(self.transaction, self.written)
        await self.transaction.commit()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        if await self.transaction.state() is TransactionState.OPEN:
            await self.transaction.commit()
        await self.transaction.__aexit__(None, None, None)
        stored = world.events(self.stream)
        if not was_cancelled:
            self.written.all_sure()
        self.written.check(stored)
        assert len(stored) >= len(self.written.tried) - 1  # the one whose write was cancelled


class WholeStage(Scenario):
    """A stage from its beginning to its end."""

    async def prepare(self, world: World) -> None:
        for each in RANGES:
            world.fake.segments.pop(name_of(each.segment_id), None)
            world.fake.create(name_of(each.segment_id))
        world.fake.merged.clear()
        self.stage: Stage = stage_in(world.fake, _SMALL)
        self.written = Written()

    async def work(self, world: World) -> None:
        async with self.stage:
            for _ in range(4):
                await self.stage.write(0, frame_event(self.written.next()), events=1)
            await self.stage.write(0, frame_event(self.written.large()), events=1)
            self.written.all_sure()
            await self.stage.write(0, frame_event(self.written.next()), events=1)
        self.written.all_sure()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        self.written.check(world.fake.events(name_of(0)))


class TableLife(Scenario):
    """Everything a table does; afterwards it does it again."""

    async def prepare(self, world: World) -> None:
        self.table = world.store.table(f"s/k{world.number}")

    async def work(self, world: World) -> None:
        await self.table.create(key_length=1)
        await self.table.put(b"a", b"1")
        version = await self.table.insert(b"b", b"2")
        await self.table.replace(b"b", b"3", version=version)
        await self.table.remove(b"a")
        async with aclosing(self.table.entries()) as entries:
            assert [entry.value async for entry in entries] == [b"3"]
        assert await self.table.get(b"a") is None
        await self.table.delete()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        with suppress(NotFoundError):
            await self.table.delete()
        for number in range(4):
            name = f"s/k{world.number}_kvtable/{number}.#epoch.0"
            world.fake.segments.pop(name, None)
        await self.work(world)


class Appends(Scenario):
    """Appends to a segment, with an offset and without, which is used afterwards."""

    async def prepare(self, world: World) -> None:
        self.segment: ByteSegment = (await world.stream()).segment(0)
        self.tried: list[bytes] = []
        self.sure = b""

    async def work(self, world: World) -> None:
        for number in range(4):
            content = b"<%d>" % number
            self.tried.append(content)
            end = len(self.sure) if number % 2 else None
            assert await self.segment.append(content, offset=end) == 3 * (number + 1)
            self.sure += content

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        await self.segment.append(b"<behind>")
        found = await self.segment.read(0, 1000)
        possible = [self.sure, b"".join(self.tried)]
        assert found in [each + b"<behind>" for each in possible]


class Tail(Scenario):
    """Pieces as they come."""

    async def prepare(self, world: World) -> None:
        stream = await world.stream()
        self.segment = stream.segment(0)
        await self.segment.append(b"bytes")
        await self.segment.seal()

    async def work(self, world: World) -> None:
        async with aclosing(self.segment.tail(0)) as pieces:
            assert [piece async for piece in pieces] == [b"bytes"]

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        await self.work(world)


class StreamLife(Scenario):
    """The life of a scope and a stream; afterwards it is lived to its end."""

    async def prepare(self, world: World) -> None:
        self.scope = world.store.scope(f"scope{world.number}")
        self.stream = world.store.stream(f"scope{world.number}/t")

    async def work(self, world: World) -> None:
        await self.scope.create()
        await self.stream.create()
        await self.stream.update(StreamConfig(ScalingPolicy.fixed(2)))
        await self.stream.scale_to(2)
        await self.stream.truncate(await self.stream.tail())
        await self.stream.info()

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        for create in (self.scope.create, self.stream.create):
            with suppress(AlreadyExistsError):
                await create()
        await self.stream.seal()
        assert (await self.stream.info()).is_sealed
        await self.stream.delete()
        await self.scope.delete()


class WholeStore(Scenario):
    """A store from its beginning to its end, with connections of both kinds."""

    async def prepare(self, world: World) -> None:
        self.name = (await world.stream()).segment(0).name
        self.own = connect(world.controller.address, settings=_SMALL, random=Random(4))

    async def work(self, world: World) -> None:
        async with self.own as store:
            await asyncio.gather(store.scopes(), store.segment(self.name).info())

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        assert self.own._controller._channel._channels == {}


class SharedConnection(Scenario):
    """Two callers want one connection that nobody has made yet; one of them leaves."""

    async def prepare(self, world: World) -> None:
        self.segment = (await world.stream()).segment(0)

    async def work(self, world: World) -> None:
        self.other = asyncio.get_running_loop().create_task(self._info(world))
        await self.segment.info()

    async def _info(self, world: World) -> int:
        await asyncio.sleep(0)
        return (await self.segment.info()).length

    async def check(self, world: World, *, was_cancelled: bool) -> None:
        assert await self.other == 0


SCENARIOS: Sequence[type[Scenario]] = [
    WholeWriter,
    WriterThatGoesOn,
    WriterClosing,
    WholeReader,
    ReaderThatGoesOn,
    WholeGroupReader,
    GroupReaderThatGoesOn,
    GroupMade,
    GroupDeleted,
    WholeTransaction,
    TransactionThatGoesOn,
    WholeStage,
    TableLife,
    Appends,
    Tail,
    StreamLife,
    WholeStore,
    SharedConnection,
]


class Unreliable:
    """Every few requests end their connection, before or after they are carried out."""

    def __init__(self, fake: FakeStore, every: int) -> None:
        self._every = every
        self._seen = 0
        fake.on_append = self._append
        fake.on_request = self._request

    def _next(self) -> str | None:
        self._seen += 1
        if self._seen % self._every:
            return None
        return "drop after" if self._seen // self._every % 2 else "drop before"

    def _append(self, _: AppendBlockEnd) -> str:
        return self._next() or "store and answer"

    def _request(self, command: Command) -> str | None:
        # What may not be repeated fails, and reads that wait at the tail have nothing to lose.
        if isinstance(command, Hello | ReadSegment | UpdateTableEntries):
            return None
        return self._next()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_every_wait_may_be_cancelled(
    fake_store: FakeStore, controller: FakeController, scenario: type[Scenario], how: str
) -> None:
    await _cancel_everywhere(fake_store, controller, scenario, how)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "scenario",
    [WholeWriter, WriterThatGoesOn, WholeTransaction, WholeStage, WholeReader, WholeStore],
    ids=lambda each: each.__name__,
)
async def test_every_wait_may_be_cancelled_while_connections_break(
    fake_store: FakeStore, controller: FakeController, scenario: type[Scenario], how: str
) -> None:
    Unreliable(fake_store, 5)
    await _cancel_everywhere(fake_store, controller, scenario, how)


async def _cancel_everywhere(
    fake: FakeStore, controller: FakeController, scenario: type[Scenario], how: str
) -> None:
    controller.scopes["s"], controller.tables["s"] = {}, {}
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(repr(said)))
    idle = _tasks()
    for at in count():
        attempt = scenario()
        async with connect(controller.address, settings=_SMALL, random=Random(at)) as store:
            world = World(fake, controller, store, at, how)
            await attempt.prepare(world)
            was_cancelled = await cancelled_at(attempt.work(world), at, how)
            async with asyncio.timeout(60):
                await attempt.check(world, was_cancelled=was_cancelled)
        await _until(lambda: fake.open_connections == 0, "connections are left")
        await _until(lambda: _tasks() <= idle, "tasks are left")
        if not was_cancelled:
            assert at > 0, "there was nothing to cancel"
            break
    gc.collect()
    assert unheard == [], "\n".join(sorted(set(unheard)))


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    loop = asyncio.get_running_loop()
    given_up_at = loop.time() + 60
    while not condition():
        if loop.time() >= given_up_at:
            pytest.fail(f"{otherwise} {_tasks()}")
        await asyncio.sleep(0.001)


def _tasks() -> set[asyncio.Task[object]]:
    """All but those of the fake controller's gRPC server."""
    return {task for task in asyncio.all_tasks() if "AioServer" not in repr(task)}
