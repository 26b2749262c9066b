"""Keeps one controller working over the store: recover, serve, and recover again if its background work breaks.

Invariants:

- The socket listens from the start; calls wait for a controller that recovers, though not for ever.
- It tries to recover whenever a container of this process has, and in pauses that grow by a quarter besides: clients
  find it ready when they first come back.
- The controller never ends the process: what breaks it is logged, and it recovers again after a pause that grows. All
  that it knows is in table segments, so nothing is lost by that.
"""

import asyncio
import logging

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.api.controller_server import ControllerServer
from segmentstore.controller.controller import Controller

logger = logging.getLogger(__name__)

_PAUSE_SECONDS_FIRST = 0.02
_PAUSE_GROWTH = 1.25
_PAUSE_SECONDS_MAX = 10.0
_PAUSE_SECONDS_WORTH_A_LINE = 1.0
"""Shorter waits are those for the containers of this process to recover."""


class ControllerLife:
    """start() the socket, run() until cancelled, close()."""

    def __init__(self, *, controller: Controller, server: ControllerServer) -> None:
        self._controller = controller
        self._server = server
        self._recovered = asyncio.Event()
        self._try_again = asyncio.Event()

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Listen. Raises InvalidRequestError if the address is taken."""
        await self._server.start()

    async def wait_until_recovered(self) -> None:
        """Until calls are answered for the first time."""
        await self._recovered.wait()

    async def run(self) -> None:
        """Until cancelled."""
        pause = _PAUSE_SECONDS_FIRST
        while True:
            # Before the attempt: a container that recovers meanwhile is reason for another one.
            self._try_again.clear()
            try:
                await self._controller.start()
                self._recovered.set()
                pause = _PAUSE_SECONDS_FIRST
                await self._controller.run()
            except SegmentStoreError as error:
                self._log(error, pause)
            except ExceptionGroup as group:
                logger.error("the controller's background work broke", exc_info=group)
            await self._rest(pause)
            pause = min(_PAUSE_GROWTH * pause, _PAUSE_SECONDS_MAX)

    def container_recovered(self) -> None:
        """A container takes requests: perhaps the one that was missing."""
        self._try_again.set()

    async def _rest(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._try_again.set)
        try:
            await self._try_again.wait()
        finally:
            timer.cancel()

    def _log(self, error: SegmentStoreError, pause: float) -> None:
        waits = error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.FULL)
        if waits and pause < _PAUSE_SECONDS_WORTH_A_LINE:
            return
        logger.log(
            logging.INFO if waits else logging.ERROR, "the controller cannot recover yet: %s", error
        )

    def complaints(self) -> list[str]:
        """What a person should know, in sentences, for `/health`."""
        rooms = self._controller.rooms
        stuck = [
            f"transactions of stream {scope}/{stream} are not finished: {why}"
            for (scope, stream), why in rooms.transactions.complaints().items()
        ]
        clock = rooms.retention.clock_watch.complaint()
        return [*stuck, clock] if clock else stuck

    def settle_clocks(self) -> None:
        """A person says that the present time is right (H77)."""
        self._controller.rooms.retention.clock_watch.settle()

    async def close(self) -> None:
        """Idempotent."""
        await self._server.close()
