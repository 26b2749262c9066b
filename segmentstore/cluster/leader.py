"""Which of the controllers leads: the one that created the ephemeral value, and raised the epoch.

Invariants:

- A leader raises the epoch by compare-and-set before it does anything else. Everything that it writes is committed
  together with a check of that epoch: once another leader has raised it, nothing of the earlier one lands, however late
  it arrives.
- Two processes may believe that they lead, for a while: only the epoch decides whose writes land. What a leader does
  beside its writes ends with its lease (`session_lease.py`).
- A leader that has lost its session, or the epoch, stops its work, closes the session and is a candidate again.
- A controller that cannot read the epoch is no candidate: one of the version that wrote it may be.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from segmentstore.cluster.records import (
    EPOCH_PATH,
    LEADER_PATH,
    ClusterRecordError,
    LeaderRecord,
    decode_epoch,
    encode_epoch,
    encode_leader,
)
from segmentstore.cluster.session_lease import SessionLease, first_cause, reach
from segmentstore.coordination.coordination_store import (
    Change,
    CheckVersion,
    CoordinationSession,
    CoordinationUnavailableError,
    SessionLostError,
    ValueChangedError,
)
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import wait_for_event

_LOG = logging.getLogger(__name__)

LOOK_SECONDS_MAX: Final = 5.0
"""A candidate looks this often whether there is a leader, though no change was told."""
_RETRY_SECONDS_FIRST: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0


class LeadershipLostError(CoordinationUnavailableError):
    """Another leader has raised the epoch: what this one decides does not count any more."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """What the leader's work is given."""

    session: CoordinationSession
    lease: SessionLease
    epoch: int
    epoch_version: int
    """Of the value that holds the epoch."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """All of them, if no other leader has begun. Raises LeadershipLostError, ValueChangedError: none of them."""
        try:
            await self.session.commit([CheckVersion(EPOCH_PATH, self.epoch_version), *changes])
        except ValueChangedError:
            found = await self.session.get(EPOCH_PATH)
            if found is None or found.version != self.epoch_version:
                raise LeadershipLostError(f"another leader has begun epoch={self.epoch}") from None
            raise


class Election:
    """One controller's part in it. run() until cancelled."""

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[CoordinationSession]],
        leader: LeaderRecord,
        work: Callable[[Leadership], Coroutine[None, None, None]],
        random: Random,
    ) -> None:
        """`work` runs while this controller leads; it is cancelled, and awaited, as soon as it does not.

        `connect` gives a new session with every call.
        """
        self._connect = connect
        self._leader = leader
        self._work = work
        self._random = random
        self.leadership: Leadership | None = None
        """While this controller leads, as far as it knows."""

    async def run(self) -> None:
        """Candidate, leader, candidate, and so on. A failure of the work that is not the loss of the lead ends it."""
        backoff = Backoff(
            seconds_first=_RETRY_SECONDS_FIRST, seconds_max=_RETRY_SECONDS_MAX, random=self._random
        )
        while True:
            try:
                await self._take_part(backoff)
            except (CoordinationUnavailableError, ClusterRecordError) as error:
                _LOG.warning(
                    "controller=%s is not in the election: %s", self._leader.controller_id, error
                )
            await asyncio.sleep(backoff.next_seconds())

    async def _take_part(self, backoff: Backoff) -> None:
        """One session to its end."""
        session = await self._connect()
        lost: str | None = None
        try:
            try:
                lease = SessionLease(session, on_lost=self._forget)
                await lease.begin()
                await _present_epoch(session)
                backoff.reset()
                async with asyncio.TaskGroup() as group:
                    renewal = group.create_task(lease.run())
                    await self._win_and_lead(session, lease)
                    renewal.cancel()
            except* (CoordinationUnavailableError, ClusterRecordError) as losses:
                lost = first_cause(losses)
            if lost is not None:
                # Its value keeps others from leading for as long as its session lasts.
                await reach(session)
                raise SessionLostError(lost)
        finally:
            self._forget()
            await session.close()

    def _forget(self) -> None:
        self.leadership = None

    async def _win_and_lead(self, session: CoordinationSession, lease: SessionLease) -> None:
        await self._win(session)
        epoch, version = await self._raise_epoch(session)
        leadership = Leadership(session, lease, epoch, version)
        if not lease.is_valid():
            raise SessionLostError("the lease ended during the election")
        _LOG.info("controller=%s leads epoch=%d", self._leader.controller_id, epoch)
        self.leadership = leadership
        await self._work(leadership)

    async def _win(self, session: CoordinationSession) -> None:
        """Returns when the leader's value is this session's."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        while True:
            changed.clear()
            try:
                await session.create(LEADER_PATH, encode_leader(self._leader), ephemeral=True)
            except ValueChangedError:
                if await session.get(LEADER_PATH, changed=changed) is not None:
                    await wait_for_event(changed, until=loop.time() + LOOK_SECONDS_MAX)
            else:
                return

    async def _raise_epoch(self, session: CoordinationSession) -> tuple[int, int]:
        """The new epoch and its value's version. Raises LeadershipLostError if another leader raised it meanwhile."""
        present, version = await _present_epoch(session)
        epoch = present + 1
        try:
            if version is None:
                return epoch, await session.create(EPOCH_PATH, encode_epoch(epoch))
            version = await session.compare_and_set(
                EPOCH_PATH, encode_epoch(epoch), version=version
            )
        except ValueChangedError as error:
            raise LeadershipLostError("another leader raised the epoch") from error
        return epoch, version


async def _present_epoch(session: CoordinationSession) -> tuple[int, int | None]:
    """And its value's version; 0 and None before the first leader. Raises ClusterRecordError."""
    found = await session.get(EPOCH_PATH)
    return (0, None) if found is None else (decode_epoch(found.value), found.version)
