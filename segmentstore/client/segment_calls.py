"""One request about one segment: find its server, ask, try again where that is safe, give up in time.

`SegmentCalls` asks, and repeats what takes several requests (`retried`); a `SegmentLocator` says which segment store
serves the segment. `DelegationTokens` is a locator that also gets tokens from the controller, one for each stream, by
which segment stores know what this client may do.

Invariants:

- A request is sent again only if it certainly was not carried out (no connection, "wrong host", a token that is too
  old), or if carrying it out twice is the same as once (`repeatable`). Otherwise the caller gets OutcomeUnknownError,
  also where the answer is "not now": a container that stops meanwhile may have stored it, and a second attempt would
  meet the first and call it a conflict.
- A segment that is found at another server than before is asked for there at once; a pause comes before a server is
  asked again.
- Everything ends within `request_seconds`, reads that wait at the tail within `long_poll_seconds`, and all of it when
  the connections are closed: ClosedError is said of what was not sent, OutcomeUnknownError of what was.
- A server's address is remembered until a caller finds it wrong (`forget`). A segment's transactions and transient
  segments are in the container of their segment, so they share its address.
- A token is asked for when a segment of its stream is first looked for, and again after the segment was forgotten,
  which is what every caller does whose request was refused for a token that is too old. Until the next one is there the
  old one signs: others may be at work with it, or about to be, and a server says of it what it is.
- Memory is bounded by `_REMEMBERED_MAX` addresses, and as many tokens.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Final, Protocol, TypeVar

from segmentstore.client.connection import ConnectionPool, ServerAddress, WireConnection
from segmentstore.client.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    OutcomeUnknownError,
    ServiceUnavailableError,
    TokenExpiredError,
    WrongHostError,
    error_from_reply,
    outcome_unknown,
)
from segmentstore.client.settings import ClientSettings
from segmentstore.codec.stream_names import parse_segment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError

_REMEMBERED_MAX: Final = 10_000
_MOVES_MAX: Final = 2
_SEGMENT_FIELDS: Final = ("segment", "target", "parent_segment")
"""Fields that say which segment a command is about."""


Reply = TypeVar("Reply", bound=Command)
Result = TypeVar("Result")


class SegmentLocator(Protocol):
    """Where to send requests for a segment."""

    async def endpoint(self, segment: str) -> ServerAddress:
        """Raises ClientError, InvalidRequestError for a name that is no stream's segment."""

    def forget(self, segment: str) -> None:
        """The last answer was wrong, or its connection failed: ask again next time."""


class SegmentCalls:
    """Requests of one component over its own connections."""

    def __init__(
        self,
        *,
        locator: SegmentLocator,
        pool: ConnectionPool,
        settings: ClientSettings,
        random: Random,
    ) -> None:
        self.locator = locator
        self.pool = pool
        self.settings = settings
        self.random = random

    def with_own_connections(self) -> "SegmentCalls":
        """The same with a pool of its own, for a component that closes it."""
        return SegmentCalls(
            locator=self.locator,
            pool=self.pool.new_pool(),
            settings=self.settings,
            random=self.random,
        )

    async def close(self) -> None:
        """End the connections, and all that waits for an answer or for the next attempt."""
        await self.pool.close()

    async def ask(
        self,
        segment: str,
        command: Callable[[int], Command],
        answer: type[Reply],
        *,
        repeatable: bool = True,
        seconds: float | None = None,
    ) -> Reply:
        """The answer to what `command` makes of a request id.

        Raises the refusal as an error, DeadlineExceededError, ClosedError, and OutcomeUnknownError if it is not
        `repeatable`, or these connections are closed meanwhile.
        """
        connection: WireConnection | None = None
        limit = self.settings.request_seconds if seconds is None else seconds

        async def attempt() -> Reply:
            nonlocal connection
            connection = await self.connection(segment)
            return await self._attempt(connection, segment, command, answer, repeatable=repeatable)

        try:
            return await self.retried(segment, attempt, seconds=limit)
        except ClosedError as error:
            if connection is not None:
                raise outcome_unknown(error) from error
            raise
        except DeadlineExceededError:
            if connection is not None and connection.silent_seconds >= limit:
                # Not one answer to any request: the server may be gone without a goodbye.
                connection.abort()
            raise

    async def retried(
        self, segment: str, attempt: Callable[[], Awaitable[Result]], *, seconds: float
    ) -> Result:
        """What the attempt gives, made again while its connection breaks or the server cannot serve now.

        Raises DeadlineExceededError, ClosedError, and what else the attempt raises.
        """
        pauses = MovePauses(self, segment)
        refusal: SegmentStoreError | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self.pool.check_open()
                    try:
                        await pauses.begin_attempt()
                        return await attempt()
                    except (ConnectionLostError, ServiceUnavailableError) as error:
                        refusal = error
                        self.pool.check_open()
                        await pauses.before_next_attempt()
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"no answer in time segment={segment!r} seconds={seconds:g} {pauses}"
                f" last_refusal={str(refusal or 'none')!r}"
            ) from error

    async def connection(self, segment: str) -> WireConnection:
        """An open connection to the segment's server. Raises ConnectionLostError, and what the locator raises."""
        return await self.pool.connection(await self.locator.endpoint(segment))

    async def _attempt(
        self,
        connection: WireConnection,
        segment: str,
        command: Callable[[int], Command],
        answer: type[Reply],
        *,
        repeatable: bool,
    ) -> Reply:
        try:
            reply = await connection.request(command)
        except ConnectionLostError as error:
            if repeatable:
                raise
            raise OutcomeUnknownError(
                f"connection ended before the answer segment={segment!r}"
            ) from error
        if isinstance(reply, answer):
            return reply
        refusal = error_from_reply(reply)
        is_open = isinstance(refusal, ServiceUnavailableError) and not isinstance(
            refusal, TokenExpiredError | WrongHostError
        )
        if is_open and not repeatable:
            raise outcome_unknown(refusal) from refusal
        raise refusal


class MovePauses:
    """Between the attempts at one segment: none if its server is another one by then, else growing pauses.

    At most _MOVES_MAX attempts follow one another without a pause: servers may send a client from one to the other.
    """

    def __init__(self, calls: SegmentCalls, segment: str) -> None:
        self._locator = calls.locator
        self._segment = segment
        self._backoff = calls.settings.backoff(calls.random)
        self._tried: ServerAddress | None = None
        self._moves = 0
        self._attempts = 0
        self._begun_at = asyncio.get_running_loop().time()

    def __str__(self) -> str:
        """For an error: how the last attempt stands."""
        seconds = asyncio.get_running_loop().time() - self._begun_at
        server = "not found yet" if self._tried is None else str(self._tried)
        return f"attempts={self._attempts} last_begun_ago={seconds:.1f} last_server={server!r}"

    def reset(self) -> None:
        """There was progress: the next pause is the first again."""
        self._backoff.reset()

    async def begin_attempt(self) -> None:
        """Note which server is asked. Raises what the locator raises."""
        self._tried = None
        self._attempts += 1
        self._begun_at = asyncio.get_running_loop().time()
        self._tried = await self._locator.endpoint(self._segment)

    async def before_next_attempt(self) -> None:
        """Ask anew where the segment is, and return when the next attempt makes sense."""
        self._locator.forget(self._segment)
        if self._tried is not None and self._moves < _MOVES_MAX:
            # What the controller has to say against it the attempt itself will meet.
            with suppress(SegmentStoreError):
                if await self._locator.endpoint(self._segment) != self._tried:
                    self._moves += 1
                    return
        self._moves = 0
        await asyncio.sleep(self._backoff.next_seconds())
        # It may have moved meanwhile.
        self._locator.forget(self._segment)


class EndpointSource(Protocol):
    """Knows the endpoint of a stream's segment: the controller."""

    async def segment_endpoint(self, scope: str, stream: str, segment_id: int) -> ServerAddress: ...


class FixedLocator:
    """One segment store for everything, whatever the names are."""

    def __init__(self, endpoint: ServerAddress) -> None:
        self._endpoint = endpoint

    async def endpoint(self, segment: str) -> ServerAddress:  # noqa: ARG002  # the interface's signature
        return self._endpoint

    def forget(self, segment: str) -> None:
        """There is nowhere else to go."""


class RememberingLocator:
    """Asks the controller once for each segment."""

    def __init__(self, source: EndpointSource) -> None:
        self._source = source
        self._endpoints: dict[str, ServerAddress] = {}

    async def endpoint(self, segment: str) -> ServerAddress:
        found = self._endpoints.get(segment)
        if found is not None:
            return found
        parsed = parse_segment(segment)
        parent = parsed.parent.name
        found = self._endpoints.get(parent)
        if found is None:
            found = await self._source.segment_endpoint(
                parsed.scope, parsed.stream, parsed.segment_id
            )
            while len(self._endpoints) >= _REMEMBERED_MAX:
                self._endpoints.pop(next(iter(self._endpoints)))
            self._endpoints[parent] = found
        return found

    def forget(self, segment: str) -> None:
        self._endpoints.pop(parse_segment(segment).parent.name, None)


class TokenSource(Protocol):
    """Gives out tokens: the controller."""

    async def delegation_token(self, scope: str, stream: str) -> str: ...


class DelegationTokens:
    """A locator that fetches the token along with the address, and signs commands with it."""

    def __init__(self, source: TokenSource, locator: SegmentLocator) -> None:
        self._source = source
        self._locator = locator
        self._tokens: dict[tuple[str, str], str] = {}
        self._to_renew: set[tuple[str, str]] = set()
        """Of these: the streams whose segments were forgotten since."""

    async def endpoint(self, segment: str) -> ServerAddress:
        """As SegmentLocator says."""
        stream = _stream_of(segment)
        if stream is not None and (stream not in self._tokens or stream in self._to_renew):
            token = await self._source.delegation_token(*stream)
            self._drop(stream)
            while len(self._tokens) >= _REMEMBERED_MAX:
                self._drop(next(iter(self._tokens)))
            self._tokens[stream] = token
        return await self._locator.endpoint(segment)

    def forget(self, segment: str) -> None:
        """As SegmentLocator says."""
        stream = _stream_of(segment)
        if stream in self._tokens:
            self._to_renew.add(stream)
        self._locator.forget(segment)

    def _drop(self, stream: tuple[str, str]) -> None:
        self._tokens.pop(stream, None)
        self._to_renew.discard(stream)

    def sign(self, command: Command) -> Command:
        """The same with its stream's token, if it is of a kind that carries one."""
        if getattr(command, "delegation_token", None) != "":
            return command
        for name in _SEGMENT_FIELDS:
            segment = getattr(command, name, None)
            if isinstance(segment, str):
                stream = _stream_of(segment)
                token = "" if stream is None else self._tokens.get(stream, "")
                # Every dataclass with the field takes it; no type says so for commands as a whole.
                return replace(command, delegation_token=token)  # type: ignore[call-arg]
        return command


def _stream_of(segment: str) -> tuple[str, str] | None:
    try:
        parsed = parse_segment(segment)
    except InvalidRequestError:
        return None
    return parsed.scope, parsed.stream
