"""One request about one segment: find its server, ask, try again where that is safe, give up in time.

Invariants:

- A request is sent again only if it certainly was not carried out (no connection, wrong host, server not ready), or
  if carrying it out twice is the same as once (`repeatable`). Otherwise the caller gets OutcomeUnknownError.
- Everything ends within `request_seconds`, reads that wait at the tail within `long_poll_seconds`.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar

from segmentstore.client.backoff import Backoff
from segmentstore.client.connection_pool import ConnectionPool
from segmentstore.client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    OutcomeUnknownError,
    ServiceUnavailableError,
)
from segmentstore.client.refusals import error_of
from segmentstore.client.segment_locator import SegmentLocator
from segmentstore.client.settings import ClientSettings
from segmentstore.client.wire_connection import WireConnection
from segmentstore.codec.wire_protocol.command import Command

Reply = TypeVar("Reply", bound=Command)


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
            pool=self.pool.another(),
            settings=self.settings,
            random=self.random,
        )

    async def close(self) -> None:
        """End the connections."""
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

        Raises the refusal as an error, DeadlineExceededError, and OutcomeUnknownError if not `repeatable`.
        """
        backoff = Backoff(self.settings, self.random)
        connection: WireConnection | None = None
        limit = self.settings.request_seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(limit):
                while True:
                    try:
                        connection = await self.connection(segment)
                        return await self._attempt(
                            connection, segment, command, answer, repeatable=repeatable
                        )
                    except (ConnectionLostError, ServiceUnavailableError):
                        self.locator.forget(segment)
                    await asyncio.sleep(backoff.next_seconds())
        except TimeoutError as error:
            if connection is not None and connection.silent_seconds >= limit:
                # Not one answer to anybody: the server may be gone without a goodbye.
                connection.abort()
            raise DeadlineExceededError(
                f"no answer in time segment={segment!r} seconds={limit:g}"
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
        raise error_of(reply)
