"""Table requests that one connection pipelines: each is answered as if those before it had ended."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from containers.tables.table_reader import TableReader
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import CLIENT_LIST_ITEMS_MAX
from segmentstore.codec.wire_protocol.refusals import (
    NoSuchSegment,
    SegmentAlreadyExists,
    TableKeyBadVersion,
)
from segmentstore.codec.wire_protocol.segments import SegmentCreated, SegmentDeleted
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    IteratorArguments,
    ReadTable,
    ReadTableEntries,
    RemoveTableKeys,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeysRemoved,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from segmentstore.wire import connection, table_order
from tests.containers.node import MemoryTiers, running
from tests.wire.node import QUICK, HoldingLog, running_server
from tests.wire.protocol_client import ProtocolClient

TABLES = ("scope/one_kvtable/0.#epoch.0", "scope/two_kvtable/0.#epoch.0")
KEYS = (b"a", b"b", b"c")


@dataclass
class SequentialTables:
    """What the answers are if every request ends before the next one begins."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)

    def answer(self, command: Command) -> object:
        match command:
            case CreateTableSegment(_, segment):
                if segment in self.tables:
                    return SegmentAlreadyExists
                self.tables[segment] = {}
                return SegmentCreated
            case DeleteTableSegment(_, segment):
                return (
                    SegmentDeleted if self.tables.pop(segment, None) is not None else NoSuchSegment
                )
            case UpdateTableEntries() | RemoveTableKeys() | ReadTable() | ReadTableEntries():
                entries = self.tables.get(command.segment)
                return NoSuchSegment if entries is None else self._of_table(entries, command)
        raise AssertionError(command)

    def _of_table(self, entries: dict[bytes, bytes], command: Command) -> object:
        match command:
            case UpdateTableEntries():
                if any(one.version == NOT_EXISTS and one.key in entries for one in command.entries):
                    return TableKeyBadVersion
                entries.update({one.key: one.value for one in command.entries})
                return TableEntriesUpdated
            case RemoveTableKeys():
                for key in command.keys:
                    entries.pop(key.key, None)
                return TableKeysRemoved
            case ReadTable():
                return [entries.get(key.key, b"") for key in command.keys]
        return dict(entries)


def outcome_of(reply: Command) -> object:
    match reply:
        case TableRead():
            return [entry.value for entry in reply.entries]
        case TableEntriesRead():
            return {entry.key: entry.value for entry in reply.entries}
    return type(reply)


def random_command(random: Random, number: int) -> Command:
    table = random.choice(TABLES)
    value = b"%d" % number
    match random.choices(range(8), (1, 1, 14, 3, 3, 10, 2, 2))[0]:
        case 0:
            return CreateTableSegment(number, table, "")
        case 1:
            return DeleteTableSegment(number, table, False, "")
        case 2:
            one = TableEntry(random.choice(KEYS), value, NO_VERSION)
            return UpdateTableEntries(number, table, "", (one,), -1)
        case 3:
            new = TableEntry(random.choice(KEYS), value, NOT_EXISTS)
            return UpdateTableEntries(number, table, "", (new,), -1)
        case 4:
            return RemoveTableKeys(
                number, table, "", (TableKey(random.choice(KEYS), NO_VERSION),), -1
            )
        case 5:
            return ReadTable(number, table, "", (TableKey(random.choice(KEYS)),))
        case 6:
            return ReadTable(number, table, "", tuple(map(TableKey, KEYS)))
    return ReadTableEntries(number, table, "", 10, IteratorArguments())


async def disturb(log: HoldingLog, random: Random) -> None:
    """The log is slow now and then."""
    try:
        while True:
            await asyncio.sleep(random.random() * 0.003)
            log.hold()
            await asyncio.sleep(random.random() * 0.003)
            log.let_go()
    finally:
        log.let_go()


@pytest.mark.parametrize("seed", range(20))
async def test_pipelined_requests_of_a_table_never_overtake_one_another(seed: int) -> None:
    random = Random(seed)
    tiers = MemoryTiers()
    log = HoldingLog(tiers)
    # Tables close soon, so that they have to be opened under way.
    settings = replace(QUICK, pins_idle_max=random.choice((0, 1, 8)), tick_seconds=0.005)
    async with (
        running(tiers, log=log) as container,
        running_server(container, container, settings) as server,
    ):
        client = await ProtocolClient.connect(server.address)
        model = SequentialTables()
        commands: list[Command] = [
            CreateTableSegment(n, table, "") for n, table in enumerate(TABLES)
        ]
        commands += [random_command(random, number) for number in range(2, 400)]
        expected = {number: model.answer(command) for number, command in enumerate(commands)}
        disturbing = asyncio.ensure_future(disturb(log, Random(seed + 1)))
        sent = 0
        while sent < len(commands):
            count = random.choice((1, 2, 5, 30))
            client.send(*commands[sent : sent + count])
            sent += count
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.01)))
        answered: dict[int, object] = {}
        while len(answered) < len(commands):
            reply = await client.receive()
            answered[reply.request_id] = outcome_of(reply)  # type: ignore[attr-defined]
        disturbing.cancel()
        for number, command in enumerate(commands):
            assert answered[number] == expected[number], f"{number}: {command!r:.200}"
        server.check()
        await client.close()


class Turns:
    """Counts turns of the loop, and in which of them the named functions were called."""

    def __init__(self) -> None:
        self.count = 0
        self.called: dict[str, list[int]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def watch(self, patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        original = getattr(owner, name)
        called = self.called[name] = []

        def watched(*arguments: object, **named: object) -> object:
            called.append(self.count)
            return original(*arguments, **named)

        patch.setattr(owner, name, watched)


async def test_requests_of_as_many_keys_as_there_may_be_hold_up_the_loop_for_a_part_of_their_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns()
    async with (
        running(MemoryTiers()) as container,
        running_server(container, container) as server,
    ):
        client = await ProtocolClient.connect(server.address)
        await client.ask(CreateTableSegment(1, TABLES[0], ""), SegmentCreated)
        keys = [b"%05d" % number for number in range(CLIENT_LIST_ITEMS_MAX)]
        entries = tuple(TableEntry(key, b"value") for key in keys)
        named = tuple(map(TableKey, keys))
        turns.watch(monkeypatch, connection, "decode_command")
        turns.watch(monkeypatch, table_order, "submit_change")
        turns.watch(monkeypatch, TableReader, "get_nowait")
        turns.watch(monkeypatch, TableRead, "encode")
        counting = asyncio.create_task(turns.run())
        await client.ask(UpdateTableEntries(2, TABLES[0], "", entries, -1), TableEntriesUpdated)
        found = await client.ask(ReadTable(3, TABLES[0], "", named), TableRead)
        assert [(each.key, each.value) for each in found.entries] == [
            (each.key, each.value) for each in entries
        ]
        await client.ask(RemoveTableKeys(4, TABLES[0], "", named, -1), TableKeysRemoved)
        found = await client.ask(ReadTable(5, TABLES[0], "", named), TableRead)
        assert [(each.key, each.version) for each in found.entries] == [
            (key, NOT_EXISTS) for key in keys
        ]
        counting.cancel()
        await client.close()
    decoded, submitted = turns.called["decode_command"], turns.called["submit_change"]
    looked_up, encoded = turns.called["get_nowait"], turns.called["encode"]
    assert len(decoded) == 4
    assert not set(decoded) & {*submitted, *looked_up, *encoded}
    assert not set(looked_up) & {*submitted, *encoded}
    assert max(Counter(looked_up).values()) <= 100
