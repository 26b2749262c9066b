"""A reader group: several readers, in any number of processes, that share the events of streams between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from segmentstore.client.controller import Controller, StreamName
from segmentstore.client.group_reader import GroupReader
from segmentstore.client.group_state import GroupState, StreamState
from segmentstore.client.group_table import GroupTable
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.stream import Stream
from segmentstore.client.stream_cut import StreamCut
from segmentstore.codec.stream_names import check_user_name
from segmentstore.contracts.errors import InvalidRequestError


class StartAt(Enum):
    """Where a group begins to read a stream."""

    HEAD = "head"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class ReaderGroupInfo:
    """What a group is doing."""

    name: str
    cuts: Mapping[str, StreamCut]
    """Acknowledged, by stream."""
    readers: Mapping[str, Sequence[str]]
    """`scope/stream/segment id` of what each reader reads."""
    unassigned: Sequence[str]


class ReaderGroup:
    """Cheap to make; nothing to close. `async with` is for its readers."""

    def __init__(
        self, scope: str, name: str, *, controller: Controller, calls: SegmentCalls
    ) -> None:
        self.scope = scope
        self.name = name
        self._controller = controller
        self._calls = calls
        self._table = GroupTable(scope, name, calls)

    async def create(
        self, streams: Sequence[str], *, start: StartAt | Sequence[StreamCut] = StartAt.HEAD
    ) -> None:
        """Begin to read streams of the group's scope (or `scope/stream`) at their heads, tails, or at cuts.

        Raises AlreadyExistsError, NotFoundError, InvalidRequestError (no stream, or a name that none may have).
        """
        check_user_name(self.name, what="reader group")
        names = [_stream_name(self.scope, each) for each in streams]
        states = {
            str(name): StreamState(dict((await self._start(name, start)).offsets)) for name in names
        }
        if not states:
            raise InvalidRequestError(
                f"a reader group reads at least one stream group={self.name!r}"
            )
        await self._controller.create_reader_group(self.scope, self.name, names)
        await self._table.create(GroupState(states))

    async def delete(self) -> None:
        """Forget the group and its positions. Raises NotFoundError."""
        await self._table.delete()
        await self._controller.delete_reader_group(self.scope, self.name)

    async def info(self) -> ReaderGroupInfo:
        """Raises NotFoundError."""
        state, _ = await self._table.load()
        return ReaderGroupInfo(
            f"{self.scope}/{self.name}",
            {stream: state.cut(stream) for stream in state.streams},
            {
                reader: [f"{stream}/{segment}" for stream, segment in record.segments]
                for reader, record in state.readers.items()
            },
            [f"{stream}/{segment}" for stream, segment in state.unassigned],
        )

    async def stream_cut(self, stream: str | None = None) -> StreamCut:
        """Up to where a stream's events are acknowledged; the stream may be left out if there is only one.

        Raises NotFoundError (no such group), InvalidRequestError (not a stream of the group, or not named).
        """
        cuts = (await self.info()).cuts
        if stream is None:
            if len(cuts) != 1:
                raise InvalidRequestError(
                    f"group reads several streams; name one of {sorted(cuts)}"
                )
            return next(iter(cuts.values()))
        name = str(_stream_name(self.scope, stream))
        if name not in cuts:
            raise InvalidRequestError(f"group does not read the stream stream={name!r}")
        return cuts[name]

    def reader(self, reader_id: str) -> GroupReader:
        """One reader; ids are unique in the group, a second one of an id takes the first one's place."""
        return GroupReader(
            reader_id=reader_id,
            table=self._table,
            controller=self._controller,
            calls=self._calls.with_own_connections(),
        )

    async def reader_offline(self, reader_id: str) -> None:
        """Give a reader's segments to the others at once, instead of after `reader_timeout_seconds`."""
        await self._table.change(lambda state: state.leave(reader_id))

    async def _start(self, name: StreamName, start: StartAt | Sequence[StreamCut]) -> StreamCut:
        stream = Stream(name, controller=self._controller, calls=self._calls)
        if start is StartAt.HEAD:
            return await stream.head()
        if start is StartAt.TAIL:
            return await stream.tail()
        for cut in start:
            if cut.stream == str(name):
                return StreamCut(cut.stream, {each: max(0, at) for each, at in cut.offsets.items()})
        return await stream.head()


def _stream_name(scope: str, text: str) -> StreamName:
    first, slash, second = text.partition("/")
    return StreamName(first, second) if slash else StreamName(scope, text)
