"""A segment store in a few hundred lines, over a real socket, that breaks on request.

It is strict where a client can go wrong: appends without a set-up, event numbers that go back and frames of the wrong
shape end the connection and are kept in `complaints`, which the fixture asserts to be empty.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from segmentstore.client.connection import ServerAddress
from segmentstore.codec.wire_protocol import appends, reads, refusals, segments, tables
from segmentstore.codec.wire_protocol import command as session
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.frames import FrameSplitter
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry


@dataclass
class FakeSegment:
    """Bytes, what writers stored, and who waits at the tail."""

    content: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    is_sealed: bool = False
    last_numbers: dict[bytes, int] = field(default_factory=dict)
    entries: dict[bytes, tuple[bytes, int]] | None = None
    """Of a table: value and version by key."""
    key_length: int = 0
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class FakeStore:
    """`segments` is its memory; `on_append` and `on_request` are where tests break it."""

    def __init__(self) -> None:
        self.segments: dict[str, FakeSegment] = {}
        self.complaints: list[str] = []
        self.requests: list[Command] = []
        self.blocks: list[int] = []
        """Events in each block that was stored."""
        self.connections = 0
        self.open_connections = 0
        self.on_append: Callable[[appends.AppendBlockEnd], str] = lambda _: "store and answer"
        """What to do with a block: store and answer, drop before, drop after, ignore."""
        self.on_request: Callable[[Command], Command | str | None] = lambda _: None
        """An answer of the test's own, or "drop before", "drop after", "ignore": what is carried out, and when the
        connection ends instead of an answer, or that there is neither."""
        self.endpoint = ServerAddress("127.0.0.1", 0)
        self.merged: dict[tuple[str, str], int] = {}
        """By target and source: the length behind the merge, as a target remembers it."""
        self._transports: list[asyncio.StreamWriter] = []

    def create(self, name: str) -> FakeSegment:
        return self.segments.setdefault(name, FakeSegment())

    def seal(self, name: str) -> None:
        self.segments[name].is_sealed = True
        self.segments[name].wake()

    def events(self, name: str) -> list[bytes]:
        """The events that the segment holds."""
        content = self.segments[name].content
        found, start = [], 0
        while start < len(content):
            assert content[start : start + 4] == b"\0\0\0\0", f"no event at {start}"
            length = int.from_bytes(content[start + 4 : start + 8], "big")
            found.append(bytes(content[start + 8 : start + 8 + length]))
            start += 8 + length
        return found

    def drop_connections(self) -> None:
        for transport in self._transports:
            transport.transport.abort()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeStore"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.endpoint = ServerAddress(host, port)
        try:
            yield self
        finally:
            server.close()
            self.drop_connections()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self._transports.append(writer)
        splitter = FrameSplitter()
        set_up: dict[bytes, tuple[str, int]] = {}
        try:
            async with asyncio.TaskGroup() as long_polls:
                while piece := await reader.read(1 << 20):
                    for command in splitter.feed_commands(piece):
                        if isinstance(command, reads.ReadSegment):
                            long_polls.create_task(self._read(command, writer))
                            continue
                        for answer in self._answers(command, set_up):
                            if isinstance(answer, str):
                                writer.transport.abort()
                                return
                            writer.write(answer.encode())
                raise ConnectionResetError
        except* (ConnectionError, BrokenPipeError):
            pass
        finally:
            self.open_connections -= 1
            writer.transport.abort()

    def _answers(
        self, command: Command, set_up: dict[bytes, tuple[str, int]]
    ) -> list[Command | str]:
        if isinstance(command, appends.AppendBlockEnd):
            return self._append(command, set_up)
        if isinstance(command, session.KeepAlive):
            return [command]
        self.requests.append(command)
        override = self.on_request(command)
        if isinstance(override, Command):
            return [override]
        if override == "drop before":
            return ["drop"]
        if override == "ignore":
            return []
        match command:
            case session.Hello():
                answer: Command = session.Hello(16, 5)
            case appends.SetupAppend():
                answer = self._set_up(command, set_up)
            case appends.ConditionalBlockEnd():
                answer = self._append_conditionally(command, set_up)
            case _:
                answer = self._administer(command)
        return (
            [answer, "drop"]
            if override == "answer and drop"
            else (["drop"] if override == "drop after" else [answer])
        )

    def _set_up(
        self, command: appends.SetupAppend, set_up: dict[bytes, tuple[str, int]]
    ) -> Command:
        segment = self.segments.get(command.segment)
        if segment is None:
            return refusals.NoSuchSegment(command.request_id, command.segment)
        number = segment.last_numbers.get(command.writer_id, appends.NO_EVENT_NUMBER)
        set_up[command.writer_id] = (command.segment, number)
        return appends.AppendSetup(command.request_id, command.segment, command.writer_id, number)

    def _append(
        self, command: appends.AppendBlockEnd, set_up: dict[bytes, tuple[str, int]]
    ) -> list[Command | str]:
        if command.writer_id not in set_up:
            self.complaints.append("append without a set-up")
            return ["drop"]
        name, previous = set_up[command.writer_id]
        number = command.last_event_number
        if command.event_count < 1 or number <= previous:
            self.complaints.append(f"event number went back {number} <= {previous}")
            return ["drop"]
        if command.size_of_whole_events != len(command.data):
            self.complaints.append("block end does not hold its events")
            return ["drop"]
        segment = self.segments.get(name)
        if segment is None:
            return [refusals.NoSuchSegment(command.request_id, name, "", number)]
        what = self.on_append(command)
        if segment.is_sealed:
            # A real store wants a new set-up after it said so; later blocks of the pipeline get no second answer.
            return [refusals.SegmentIsSealed(command.request_id, name, "", number)]
        if what == "ignore":
            return []
        if what == "drop before":
            return ["drop"]
        segment.content += command.data
        segment.last_numbers[command.writer_id] = number
        set_up[command.writer_id] = (name, number)
        self.blocks.append(command.event_count)
        segment.wake()
        if what == "drop after":
            return ["drop"]
        return [
            appends.DataAppended(
                command.writer_id, number, previous, command.request_id, len(segment.content)
            )
        ]

    def _append_conditionally(
        self, command: appends.ConditionalBlockEnd, set_up: dict[bytes, tuple[str, int]]
    ) -> Command:
        name, previous = set_up[command.writer_id]
        segment = self.segments.get(name)
        if segment is None:
            return refusals.NoSuchSegment(command.request_id, name)
        if segment.is_sealed:
            return refusals.SegmentIsSealed(command.request_id, name)
        if command.expected_offset != len(segment.content):
            return appends.ConditionalCheckFailed(
                command.writer_id, command.event_number, command.request_id
            )
        segment.content += command.data
        segment.last_numbers[command.writer_id] = command.event_number
        set_up[command.writer_id] = (name, command.event_number)
        segment.wake()
        return appends.DataAppended(
            command.writer_id,
            command.event_number,
            previous,
            command.request_id,
            len(segment.content),
        )

    async def _read(self, command: reads.ReadSegment, writer: asyncio.StreamWriter) -> None:
        self.requests.append(command)
        override = self.on_request(command)
        if isinstance(override, str):
            writer.transport.abort()
            return
        answer = override or await self._read_answer(command)
        if not writer.is_closing():
            writer.write(answer.encode())

    async def _read_answer(self, command: reads.ReadSegment) -> Command:
        request_id, name, offset = command.request_id, command.segment, command.offset
        while True:
            segment = self.segments.get(name)
            if segment is None:
                return refusals.NoSuchSegment(request_id, name, "", offset)
            if offset < segment.start_offset:
                return refusals.SegmentIsTruncated(
                    request_id, name, segment.start_offset, "", offset
                )
            end = min(offset + command.suggested_length, len(segment.content))
            if end > offset or segment.is_sealed:
                data = bytes(segment.content[offset:end])
                at_tail = end == len(segment.content)
                return reads.SegmentRead(
                    name, offset, at_tail, at_tail and segment.is_sealed, data, request_id
                )
            await segment.changed.wait()

    def _administer(self, command: Command) -> Command:
        if isinstance(command, tables.CreateTableSegment):
            if command.segment in self.segments:
                return refusals.SegmentAlreadyExists(command.request_id, command.segment)
            self.create(command.segment).entries = {}
            self.segments[command.segment].key_length = command.key_length
            return segments.SegmentCreated(command.request_id, command.segment)
        name = getattr(command, "segment", None) or getattr(command, "parent_segment", None)
        if isinstance(command, segments.MergeSegments):
            name = command.source
            length = self.merged.get((command.target, command.source))
            if length is not None:
                return segments.SegmentsMerged(
                    command.request_id, command.target, command.source, length
                )
        request_id: int = command.request_id  # type: ignore[attr-defined]  # every request has one
        segment = self.segments.get(str(name))
        if segment is None:
            return refusals.NoSuchSegment(request_id, str(name))
        if segment.entries is not None:
            return self._table(command, segment, segment.entries)
        match command:
            case appends.CreateTransientSegment():
                transient = f"{name}#transient.{command.writer_id.hex()}.{len(self.segments):032x}"
                self.create(transient)
                return segments.SegmentCreated(request_id, transient)
            case reads.GetStreamSegmentInfo():
                return reads.StreamSegmentInfo(
                    request_id,
                    str(name),
                    True,
                    segment.is_sealed,
                    False,
                    1,
                    len(segment.content),
                    segment.start_offset,
                )
            case segments.SealSegment():
                self.seal(str(name))
                return segments.SegmentSealed(request_id, str(name))
            case segments.TruncateSegment(truncation_offset=offset):
                segment.start_offset = max(segment.start_offset, offset)
                return segments.SegmentTruncated(request_id, str(name))
            case segments.MergeSegments(target=target):
                into = self.segments.get(target)
                if into is None:
                    return refusals.NoSuchSegment(request_id, target)
                if into.is_sealed:
                    return refusals.SegmentIsSealed(request_id, target)
                into.content += segment.content
                del self.segments[command.source]
                self.merged[target, command.source] = len(into.content)
                into.wake()
                return segments.SegmentsMerged(
                    request_id, target, command.source, len(into.content)
                )
            case _:
                return refusals.OperationUnsupported(request_id, type(command).__name__)

    def _table(
        self, command: Command, segment: FakeSegment, entries: dict[bytes, tuple[bytes, int]]
    ) -> Command:
        match command:
            case tables.UpdateTableEntries(request_id=request_id):
                for entry in command.entries:
                    refusal = _refusal(command, entry.key, entry.version, entries)
                    if refusal:
                        return refusal
                versions = []
                for entry in command.entries:
                    segment.version += 10
                    entries[entry.key] = (entry.value, segment.version)
                    versions.append(segment.version)
                return tables.TableEntriesUpdated(request_id, versions)
            case tables.RemoveTableKeys(request_id=request_id):
                for key in command.keys:
                    refusal = _refusal(command, key.key, key.version, entries)
                    if refusal:
                        return refusal
                for key in command.keys:
                    entries.pop(key.key, None)
                return tables.TableKeysRemoved(request_id, command.segment)
            case tables.ReadTable(request_id=request_id):
                found = [
                    TableEntry(key.key, *entries.get(key.key, (b"", NOT_EXISTS)))
                    for key in command.keys
                ]
                return tables.TableRead(request_id, command.segment, found)
            case tables.ReadTableEntries(request_id=request_id, iterator=iterator):
                keys = sorted(entries)
                first, last = iterator.first_key, iterator.last_key
                keys = [key for key in keys if key >= first and (not last or key <= last)]
                if segment.key_length == 0 and iterator.token:
                    keys = [key for key in keys if key > iterator.token]
                keys = keys[: command.suggested_count]
                token = keys[-1] if keys and segment.key_length == 0 else b""
                page = [TableEntry(key, *entries[key]) for key in keys]
                return tables.TableEntriesRead(request_id, command.segment, page, token)
            case tables.DeleteTableSegment(request_id=request_id):
                del self.segments[command.segment]
                return segments.SegmentDeleted(request_id, command.segment)
            case _:
                return refusals.OperationUnsupported(
                    command.request_id,  # type: ignore[attr-defined]  # every request has one
                    type(command).__name__,
                )


def _refusal(
    command: tables.UpdateTableEntries | tables.RemoveTableKeys,
    key: bytes,
    expected: int,
    entries: dict[bytes, tuple[bytes, int]],
) -> Command | None:
    current = entries.get(key)
    if expected == NO_VERSION or (current is None and expected == NOT_EXISTS):
        return None
    if current is None:
        return refusals.TableKeyDoesNotExist(command.request_id, command.segment)
    if current[1] != expected:
        return refusals.TableKeyBadVersion(command.request_id, command.segment)
    return None
