"""Whatever clients do together, every request gets its answer.

Several connections do random things to the same few segments: set-ups, appends with and without conditions, reads that
wait at the end, transactions, seals, deletions, and pauses of every length. The server has hardly any room for what
is under way, and lets go of segments at once: so everything is parked, deferred, reopened and resumed all the time.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import pytest

from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalCheckFailed,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import (
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    ReadSegment,
    UpdateSegmentAttribute,
)
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, SegmentIsSealed
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    DeleteSegment,
    MergeSegments,
    SealSegment,
    TruncateSegment,
)
from segmentstore.wire.settings import WireSettings
from tests.wire.node import running_node
from tests.wire.protocol_client import ProtocolClient, event

CRAMPED: Final = WireSettings(
    frames_per_turn_max=3,
    unacked_bytes_max=1_500,
    requests_per_connection_max=4,
    reads_per_connection_max=5,
    cold_reads_per_connection_max=1,
    read_bytes_max=700,
    flush_bytes=300,
    send_buffer_bytes_max=2_000,
    send_backlog_bytes_max=4_000,
    long_poll_seconds=0.15,
    waiter_retry_seconds=0.02,
    pins_idle_max=2,
    pin_idle_seconds=0.01,
    tick_seconds=0.005,
)
ALL_CRAMPED: Final = replace(CRAMPED, receive_buffer_bytes=256, held_bytes_max=2_000)
"""With little for all connections together, too."""
SEGMENTS: Final = 4
"""Segments that are in use at a time; a sealed one is followed by a new one, and deleted later."""
CONNECTIONS: Final = 3
STEPS: Final = 150
PATIENCE_SECONDS: Final = 60.0
"""Decides nothing: only so that a missing answer fails by its name."""


class Names:
    """The segments that everybody works on. A name is not used again."""

    def __init__(self) -> None:
        self._count = 0
        self.open: list[str] = []
        self.sealed: list[str] = []

    def add(self) -> str:
        """A new one that is about to be created."""
        name = f"scope/stream/{self._count}.#epoch.0"
        self._count += 1
        self.open.append(name)
        return name


@dataclass
class WriterView:
    """A writer as its client knows it."""

    segment: str
    number: int = 0
    length: int = 0
    """Of its segment, as it was told last."""
    live: bool = False
    unanswered: dict[int, Command] = field(default_factory=dict)
    """By event number."""


class Conversation:
    """One connection: what it asked for, and what it was told."""

    def __init__(self, client: ProtocolClient, random: Random, name: int, names: Names) -> None:
        self._client = client
        self._names = names
        self._random = random
        self._name = name
        self._writers: dict[bytes, WriterView] = {}
        self._writer_of: dict[int, bytes] = {}
        """By the request id of a set-up or append."""
        self._unanswered: dict[int, Command] = {}
        self._may_listen = asyncio.Event()
        self._may_listen.set()
        self._told = asyncio.Event()
        self._transactions = 0

    # --- asking ----------------------------------------------------------------------------------

    async def talk(self) -> None:
        """Ask, and listen, until everything is answered."""
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen())
            steps = (
                (self._append, 30),
                (self._append_if, 8),
                (self._set_up, 14),
                (self._read, 20),
                (self._transact, 5),
                (self._ask, 10),
                (self._seal, 2),
                (self._delete, 2),
                (self._stop_listening, 2),
            )
            actions: list[Callable[[], None]] = [action for action, _ in steps]
            weights = [weight for _, weight in steps]
            for _ in range(STEPS):
                self._random.choices(actions, weights)[0]()
                await asyncio.sleep(self._random.choice((0, 0, 0, 0.001, 0.004, 0.03)))
            self._may_listen.set()
            await self._everything_answered()
            listening.cancel()

    async def _everything_answered(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self._missing():
                    self._told.clear()
                    await self._told.wait()
        except TimeoutError:
            raise AssertionError(
                f"no answer connection={self._name} {self._missing()!r:.900}"
            ) from None

    def _missing(self) -> list[Command]:
        appends = [each for view in self._writers.values() for each in view.unanswered.values()]
        return [*self._unanswered.values(), *appends]

    def _request(self, command: Command, request_id: int) -> None:
        self._unanswered[request_id] = command
        self._client.send(command)

    def _set_up(self) -> None:
        self._set_up_on(self._random.choice(self._names.open))

    def _set_up_on(self, segment: str) -> None:
        number = int(segment.split("/")[2].partition(".")[0])
        writer_id = struct.pack(">QII", 7, self._name, number * 3 + self._random.randrange(3))
        view = self._writers.get(writer_id)
        if view is not None and (view.live or view.unanswered or view.number < 0):
            return
        # A number below zero: the set-up is on its way.
        self._writers[writer_id] = WriterView(segment, number=-1)
        request_id = self._client.next_request()
        self._writer_of[request_id] = writer_id
        self._request(SetupAppend(request_id, writer_id, segment, ""), request_id)

    def _live_writer(self) -> tuple[bytes, WriterView] | None:
        live = [(key, view) for key, view in self._writers.items() if view.live]
        return self._random.choice(live) if live else None

    def _append(self) -> None:
        chosen = self._live_writer()
        if chosen is None:
            self._set_up()
            return
        writer_id, view = chosen
        if any(isinstance(each, ConditionalAppend) for each in view.unanswered.values()):
            return  # Clients send nothing behind a condition whose outcome they do not know.
        shared_id = self._client.next_request()
        shared = self._random.random() < 0.5
        for _ in range(self._random.choice((1, 1, 2, 5))):
            view.number += 1
            data = event(bytes(self._random.choice((1, 40, 300, 900))))
            request_id = shared_id if shared else self._client.next_request()
            command = AppendBlockEnd(writer_id, len(data), data, 1, view.number, request_id)
            self._writer_of[request_id] = writer_id
            view.unanswered[view.number] = command
            self._client.send(command)

    def _append_if(self) -> None:
        chosen = self._live_writer()
        if chosen is None:
            return
        writer_id, view = chosen
        if view.unanswered:
            return
        view.number += 1
        request_id = self._client.next_request()
        offset = view.length + self._random.choice((0, 0, 1))
        command = ConditionalAppend(writer_id, view.number, offset, bytes(20), request_id)
        self._writer_of[request_id] = writer_id
        view.unanswered[view.number] = command
        self._client.send(command)

    def _read(self) -> None:
        segment = self._random.choice(self._names.open)
        known = [view.length for view in self._writers.values() if view.segment == segment]
        offset = max(known, default=0) - self._random.choice((0, 0, 0, 1, 300, 10_000))
        request_id = self._client.next_request()
        self._request(ReadSegment(segment, max(0, offset), 4_096, "", request_id), request_id)

    def _transact(self) -> None:
        parent = self._random.choice(self._names.open)
        self._transactions += 1
        name = f"{parent}#transaction.{self._name:016x}{self._transactions:016x}"
        writer_id = struct.pack(">QII", 8, self._name, self._transactions)
        create, setup, seal, merge = (self._client.next_request() for _ in range(4))
        self._request(CreateSegment(create, name, 0, 0, ""), create)
        self._request(SetupAppend(setup, writer_id, name, ""), setup)
        self._request(SealSegment(seal, name, ""), seal)
        self._request(MergeSegments(merge, parent, name, ""), merge)

    def _ask(self) -> None:
        segment = self._random.choice(self._names.open)
        request_id = self._client.next_request()
        attribute = bytes([7]) * 15 + bytes([self._random.randrange(4)])
        commands: tuple[Command, ...] = (
            GetStreamSegmentInfo(request_id, segment, ""),
            GetSegmentAttribute(request_id, segment, attribute, ""),
            UpdateSegmentAttribute(request_id, segment, attribute, 5, -(1 << 63), ""),
            TruncateSegment(request_id, segment, self._random.randrange(200), ""),
        )
        self._request(self._random.choice(commands), request_id)

    def _seal(self) -> None:
        """With a new segment in its place."""
        names = self._names
        oldest = names.open.pop(0)
        names.sealed.append(oldest)
        create, seal = self._client.next_request(), self._client.next_request()
        self._request(CreateSegment(create, names.add(), 0, 0, ""), create)
        self._request(SealSegment(seal, oldest, ""), seal)

    def _delete(self) -> None:
        if self._names.sealed:
            request_id = self._client.next_request()
            self._request(DeleteSegment(request_id, self._names.sealed.pop(0), ""), request_id)

    def _stop_listening(self) -> None:
        self._may_listen.clear()
        asyncio.get_running_loop().call_later(
            self._random.choice((0.01, 0.1)), self._may_listen.set
        )

    # --- listening -------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            await self._may_listen.wait()
            self._hear(await self._client.receive_whenever())
            self._told.set()

    def _hear(self, reply: Command) -> None:
        match reply:
            case DataAppended(writer_id, number):
                view = self._writers[writer_id]
                view.length = max(view.length, reply.segment_length)
                answered = [each for each in view.unanswered if each <= number]
                assert answered, f"acknowledged twice {reply}"
                for each in answered:
                    del view.unanswered[each]
                return
            case ConditionalCheckFailed(writer_id, number):
                del self._writers[writer_id].unanswered[number]
                return
        request_id = getattr(reply, "request_id", None)
        assert isinstance(request_id, int), f"nobody asked for it {reply}"
        asked = self._unanswered.pop(request_id, None)
        writer_id = self._writer_of.get(request_id, b"")
        if isinstance(asked, SetupAppend):
            self._hear_of_set_up(self._writers.get(writer_id), reply)
        elif asked is None:
            assert isinstance(reply, SegmentIsSealed | NoSuchSegment), f"unexpected {reply!r:.300}"
            view = self._writers[writer_id]
            view.live = False
            view.unanswered.clear()

    def _hear_of_set_up(self, view: WriterView | None, reply: Command) -> None:
        if view is None:
            return  # Of a transaction: nothing is appended to it.
        view.number = 0
        if isinstance(reply, AppendSetup):
            view.live = True
            view.number = max(0, reply.last_event_number)


@pytest.mark.parametrize("settings", [CRAMPED, ALL_CRAMPED], ids=["each", "all"])
@pytest.mark.parametrize("seed", range(6))
async def test_every_request_of_a_random_conversation_is_answered(
    seed: int, settings: WireSettings
) -> None:
    async with running_node(settings) as node:
        names = Names()
        for _ in range(SEGMENTS):
            await node.container.create(names.add())
        random = Random(seed)
        async with asyncio.TaskGroup() as tasks:
            for name in range(CONNECTIONS):
                conversation = Conversation(
                    await node.client(), Random(random.random()), name, names
                )
                tasks.create_task(conversation.talk())
        assert node.server.statistics().connections == CONNECTIONS, "a connection was closed"
        # What the last answers held is given back by a tick.
        while node.server.statistics().held_bytes:
            await asyncio.sleep(0.001)
