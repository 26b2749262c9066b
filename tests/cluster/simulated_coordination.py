"""A coordination store in memory for simulations: sessions that expire, answers that get lost, watches that are late.

The store belongs to the world; a process has sessions of it, over a network of its own. It is harsher than ZooKeeper in
one thing: a change that was sent in a session is made though the session has ended meanwhile, unless it is ephemeral.
"""

import asyncio
from asyncio import Event
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from random import Random

from segmentstore.coordination.coordination_store import (
    Change,
    CheckVersion,
    CoordinationUnavailableError,
    CreateValue,
    DeleteValue,
    SessionLostError,
    SetValue,
    ValueChangedError,
    VersionedValue,
)
from tests.tier1.bookkeeper.simulated_network import Network, Result


@dataclass(slots=True)
class _Value:
    value: bytes
    version: int = 0
    owner: int = 0
    """The session of an ephemeral one."""


@dataclass(slots=True)
class SimulatedCoordination:
    """What is there, and who waits for news."""

    random: Random
    session_seconds: float = 10.0
    watch_seconds_max: float = 0.0
    """How late news of a change may be."""
    values: dict[str, _Value] = field(default_factory=dict)
    on_change: Callable[[str], None] = lambda _: None
    """Called behind every change of a path."""
    late_commits: float = 0.0
    """Probability that a commit has no answer, and arrives up to 20 s later."""
    on_late_commit: Callable[[], None] = lambda: None
    """Called in the process that has sent one."""
    is_down: bool = False
    """No session expires; all of them begin anew when it comes back."""
    _deadlines: dict[int, float] = field(default_factory=dict)
    _next_session: int = 1
    _waiting: dict[str, dict[Event, Context]] = field(default_factory=dict)

    def new_session(self) -> int:
        session_id, self._next_session = self._next_session, self._next_session + 1
        self._deadlines[session_id] = 0.0
        self.touch(session_id)
        return session_id

    def lasts(self, session_id: int) -> bool:
        return session_id in self._deadlines

    def touch(self, session_id: int) -> None:
        """The store has heard of the session."""
        if session_id in self._deadlines:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self.session_seconds
            self._deadlines[session_id] = deadline
            loop.call_at(deadline, self._expire, session_id, deadline, context=Context())

    def _expire(self, session_id: int, deadline: float) -> None:
        if not self.is_down and self._deadlines.get(session_id) == deadline:
            self.end(session_id)

    def come_back(self) -> None:
        self.is_down = False
        for session_id in self._deadlines:
            self.touch(session_id)

    def end(self, session_id: int) -> None:
        if self._deadlines.pop(session_id, None) is not None:
            for path in [p for p, each in self.values.items() if each.owner == session_id]:
                del self.values[path]
                self._tell(path)

    # --- requests as they take effect -------------------------------------------------------------

    def get(self, path: str, changed: Event | None, context: Context) -> VersionedValue | None:
        if changed is not None:
            self._waiting.setdefault(path, {})[changed] = context
        found = self.values.get(path)
        return None if found is None else VersionedValue(found.value, found.version)

    def children(self, path: str, changed: Event | None, context: Context) -> list[str]:
        if changed is not None:
            self._waiting.setdefault(f"{path}/", {})[changed] = context
        below = f"{path}/"
        return sorted(
            {p.removeprefix(below).split("/")[0] for p in self.values if p.startswith(below)}
        )

    def create(self, path: str, value: bytes, owner: int) -> int:
        if owner and not self.lasts(owner):
            raise SessionLostError("the session has ended")
        if path in self.values:
            raise ValueChangedError(f"value exists already {path=}")
        self.values[path] = _Value(value, 0, owner)
        self._tell(path)
        return 0

    def commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            found = self.values.get(change.path)
            if isinstance(change, CreateValue):
                is_as_expected = found is None
            else:
                is_as_expected = found is not None and found.version == change.version
            if not is_as_expected:
                raise ValueChangedError(f"a value has another version path={change.path!r}")
        for change in changes:
            match change:
                case CreateValue(path, value):
                    self.values[path] = _Value(value)
                case SetValue(path, value, version):
                    owner = self.values[path].owner
                    self.values[path] = _Value(value, version + 1, owner)
                case DeleteValue(path, _):
                    del self.values[path]
                case CheckVersion():
                    continue
            self._tell(change.path)

    def _tell(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self.on_change(path)
        for place in (path, f"{path.rpartition('/')[0]}/"):
            for event, context in self._waiting.pop(place, {}).items():
                seconds = self.random.uniform(0, self.watch_seconds_max)
                loop.call_later(seconds, event.set, context=context)


class SimulatedSession:
    """Implements CoordinationSession for one process."""

    def __init__(self, world: SimulatedCoordination, network: Network) -> None:
        self._world = world
        self._network = network
        self._ended = asyncio.Event()
        self.session_id = world.new_session()
        self.is_closed = False

    @classmethod
    async def connect(cls, world: SimulatedCoordination, network: Network) -> "SimulatedSession":
        """Raises CoordinationUnavailableError."""
        await network.request(lambda: None, _unavailable)
        return cls(world, network)

    @property
    def session_seconds(self) -> float:
        return self._world.session_seconds

    @property
    def ended(self) -> Event:
        return self._ended

    async def heartbeat(self) -> float:
        sent = asyncio.get_running_loop().time()
        await self._request(lambda: None)
        return sent

    async def get(self, path: str, *, changed: Event | None = None) -> VersionedValue | None:
        context = copy_context()
        return await self._request(lambda: self._world.get(path, changed, context))

    async def children(self, path: str, *, changed: Event | None = None) -> list[str]:
        context = copy_context()
        return await self._request(lambda: self._world.children(path, changed, context))

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        owner = self.session_id if ephemeral else 0
        return await self._request(lambda: self._world.create(path, value, owner))

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        await self.commit([SetValue(path, value, version)])
        return version + 1

    async def delete(self, path: str, *, version: int) -> None:
        await self.commit([DeleteValue(path, version)])

    async def commit(self, changes: Sequence[Change]) -> None:
        is_late = (
            self._world.late_commits and self._world.random.random() < self._world.late_commits
        )
        network = replace(self._network, late=1.0) if is_late else self._network
        if is_late:
            self._world.on_late_commit()
        await self._request(lambda: self._world.commit(changes), network)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            try:
                async with asyncio.timeout(self._network.timeout_seconds):
                    await self._network.request(
                        lambda: self._world.end(self.session_id), _unavailable
                    )
            except (CoordinationUnavailableError, TimeoutError):
                return  # it expires

    async def _request(
        self, effect: Callable[[], Result], network: Network | None = None
    ) -> Result:
        if self.is_closed:
            raise CoordinationUnavailableError("the client is closed")
        answer = await (network or self._network).request(
            lambda: self._took_effect(effect), _unavailable
        )
        if not answer[0]:
            self._ended.set()
            raise SessionLostError("the session has ended")
        return answer[1]

    def _took_effect(self, effect: Callable[[], Result]) -> tuple[bool, Result]:
        self._world.touch(self.session_id)
        return self._world.lasts(self.session_id), effect()


def _unavailable(why: str) -> CoordinationUnavailableError:
    return CoordinationUnavailableError(f"the store does not answer: {why}")
