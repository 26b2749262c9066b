"""The shared state of a reader group: which reader reads what, and from where.

`GroupState` is pure, and every reader runs its rules. `GroupTable` keeps it in one entry of a table segment and changes
it by compare and set.

Invariants:

- A segment is read by at most one reader; its offset in the state is one up to which everything was acknowledged.
- Every segment of a position is read by a reader, unassigned, or finished; nothing is forgotten when a reader leaves.
- Successors begin only after all of their predecessors are finished (`stream_segments.py`).
- Two changes never overwrite each other: the update that finds another version starts over from the new state.
- A change whose answer was lost is made again on the state as it is then. Each change is idempotent: made twice, it is
  the same as once.
- A group that was deleted and created again is another one: what is based on the state of the old one is refused. The
  key of the state has the random id of the group, so versions of the two, which begin anew, are never compared.

| key | value |
|---|---|
| asyncio-reader-group-state | a JSON object: format 2, group (the id); or the state itself, of groups without an id |
| asyncio-reader-group-state/<id> | the state |

Format of the state, one JSON object, version 1:

| field | content |
|---|---|
| format | 1 |
| streams | by `scope/stream`: positions, waiting, ended |
| positions | segment id: offset in bytes |
| waiting | successor: list of unfinished predecessors |
| ended | finished segment that is still in the position: list of its successors |
| readers | by reader id: incarnation (random, per join), beat (grows while the reader runs), segments |
| segments | list of [`scope/stream`, segment id] |
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from segmentstore.client.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    ServiceUnavailableError,
    TableConditionError,
)
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.stream_segments import ReadingOrder, SegmentKey, StreamCut, Successor
from segmentstore.codec.stream_names import table_segment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.segments import SegmentCreated, SegmentDeleted
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    ReadTable,
    TableEntriesUpdated,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentExistsError,
    SegmentNotFoundError,
)
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry, TableKey

FORMAT: Final = 1
_ID_FORMAT: Final = 2
STATE_KEY: Final = b"asyncio-reader-group-state"
_ID_BITS = 128


@dataclass(slots=True)
class ReaderRecord:
    """One reader, as the others see it."""

    incarnation: int
    beat: int = 0
    segments: list[SegmentKey] = field(default_factory=list)


@dataclass(slots=True)
class StreamState:
    """One stream of the group."""

    positions: dict[int, int]
    order: ReadingOrder = field(default_factory=ReadingOrder)


@dataclass(slots=True)
class GroupState:
    """All of it."""

    streams: dict[str, StreamState]
    readers: dict[str, ReaderRecord] = field(default_factory=dict)

    @property
    def readable(self) -> Sequence[SegmentKey]:
        """Segments that are to be read now, by one of the readers."""
        return [
            (name, segment_id)
            for name, stream in self.streams.items()
            for segment_id in sorted(stream.positions)
            if segment_id not in stream.order.ended
        ]

    @property
    def unassigned(self) -> Sequence[SegmentKey]:
        """Readable segments that no reader has."""
        taken = {key for reader in self.readers.values() for key in reader.segments}
        return [key for key in self.readable if key not in taken]

    @property
    def is_finished(self) -> bool:
        """Whether every stream is sealed and read to its end."""
        return not self.readable

    def position(self, key: SegmentKey) -> int:
        return self.streams[key[0]].positions[key[1]]

    def cut(self, stream: str) -> StreamCut:
        """Up to where the group has acknowledged the stream's events."""
        return StreamCut(stream, dict(self.streams[stream].positions))

    def join(self, reader: str, incarnation: int) -> None:
        """Add a reader; an older incarnation of the same id loses its segments."""
        known = self.readers.get(reader)
        if known is None or known.incarnation != incarnation:
            self.readers[reader] = ReaderRecord(incarnation)

    def leave(self, reader: str) -> None:
        """Its segments are for the others."""
        self.readers.pop(reader, None)

    def advance(self, reader: str, positions: Mapping[SegmentKey, int]) -> None:
        """Store what a reader acknowledged; show that it runs."""
        record = self.readers[reader]
        record.beat += 1
        for key in record.segments:
            given = positions.get(key)
            if given is not None:
                stored = self.streams[key[0]].positions
                stored[key[1]] = max(stored[key[1]], given)

    def acquire(self, reader: str) -> None:
        """Take unassigned segments, up to a fair share."""
        record = self.readers[reader]
        fair = -(-len(self.readable) // len(self.readers))
        for key in self.unassigned[: max(0, fair - len(record.segments))]:
            record.segments.append(key)

    def has_surplus(self, reader: str) -> bool:
        """Whether some other reader has at least two segments fewer and there is nothing else for it to take."""
        count = len(self.readers[reader].segments)
        fewest = min(len(record.segments) for record in self.readers.values())
        return not self.unassigned and fewest <= count - 2

    def release(self, reader: str, key: SegmentKey) -> None:
        """Give a segment back."""
        record = self.readers[reader]
        if key in record.segments:
            record.segments.remove(key)

    def finish(self, reader: str, key: SegmentKey, successors: Sequence[Successor]) -> None:
        """A reader read a segment to its end."""
        record = self.readers[reader]
        if key not in record.segments:
            return
        record.segments.remove(key)
        name, segment_id = key
        stream = self.streams[name]
        for following in stream.order.finish(segment_id, successors, stream.positions):
            stream.positions[following] = 0
        for left in stream.order.settle(stream.positions):
            del stream.positions[left]

    def check(self) -> None:
        """O(segments)."""
        taken = [key for reader in self.readers.values() for key in reader.segments]
        assert len(taken) == len(set(taken)), f"two readers read one segment {taken}"
        readable = self.readable
        for key in taken:
            assert key in readable, f"a segment is read that is not readable {key}"
        for name, stream in self.streams.items():
            for segment_id in stream.order.waiting:
                assert segment_id not in stream.positions, f"began early {name} {segment_id}"

    def encode(self) -> bytes:
        """The bytes that `decode` takes."""
        return json.dumps(
            {
                "format": FORMAT,
                "streams": {
                    name: {
                        "positions": stream.positions,
                        "waiting": stream.order.waiting,
                        "ended": stream.order.ended,
                    }
                    for name, stream in self.streams.items()
                },
                "readers": {
                    name: {
                        "incarnation": record.incarnation,
                        "beat": record.beat,
                        "segments": record.segments,
                    }
                    for name, record in self.readers.items()
                },
            },
            separators=(",", ":"),
        ).encode()


def decode_group_state(content: bytes) -> GroupState:
    """The state that `encode` wrote. Raises CorruptedDataError."""
    try:
        value: Any = json.loads(content)  # JSON of our own; whatever does not fit ends below
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}")
        streams = {
            name: StreamState(
                _numbers_by_id(stream["positions"]),
                ReadingOrder(_lists_by_id(stream["waiting"]), _lists_by_id(stream["ended"])),
            )
            for name, stream in value["streams"].items()
        }
        readers = {
            name: ReaderRecord(
                int(record["incarnation"]),
                int(record["beat"]),
                [(str(stream), int(segment)) for stream, segment in record["segments"]],
            )
            for name, record in value["readers"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"state of the reader group is not readable: {error!r}") from error
    return GroupState(streams, readers)


def _numbers_by_id(value: Mapping[str, int]) -> dict[int, int]:
    return {int(key): int(number) for key, number in value.items()}


def _lists_by_id(value: Mapping[str, Sequence[int]]) -> dict[int, list[int]]:
    return {int(key): [int(number) for number in numbers] for key, numbers in value.items()}


class GroupTable:
    """The state of one group."""

    def __init__(self, scope: str, group: str, calls: SegmentCalls) -> None:
        self.name = f"{scope}/{group}"
        self._segment = table_segment(scope, group)
        self._calls = calls
        self._state_key = STATE_KEY
        """Of the group that was seen last."""

    async def create(self, state: GroupState) -> None:
        """Raises AlreadyExistsError, also for a group that a client of another kind made under this name."""
        # It may exist: from a lost answer, or made by another client. The entry decides.
        with suppress(SegmentExistsError):
            await self._calls.ask(
                self._segment,
                lambda request_id: CreateTableSegment(request_id, self._segment, ""),
                SegmentCreated,
            )
        group_id = f"{self._calls.random.getrandbits(_ID_BITS):032x}"
        content = json.dumps({"format": _ID_FORMAT, "group": group_id}, separators=(",", ":"))
        try:
            await self._write(
                [
                    TableEntry(STATE_KEY, content.encode(), NOT_EXISTS),
                    TableEntry(_state_key(group_id), state.encode(), NOT_EXISTS),
                ]
            )
        except TableConditionError as error:
            raise AlreadyExistsError("reader group", self.name) from error

    async def delete(self) -> None:
        """Raises NotFoundError."""
        try:
            await self._calls.ask(
                self._segment,
                lambda request_id: DeleteTableSegment(request_id, self._segment, False, ""),
                SegmentDeleted,
            )
        except SegmentNotFoundError as error:
            raise NotFoundError("reader group", self.name) from error

    async def load(self) -> tuple[GroupState, int]:
        """The state and its version. Raises NotFoundError."""
        _, state, version = await self._load()
        return state, version

    async def _load(self) -> tuple[bytes, GroupState, int]:
        """The key of the state, the state, and its version."""
        while True:
            key = self._state_key
            asked = [TableKey(each) for each in dict.fromkeys((STATE_KEY, key))]
            try:
                answer = await self._calls.ask(
                    self._segment, partial(_read_table, self._segment, asked), TableRead
                )
            except SegmentNotFoundError as error:
                raise NotFoundError("reader group", self.name) from error
            first, last = answer.entries[0], answer.entries[-1]
            if first.version == NOT_EXISTS:
                raise NotFoundError("reader group", self.name)
            self._state_key = _key_of_state(first.value)
            if self._state_key != key:
                # Another group than the one that was seen last; its state was not asked for.
                continue
            if last.version == NOT_EXISTS:
                raise NotFoundError("reader group", self.name)
            return key, decode_group_state(last.value), last.version

    async def change(self, change: Callable[[GroupState], None]) -> GroupState:
        """Apply an idempotent change; the state afterwards. Raises what `change` raises, ServiceUnavailableError."""
        backoff = self._calls.settings.backoff(self._calls.random)
        for _ in range(self._calls.settings.state_attempts_max):
            key, state, version = await self._load()
            before = state.encode()
            change(state)
            state.check()
            if state.encode() == before:
                return state
            try:
                await self._write([TableEntry(key, state.encode(), version)])
            except TableConditionError:
                continue
            except OutcomeUnknownError:
                await asyncio.sleep(backoff.next_seconds())
                continue
            return state
        raise ServiceUnavailableError(f"state of the reader group is too busy group={self.name!r}")

    async def _write(self, entries: Sequence[TableEntry]) -> None:
        await self._calls.ask(
            self._segment,
            lambda request_id: UpdateTableEntries(request_id, self._segment, "", entries),
            TableEntriesUpdated,
            repeatable=False,
        )


def _read_table(segment: str, keys: Sequence[TableKey], request_id: int) -> Command:
    return ReadTable(request_id, segment, "", keys)


def _state_key(group_id: str) -> bytes:
    return STATE_KEY + b"/" + group_id.encode()


def _key_of_state(content: bytes) -> bytes:
    """Where the state stands, by what stands under STATE_KEY. Raises CorruptedDataError."""
    try:
        value: Any = json.loads(content)
        if value["format"] == _ID_FORMAT:
            return _state_key(value["group"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"state of the reader group is not readable: {error!r}") from error
    return STATE_KEY
