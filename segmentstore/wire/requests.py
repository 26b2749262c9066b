"""The requests of one connection that are neither appends nor reads: may they, what answers them, and the outcome.

- A request whose delegation token does not permit it is refused. Without a verifier every token is fine.
- Where the controller is of this process, its records (segments below `_system/`) are not for clients, whatever their
  token. A store in front of which another controller works leaves them open: they are that controller's.
- Every request is answered exactly once, with its own request id, by a reply or by the refusal that stands for the
  error. Answers come when they are ready, in any order: clients match them by request id.
- A change whose outcome is unknown (its container stopped under it) has no answer: the connection is closed, as for
  appends. A refusal would say that nothing was done.
- A node of a cluster whose lease is not valid answers no request but by WrongHost: another node may answer otherwise.
  Appends go on to the container, whose log refuses them once it has another owner.
- A change, and whatever is asked of a table, waits for a container that is recovering here, for a while: there is no
  other node to ask. Clients take a refusal of a table, or of a transient segment, for its end.
- Requests of one table are taken in order (`table_order.py`).
- What a request holds, and OVERHEAD_BYTES for itself, counts as un-acknowledged until it is answered.
- Calls of a controller in another process (`store_calls.py`) are not requests: they have answers of their own.
- A transient segment that this connection asked for and that no merge has taken, or may still take, goes with the
  connection (`abandoned`), also one that was still being made.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Final, Protocol

from segmentstore.codec.wire_protocol import reads, refusals, tables
from segmentstore.codec.wire_protocol.administration import FlushToStorage, ListStorageChunks
from segmentstore.codec.wire_protocol.appends import CreateTransientSegment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.refusals import (
    ILLEGAL_ARGUMENT,
    AuthTokenCheckFailed,
    ErrorMessage,
    WrongHost,
)
from segmentstore.codec.wire_protocol.segments import (
    MergeSegments,
    MergeSegmentsBatch,
    SegmentCreated,
    TruncateSegment,
)
from segmentstore.codec.wire_protocol.store_calls import STORE_CALL_TYPES
from segmentstore.codec.wire_protocol.tables import ReadTable, RemoveTableKeys, UpdateTableEntries
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    SegmentNotFoundError,
    SegmentStoreError,
    is_outcome_unknown,
)
from segmentstore.contracts.segments import SYSTEM_PREFIX, is_system_name
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.answer_turns import AnswerTurns
from segmentstore.wire.held_bytes import held_bytes
from segmentstore.wire.replies import (
    LEASE_IS_OVER,
    NO_OFFSET,
    OwnerAddress,
    SendBuffer,
    reply_to_error,
)
from segmentstore.wire.segment_commands import CommandHandler, SegmentCommands
from segmentstore.wire.statistics import WireCounters
from segmentstore.wire.store_calls import ControllerConnection, StoreCalls
from segmentstore.wire.table_commands import TableCommands, TableLookupBatcher, TableUpdateBatcher
from segmentstore.wire.table_order import TableOrder

_NO_REQUEST: Final = 0
_READ_TABLE: Final = ReadTable.type
_UPDATE_TABLE: Final = UpdateTableEntries.type
READING_TYPES: Final = frozenset(
    command.type
    for command in (
        reads.ReadSegment,
        reads.GetStreamSegmentInfo,
        reads.GetSegmentAttribute,
        reads.LocateOffset,
        tables.GetTableSegmentInfo,
        tables.ReadTable,
        tables.ReadTableKeys,
        tables.ReadTableEntries,
        tables.ReadTableEntriesDelta,
        ListStorageChunks,
    )
)
"""Commands that need no more than the right to read."""


class TokenVerdict(IntEnum):
    """What a verifier found; a refusal is the error code that the client is told."""

    UNSPECIFIED = refusals.UNSPECIFIED
    REFUSED = refusals.TOKEN_CHECK_FAILED
    EXPIRED = refusals.TOKEN_EXPIRED
    ACCEPTED = 2


class TokenVerifier(Protocol):
    """Looks at a token; never waits."""

    def __call__(self, token: str, segment: str, *, write: bool) -> TokenVerdict: ...


class ConnectionRequests:
    """take() any number. Implements table_commands.Answers."""

    def __init__(
        self,
        *,
        segment_commands: SegmentCommands,
        table_commands: TableCommands,
        store_calls: StoreCalls | None,
        verify_token: TokenVerifier | None,
        system_is_closed: bool,
        outgoing: SendBuffer,
        tasks: TaskSet,
        counters: WireCounters,
        transients_max: int,
        answers_bytes_max: int,
        add_unacked: Callable[[int], None],
        remove_unacked: Callable[[int], None],
        fail: Callable[[Exception], None],
        close_connection: Callable[[str], None],
        owner_address: OwnerAddress,
        has_lease: Callable[[], bool],
        until_recovered: Callable[[str], Awaitable[None]],
    ) -> None:
        """`until_recovered` waits for a segment's container while it recovers."""
        self._owner_address = owner_address
        self._has_lease = has_lease
        self._until_recovered = until_recovered
        self.fail = fail
        self._segment_commands = segment_commands
        self._store_calls = store_calls
        self._controller = ControllerConnection(outgoing=outgoing, fail=close_connection)
        self._verify_token = verify_token
        self._system_is_closed = system_is_closed
        self._outgoing = outgoing
        self._tasks = tasks
        self._counters = counters
        self._add_unacked = add_unacked
        self._remove_unacked = remove_unacked
        self._close_connection = close_connection
        self._transients: dict[str, None] = {}
        """Made by this connection and in no merge, oldest first."""
        self._transients_max = transients_max
        self._transients_to_be: dict[str, None] = {}
        """Those that this connection asks for: whether they are there is not known, and not once it is gone."""
        self._turns = AnswerTurns(bytes_max=answers_bytes_max, is_full=lambda: outgoing.is_full)
        self._order = TableOrder(
            commands=table_commands,
            answers=self,
            turns=self._turns,
            tasks=tasks,
            until_recovered=until_recovered,
            system_is_closed=system_is_closed,
        )
        self._look_ups = TableLookupBatcher(
            handles=table_commands.handles, order=self._order, outgoing=outgoing, counters=counters
        )
        self._updates = TableUpdateBatcher(
            handles=table_commands.handles,
            order=self._order,
            answers=self,
            counters=counters,
            add_unacked=add_unacked,
        )

    @property
    def waiting_count(self) -> int:
        """Requests that wait for others before them."""
        return self._order.waiting_count

    @property
    def abandoned(self) -> Sequence[str]:
        """Transient segments that nothing refers to once the connection is gone."""
        return [*self._transients, *self._transients_to_be]

    def close(self) -> None:
        """The connection is gone: what waits does not begin any more."""
        self._order.close()

    def go_on(self) -> None:
        """The client has taken what it was sent."""
        self._turns.go_on()

    def check(self) -> None:
        """O(requests under way)."""
        self._order.check()

    def take(self, command: Command) -> None:
        """Answers now or later. Raises ProtocolError for a command that is no request."""
        self.submit_updates()
        if self._store_calls is not None and command.type in STORE_CALL_TYPES:
            self._store_calls.take(command, self._controller)
            return
        if not self.is_allowed(command):
            return
        self._counters.requests += 1
        self._add_unacked(held_bytes(command))
        handler = self._segment_commands.handlers.get(command.type)
        if isinstance(command, CreateTransientSegment):
            handler = self._create_transient
        if handler is None:
            self._order.take(command)
        else:
            self._tasks.start(self._answer(command, handler))

    def take_batch(self, kind: int, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """Take the frames from `position` on that are of this kind and need no command.

        (where they end, how many there are; 0: the first has to become a command). Look-ups are answered already,
        updates wait for submit_updates(). Raises ProtocolError.
        """
        if self._verify_token is None and self._has_lease():
            if kind == _READ_TABLE:
                self.submit_updates()
                return self._look_ups.answer(view, position, limit)
            if kind == _UPDATE_TABLE:
                return self._updates.gather(view, position, limit)
        return position, 0

    def submit_updates(self) -> None:
        """At the end of what was received, and before a command that may have to do with them."""
        self._updates.submit()

    def is_allowed(self, command: Command) -> bool:
        """Whether its token permits it, and this process may answer at all; the client is told if not.

        Raises ProtocolError if it has no token to show.
        """
        token = getattr(command, "delegation_token", None)
        if not isinstance(token, str):
            raise ProtocolError(f"a client does not send this type={command.type}")
        if not self._has_lease():
            self._counters.requests_refused += 1
            self._outgoing.reply(
                WrongHost(
                    _request_id_of(command),
                    _segment_of(command),
                    self._owner_address(_segment_of(command)),
                    LEASE_IS_OVER,
                )
            )
            return False
        if self._system_is_closed and any(map(is_system_name, _segments_of(command))):
            self._counters.requests_refused += 1
            self._outgoing.reply(
                ErrorMessage(
                    _request_id_of(command),
                    _segment_of(command),
                    f"segments below {SYSTEM_PREFIX!r} are the store's own",
                    ILLEGAL_ARGUMENT,
                )
            )
            return False
        if self._verify_token is None:
            return True
        write = command.type not in READING_TYPES
        verdict = self._verify_token(token, _segment_of(command), write=write)
        if verdict is TokenVerdict.ACCEPTED:
            return True
        self._counters.requests_refused += 1
        self._outgoing.reply(AuthTokenCheckFailed(_request_id_of(command), "", int(verdict)))
        return False

    # --- outcomes --------------------------------------------------------------------------------

    def reply(self, command: Command, reply: Command) -> None:
        self._remove_unacked(held_bytes(command))
        try:
            frame = reply.encode()
        except ProtocolError as error:
            # Found, and too large to say: the values of many keys asked for at once.
            frame = self._refusal(command, error).encode()
        self._outgoing.send(frame)

    def reply_frames(self, frames: bytes, *, released_bytes: int) -> None:
        """Replies that are encoded, to commands that together held so much."""
        self._remove_unacked(released_bytes)
        self._outgoing.send(frames)

    def refuse(self, command: Command, error: SegmentStoreError) -> None:
        self._remove_unacked(held_bytes(command))
        if is_outcome_unknown(error) and _changes(command):
            # A refusal would say that nothing was done. Without an answer the client knows that it does not know.
            self._counters.requests_refused += 1
            self._close_connection(
                f"the outcome of a request is unknown type={command.type}: {error}"
            )
            return
        self._outgoing.reply(self._refusal(command, error))

    async def _answer(self, command: Command, handler: CommandHandler) -> None:
        merging: Sequence[str] = ()
        try:
            if _changes(command):
                await self._until_recovered(_segment_of(command))
            # A merge goes on when its connection ends: until it has failed for certain, its source must not be deleted.
            merging = [each for each in _sources_of(command) if each in self._transients]
            for source in merging:
                del self._transients[source]
            reply = await handler(command)
        except SegmentStoreError as error:
            if not is_outcome_unknown(error):
                self._note_transients(merging)
            self.refuse(command, error)
            return
        self.reply(command, reply)

    async def _create_transient(self, command: Command) -> Command:
        assert isinstance(command, CreateTransientSegment), f"another command {command.type}"
        name = await self._segment_commands.new_transient_name(command)
        self._transients_to_be[name] = None
        try:
            await self._segment_commands.create_transient(name)
        except SegmentStoreError as error:
            if not is_outcome_unknown(error):
                del self._transients_to_be[name]
            raise
        del self._transients_to_be[name]
        self._note_transients([name])
        return SegmentCreated(command.request_id, name)

    def _note_transients(self, names: Sequence[str]) -> None:
        self._transients.update(dict.fromkeys(names))
        while len(self._transients) > self._transients_max:
            del self._transients[next(iter(self._transients))]

    def _refusal(self, command: Command, error: SegmentStoreError) -> Command:
        self._counters.requests_refused += 1
        if isinstance(command, MergeSegments) and isinstance(error, BadAttributeUpdateError):
            return reads.SegmentAttributeUpdated(command.request_id, success=False)
        segment = error.name if isinstance(error, SegmentNotFoundError) else _segment_of(command)
        return reply_to_error(
            error,
            request_id=_request_id_of(command),
            segment=segment,
            owner_address=self._owner_address,
            offset=_offset_of(command),
        )


def _offset_of(command: Command) -> int:
    """Where in its segment it was to be done, for its refusal."""
    match command:
        case TruncateSegment():
            return command.truncation_offset
        case UpdateTableEntries() | RemoveTableKeys():
            return command.table_offset
    return NO_OFFSET


def _changes(command: Command) -> bool:
    """Whether it may leave something behind that the client has to know of."""
    return command.type not in READING_TYPES and not isinstance(command, FlushToStorage)


def _segment_of(command: Command) -> str:
    match command:
        case MergeSegments() | MergeSegmentsBatch():
            return command.target
        case CreateTransientSegment():
            return command.parent_segment
        case FlushToStorage():
            return ""
    segment = getattr(command, "segment", "")
    assert isinstance(segment, str), f"not a name segment={segment!r}"
    return segment


def _segments_of(command: Command) -> Sequence[str]:
    """All that it names."""
    return (_segment_of(command), *_sources_of(command))


def _sources_of(command: Command) -> Sequence[str]:
    """What it merges."""
    match command:
        case MergeSegments():
            return (command.source,)
        case MergeSegmentsBatch():
            return command.sources
    return ()


def _request_id_of(command: Command) -> int:
    request_id = getattr(command, "request_id", _NO_REQUEST)
    assert isinstance(request_id, int), f"not a number request_id={request_id!r}"
    return request_id
