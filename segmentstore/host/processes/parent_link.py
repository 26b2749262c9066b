"""The parent, as a process that it started sees it: news taken, questions asked, and the end of one with the other.

Invariants:

- The process ends in the turn in which it sees that the parent has: nothing is closed, what was acknowledged is safe.
- refresh() asks the parent behind everything that was told before: its answer comes behind the states of that moment.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Never

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.host.processes.channel import Channel
from segmentstore.host.processes.orders import Message, States, states_in

logger = logging.getLogger(__name__)

_EXIT_WITHOUT_PARENT = 1
_LOOKS_MAX = 10_000


class ParentLink:
    """run() beside the work; send() and refresh() meanwhile."""

    def __init__(self, channel: Channel, *, take: Callable[[States], None]) -> None:
        self._channel = channel
        self._take = take
        self._looks: deque[asyncio.Future[None]] = deque()

    async def run(self) -> Never:
        """Until cancelled."""
        while True:
            message = await self._channel.receive()
            if message is None:
                logger.error("the parent has ended, and this process with it")
                os._exit(_EXIT_WITHOUT_PARENT)
            if "states" in message:
                self._take(states_in(message))
            elif "looked" in message:
                look = self._looks.popleft()
                if not look.done():
                    look.set_result(None)

    def send(self, message: Message) -> None:
        """To the parent."""
        self._channel.send(message)

    async def refresh(self) -> None:
        """Returns when what the parent knew at the call has been taken."""
        if len(self._looks) >= _LOOKS_MAX:
            raise SegmentStoreError("too many requests ask where containers are")
        look = asyncio.get_running_loop().create_future()
        self._looks.append(look)
        self._channel.send({"look": True})
        await look

    def close(self) -> None:
        """Idempotent."""
        self._channel.close()
