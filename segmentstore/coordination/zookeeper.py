"""The coordination store in ZooKeeper: values are changed by compare-and-set on ZooKeeper's own versions.

kazoo runs threads of its own. It is asked by calls that do not wait, and answers on one of its threads, from where the
answer goes to the loop.

Invariants:

- A read sees every change that was answered before it began: it is preceded by a sync, because a server of an ensemble
  may lag behind the others.
- Nothing is sent while there is no connection, so that no change waits in a queue for a time when its caller has long
  given up. A change that was sent may have been made whenever CoordinationUnavailableError is raised.
- A call ends within a session's seconds of waiting for a connection, and as many for the answer.
- kazoo begins a new session when one has ended. A store that has one session (`connect_session()`) sends nothing in
  another: it ends with its first. What is created as ephemeral is looked at afterwards: it has to be the first one's.
- kazoo keeps a session alive from its thread, by pings. A store that has one session lets it do so only while the loop
  turns: what is registered there by a process that stands still in one place is gone as that of a stopped one is.
- A heartbeat is a sync, which the leader of the ensemble takes part in: a server that the leader does not hear of any
  more answers reads, and keeps no session alive.
"""

import asyncio
import logging
from asyncio import Event, Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.coordination.coordination_store import (
    VALUE_BYTES_MAX,
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
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done, run_blocking
from segmentstore.runtime.clock import short_interval_seconds
from segmentstore.runtime.guarded_callback import guarded, raise_again

_LOG = logging.getLogger(__name__)
_RECONNECT_SECONDS_MAX: Final = 1.0
_STILL_SHARE: Final = 1 / 3
"""Of a session: a loop that has not turned for so long has no ping sent. What heartbeats prove lasts for longer."""
_TURNS_NOTED: Final = 4
"""In that time."""


@dataclass(frozen=True, slots=True)
class _Watcher:
    """What kazoo calls, on a thread of its own. Equal ones are kept once, however often a value is read."""

    changed: Event
    tell_loop: Callable[[Callable[[], None]], None]

    def __call__(self, _: Any) -> None:
        self.tell_loop(self.changed.set)


class ZooKeeperStore:
    """Implements CoordinationStore by connect(), CoordinationSession by connect_session()."""

    def __init__(
        self, client: Any, kazoo: Any, *, root: str, agreed: "_AgreedSession", one_session: bool
    ) -> None:
        self._client = client
        self._kazoo = kazoo
        self._root = root.rstrip("/")
        self._agreed = agreed
        self._one_session = one_session
        self._session_id = client.client_id[0] if client.client_id is not None else 0
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._connected.set()
        self._ended = asyncio.Event()
        self._is_closed = False
        self._pings = _PingsOfATurningLoop(client, agreed) if one_session else None
        self._on_state = guarded(self._state_changed, raise_again)
        client.add_listener(self._state_changed_in_thread)
        self._state_changed(client.state)

    @classmethod
    async def connect(
        cls, servers: str, *, root: str, session_seconds: float = 10.0
    ) -> "ZooKeeperStore":
        """Of the ensemble at `servers`, as in "host1:2181,host2:2181"; paths are below `root`.

        Its sessions follow one another. Raises InvalidRequestError if kazoo is not installed,
        CoordinationUnavailableError.
        """
        return await cls._connect(servers, root, session_seconds, one_session=False)

    @classmethod
    async def connect_session(
        cls, servers: str, *, root: str, session_seconds: float = 10.0
    ) -> "ZooKeeperStore":
        """As connect(), with one session: a CoordinationSession."""
        return await cls._connect(servers, root, session_seconds, one_session=True)

    @classmethod
    async def _connect(
        cls, servers: str, root: str, session_seconds: float, *, one_session: bool
    ) -> "ZooKeeperStore":
        try:
            import kazoo.client
            import kazoo.exceptions
            import kazoo.retry
        except ImportError as error:
            raise InvalidRequestError(
                "ZooKeeper needs the package kazoo: pip install 'segmentstore[bookkeeper]'"
            ) from error
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        client = kazoo.client.KazooClient(
            hosts=servers,
            timeout=session_seconds,
            connection_retry=kazoo.retry.KazooRetry(
                max_tries=-1, delay=0.05, max_delay=_RECONNECT_SECONDS_MAX
            ),
        )
        agreed = _AgreedSession(client, session_seconds)
        try:
            await run_blocking(None, partial(client.start, timeout=session_seconds))
        except client.handler.timeout_exception as error:
            raise CoordinationUnavailableError(f"no ZooKeeper answers servers={servers}") from error
        except asyncio.CancelledError:
            # By now it is connected, or has ended by itself.
            await run_blocking(None, partial(_stop, client))
            raise
        _LOG.info("connected to ZooKeeper servers=%s root=%s", servers, root)
        return cls(client, kazoo, root=root, agreed=agreed, one_session=one_session)

    @property
    def session_seconds(self) -> float:
        return self._agreed.seconds

    @property
    def ended(self) -> Event:
        return self._ended

    async def heartbeat(self) -> float:
        sent = 0.0

        def send() -> Any:
            nonlocal sent
            sent = self._loop.time()
            return self._client.sync_async(self._full(""))

        await self._answer(send)
        return sent

    async def get(self, path: str, *, changed: Event | None = None) -> VersionedValue | None:
        watch = None if changed is None else _Watcher(changed, self._tell_loop)
        while True:
            try:
                value, state = await self._synced(
                    path, partial(self._client.get_async, watch=watch)
                )
            except self._kazoo.exceptions.NoNodeError:
                if watch is None or not await self._appears(path, watch):
                    return None
            else:
                return VersionedValue(value, state.version)

    async def children(self, path: str, *, changed: Event | None = None) -> list[str]:
        watch = None if changed is None else _Watcher(changed, self._tell_loop)
        while True:
            try:
                return sorted(
                    await self._synced(path, partial(self._client.get_children_async, watch=watch))
                )
            except self._kazoo.exceptions.NoNodeError:
                if watch is None or not await self._appears(path, watch):
                    return []

    async def _appears(self, path: str, watch: _Watcher) -> bool:
        """Whether it is there after all; if not, its creation will be told of."""
        full = self._full(path)
        return await self._answer(lambda: self._client.exists_async(full, watch=watch)) is not None

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        _check_size(value)
        full = self._full(path)
        try:
            _, state = await self._answer(
                lambda: self._client.create_async(
                    full, value, ephemeral=ephemeral, makepath=True, include_data=True
                )
            )
        except self._kazoo.exceptions.NodeExistsError as error:
            raise ValueChangedError(f"value exists already path={full}") from error
        if ephemeral and self._one_session and state.ephemeralOwner != self._session_id:
            self._end()
            raise SessionLostError(f"created in another session path={full}")
        return int(state.version)

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        _check_size(value)
        state = await self._answer_of_version(self._client.set_async, path, value, version=version)
        return int(state.version)

    async def delete(self, path: str, *, version: int) -> None:
        await self._answer_of_version(self._client.delete_async, path, version=version)

    async def commit(self, changes: Sequence[Change]) -> None:
        def send() -> Any:
            transaction = self._client.transaction()
            for change in changes:
                self._add(transaction, change)
            return transaction.commit_async()

        for change, answer in zip(changes, await self._answer(send), strict=True):
            if isinstance(answer, Exception):
                raise ValueChangedError(
                    f"a value of a commit has another version path={self._full(change.path)}"
                ) from answer

    def _add(self, transaction: Any, change: Change) -> None:
        full = self._full(change.path)
        match change:
            case CheckVersion(_, version):
                transaction.check(full, version)
            case CreateValue(_, value):
                _check_size(value)
                transaction.create(full, value)
            case SetValue(_, value, version):
                _check_size(value)
                transaction.set_data(full, value, version)
            case DeleteValue(_, version):
                transaction.delete(full, version)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._connected.set()
            if self._pings is not None:
                self._pings.close()
            self._client.remove_listener(self._state_changed_in_thread)
            await run_blocking(None, partial(_stop, self._client))

    def _full(self, path: str) -> str:
        name = path.strip("/")
        return f"{self._root}/{name}" if name else self._root or "/"

    async def _synced(self, path: str, read: Callable[[str], Any]) -> Any:
        """What `read` finds, no older than this call."""
        full = self._full(path)
        await self._answer(lambda: self._client.sync_async(full))
        return await self._answer(lambda: read(full))

    async def _answer_of_version(
        self, change: Callable[..., Any], path: str, *values: bytes, version: int
    ) -> Any:
        """To a change of the value that has this version. Raises ValueChangedError if it has another, or is gone."""
        exceptions = self._kazoo.exceptions
        full = self._full(path)
        try:
            return await self._answer(lambda: change(full, *values, version=version))
        except (exceptions.BadVersionError, exceptions.NoNodeError) as error:
            raise ValueChangedError(
                f"value has another version path={full} version={version}"
            ) from error

    async def _answer(self, send: Callable[[], Any]) -> Any:
        """To one request. Raises CoordinationUnavailableError, and kazoo's errors that are answers."""
        exceptions = self._kazoo.exceptions
        try:
            async with asyncio.timeout(self._agreed.asked):
                await self._connected.wait()
        except TimeoutError:
            raise CoordinationUnavailableError("no ZooKeeper is connected") from None
        if self._ended.is_set():
            raise SessionLostError("the session with ZooKeeper has ended")
        if self._is_closed:
            raise CoordinationUnavailableError("the client of ZooKeeper is closed")
        answer: Future[Any] = self._loop.create_future()
        send().rawlink(partial(self._answered_in_thread, answer))
        try:
            async with asyncio.timeout(self._agreed.asked):
                result = await answer
        except TimeoutError:
            raise CoordinationUnavailableError("ZooKeeper does not answer") from None
        except (exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.BadVersionError):
            raise
        except exceptions.SessionExpiredError as error:
            raise SessionLostError("the session with ZooKeeper has ended") from error
        except exceptions.KazooException as error:
            raise CoordinationUnavailableError(
                f"ZooKeeper fails error={type(error).__name__}"
            ) from error
        if self._ended.is_set():
            # The news of the end came before the answer: kazoo may have sent the request in its next session.
            raise SessionLostError("the session with ZooKeeper has ended")
        return result

    # --- in threads of kazoo ----------------------------------------------------------------------

    def _answered_in_thread(self, answer: "Future[Any]", result: Any) -> None:
        if result.exception is not None:
            self._tell_loop(partial(fail_unless_done, answer, result.exception))
        else:
            self._tell_loop(partial(complete_unless_done, answer, result.value))

    def _state_changed_in_thread(self, state: str) -> None:
        self._tell_loop(partial(self._on_state, state))

    def _tell_loop(self, news: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(guarded(news, raise_again))

    # --- on the loop ------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        if state == "LOST" and self._one_session:
            self._end()
        is_connected = state == "CONNECTED"
        if self._is_closed or self._ended.is_set() or is_connected == self._connected.is_set():
            return
        if is_connected:
            self._connected.set()
            _LOG.info("connected to ZooKeeper again root=%s", self._root)
        else:
            self._connected.clear()
            _LOG.warning("lost the connection to ZooKeeper root=%s", self._root)

    def _end(self) -> None:
        if not self._ended.is_set() and not self._is_closed:
            _LOG.warning("the session with ZooKeeper has ended root=%s", self._root)
        self._ended.set()
        self._connected.set()


class _AgreedSession:
    """How long a session lasts without news of it: the server may shorten what the client asks for."""

    def __init__(self, client: Any, asked: float) -> None:
        self.asked = asked
        self.seconds = asked
        # kazoo keeps the answer to itself, and tells of a connection before it returns from here.
        connection = client._connection
        self._invoke = connection._invoke
        connection._invoke = self._invoke_and_note

    def _invoke_and_note(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._invoke(*args, **kwargs)
        if isinstance(answer, tuple) and getattr(answer[0], "time_out", 0) > 0:
            self.seconds = min(self.seconds, answer[0].time_out / 1000)
        return answer


class _PingsOfATurningLoop:
    """Until close(): kazoo's thread goes on beside a loop that hangs, and its pings would keep the session for ever."""

    def __init__(self, client: Any, agreed: _AgreedSession) -> None:
        self._loop = asyncio.get_running_loop()
        self._still_seconds = _STILL_SHARE * agreed.seconds
        self._turn = guarded(self._turned, raise_again)
        self._turned()
        connection = client._connection
        self._send_ping = connection._send_ping
        connection._send_ping = self._send_ping_if_it_turns

    def _turned(self) -> None:
        # Not the loop's time: another thread reads it, and uvloop's stands still with the loop.
        self._turned_at = short_interval_seconds()
        self._timer = self._loop.call_later(self._still_seconds / _TURNS_NOTED, self._turn)

    def _send_ping_if_it_turns(self, *args: Any) -> None:
        if short_interval_seconds() - self._turned_at < self._still_seconds:
            self._send_ping(*args)

    def close(self) -> None:
        self._timer.cancel()


def _stop(client: Any) -> None:
    client.stop()
    client.close()


def _check_size(value: bytes) -> None:
    assert len(value) <= VALUE_BYTES_MAX, f"value is too large for ZooKeeper bytes={len(value)}"
