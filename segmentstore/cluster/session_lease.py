"""How long a process may be sure of what it created in its session: the lease of a node, and that of a leader.

A heartbeat is sent every sixth of the session. The lease is valid until 7/10 of the session after the moment at which
the newest answered heartbeat was *sent*. The rest of the session is a margin:

- In an ensemble the server that answers tells the leader of the session in its own time, with every half tick. A
  server that loses the leader right behind an answered heartbeat has told it of the heartbeat before that: a sixth of
  the session (0.167), and half a tick, may be missing. A session has to last for five ticks or more, so half a tick is
  a tenth of it at most: 0.267 of the 0.3.
- The rest, 0.033 of the session, is for clocks that do not run at the same pace.

Invariants:

- Time is that of the loop (CLOCK_MONOTONIC), which goes on while the process is stopped.
- A lease that was not valid for a moment is lost for good, though its session may last: `on_lost` is called once, and
  run() ends with SessionLostError. A node gives its containers up then (host/node_membership.py); before that, each
  asks for the lease whenever it tells what another owner could contradict (containers/ownership.py).
"""

import asyncio
from collections.abc import Callable
from typing import Final, Never

from segmentstore.coordination.coordination_store import (
    CoordinationSession,
    CoordinationUnavailableError,
    SessionLostError,
)

HEARTBEATS_PER_SESSION: Final = 6
LEASE_SHARE: Final = 0.7
"""Of a session."""


class SessionLease:
    """Implements Lease. begin(), then run() beside the work that rests on it."""

    def __init__(self, session: CoordinationSession, *, on_lost: Callable[[], None]) -> None:
        self._session = session
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._valid_until = 0.0
        self._is_lost = False
        self._has_told = False
        self.heartbeat_seconds = 0.0
        """How long the newest heartbeat took."""

    def is_valid(self) -> bool:
        if self._loop.time() >= self._valid_until:
            self._is_lost = True
        return not self._is_lost

    @property
    def seconds_left(self) -> float:
        """0 once it is lost."""
        return self._valid_until - self._loop.time() if self.is_valid() else 0.0

    async def begin(self) -> None:
        """Returns with a valid lease. Raises CoordinationUnavailableError."""
        sent = await self._session.heartbeat()
        self._valid_until = self._end_of_lease(sent)

    async def run(self) -> None:
        """Renew it until it is lost; raises SessionLostError then, behind `on_lost`."""
        assert self._valid_until, "begin() comes before run()"
        lost = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_heartbeats())
                group.create_task(self._wait_for_its_end())
                group.create_task(self._wait_for_the_end_of_the_session())
        except* SessionLostError as losses:
            lost = first_cause(losses)
        raise SessionLostError(lost)

    async def _send_heartbeats(self) -> None:
        interval = pause = self._session.session_seconds / HEARTBEATS_PER_SESSION
        while True:
            await asyncio.sleep(pause)
            try:
                sent = await self._session.heartbeat()
            except SessionLostError as error:
                self._lose(str(error))
            except CoordinationUnavailableError:
                # Another follows soon: behind a store that was away every part of a second may count.
                pause = interval / 10
                continue
            pause = interval
            self.heartbeat_seconds = self._loop.time() - sent
            if self.is_valid():
                self._valid_until = max(self._valid_until, self._end_of_lease(sent))

    async def _wait_for_its_end(self) -> None:
        while True:
            if not self.is_valid():
                break
            await asyncio.sleep(self._valid_until - self._loop.time())
        self._lose("no heartbeat was answered in time; the session may have ended")

    async def _wait_for_the_end_of_the_session(self) -> None:
        await self._session.ended.wait()
        self._lose("the session has ended")

    def _lose(self, why: str) -> Never:
        is_news, self._is_lost = not self._has_told, True
        self._has_told = True
        if is_news:
            self._on_lost()
        raise SessionLostError(why)

    def _end_of_lease(self, sent: float) -> float:
        return sent + LEASE_SHARE * self._session.session_seconds


async def reach(session: CoordinationSession) -> None:
    """Behind the loss of its lease: until the store answers, or has ended the session. For a session's seconds at most.

    close() can tell the store then: what was created in the session is gone at once. Otherwise it would be there for
    all of the session's seconds behind the return of a store that was away, and nothing could follow it before. No time
    is lost by it: another session needs the store as well.
    """
    try:
        async with asyncio.timeout(session.session_seconds):
            while True:
                try:
                    await session.heartbeat()
                except SessionLostError:
                    return
                except CoordinationUnavailableError:
                    await asyncio.sleep(session.session_seconds / HEARTBEATS_PER_SESSION / 10)
                else:
                    return
    except TimeoutError:
        return


def first_cause(group: BaseException) -> str:
    """Of a group of failures, in words."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return str(group)
