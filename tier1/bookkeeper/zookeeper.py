"""Values of a log in ZooKeeper, changed by compare-and-set on ZooKeeper's own versions.

kazoo runs threads of its own. It is asked by calls that do not wait, and answers on one of its threads, from where the
answer goes to the loop.

Invariants:

- A read sees every change that was answered before it began: it is preceded by a sync, because a server of an ensemble
  may lag behind the others.
- Nothing is sent while there is no connection, so that no change waits in a queue for a time when its caller has long
  given up. A change that was sent may have been made whenever MetadataUnavailableError is raised.
- A call ends within a session's seconds of waiting for a connection, and as many for the answer.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done, run_blocking
from segmentstore.runtime.guarded_callback import guarded, raise_again
from tier1.bookkeeper.metadata_store import (
    MetadataChangedError,
    MetadataUnavailableError,
    VersionedValue,
)

_LOG = logging.getLogger(__name__)
_VALUE_BYTES_MAX: Final = 1_000_000
"""A server drops the connection of a client that sends more than a megabyte."""
_RECONNECT_SECONDS_MAX: Final = 1.0


class ZooKeeperMetadataStore:
    """Implements MetadataStore. Made by connect()."""

    def __init__(self, client: Any, kazoo: Any, *, root: str, seconds_max: float) -> None:
        self._client = client
        self._kazoo = kazoo
        self._root = root.rstrip("/")
        self._seconds_max = seconds_max
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._connected.set()
        self._is_closed = False
        self._on_state = guarded(self._state_changed, raise_again)
        client.add_listener(self._state_changed_in_thread)
        self._state_changed(client.connected)

    @classmethod
    async def connect(
        cls, servers: str, *, root: str, session_seconds: float = 10.0
    ) -> "ZooKeeperMetadataStore":
        """Of the ensemble at `servers`, as in "host1:2181,host2:2181"; paths are below `root`.

        Raises InvalidRequestError if kazoo is not installed, MetadataUnavailableError.
        """
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
        try:
            await run_blocking(None, partial(client.start, timeout=session_seconds))
        except client.handler.timeout_exception as error:
            raise MetadataUnavailableError(f"no ZooKeeper answers servers={servers}") from error
        _LOG.info("connected to ZooKeeper servers=%s root=%s", servers, root)
        return cls(client, kazoo, root=root, seconds_max=session_seconds)

    async def get(self, path: str) -> VersionedValue | None:
        try:
            value, state = await self._synced(path, self._client.get_async)
        except self._kazoo.exceptions.NoNodeError:
            return None
        return VersionedValue(value, state.version)

    async def create(self, path: str, value: bytes) -> int:
        _check_size(value)
        try:
            _, state = await self._answer(
                lambda: self._client.create_async(
                    self._full(path), value, makepath=True, include_data=True
                )
            )
        except self._kazoo.exceptions.NodeExistsError as error:
            raise MetadataChangedError(f"value exists already path={self._full(path)}") from error
        return int(state.version)

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        _check_size(value)
        state = await self._answer_of_version(self._client.set_async, path, value, version=version)
        return int(state.version)

    async def delete(self, path: str, *, version: int) -> None:
        await self._answer_of_version(self._client.delete_async, path, version=version)

    async def children(self, path: str) -> list[str]:
        try:
            return sorted(await self._synced(path, self._client.get_children_async))
        except self._kazoo.exceptions.NoNodeError:
            return []

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._connected.set()
            self._client.remove_listener(self._state_changed_in_thread)
            await run_blocking(None, self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

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
        """To a change of the value that has this version. Raises MetadataChangedError if it has another, or is gone."""
        exceptions = self._kazoo.exceptions
        full = self._full(path)
        try:
            return await self._answer(lambda: change(full, *values, version=version))
        except (exceptions.BadVersionError, exceptions.NoNodeError) as error:
            raise MetadataChangedError(
                f"value has another version path={full} version={version}"
            ) from error

    async def _answer(self, send: Callable[[], Any]) -> Any:
        """To one request. Raises MetadataUnavailableError, and kazoo's errors that are answers."""
        exceptions = self._kazoo.exceptions
        try:
            async with asyncio.timeout(self._seconds_max):
                await self._connected.wait()
        except TimeoutError:
            raise MetadataUnavailableError("no ZooKeeper is connected") from None
        if self._is_closed:
            raise MetadataUnavailableError("the client of ZooKeeper is closed")
        answer: Future[Any] = self._loop.create_future()
        send().rawlink(partial(self._answered_in_thread, answer))
        try:
            async with asyncio.timeout(self._seconds_max):
                return await answer
        except TimeoutError:
            raise MetadataUnavailableError("ZooKeeper does not answer") from None
        except (exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.BadVersionError):
            raise
        except exceptions.KazooException as error:
            raise MetadataUnavailableError(
                f"ZooKeeper fails error={type(error).__name__}"
            ) from error

    # --- in threads of kazoo ----------------------------------------------------------------------

    def _answered_in_thread(self, answer: "Future[Any]", result: Any) -> None:
        if result.exception is not None:
            self._tell_loop(partial(fail_unless_done, answer, result.exception))
        else:
            self._tell_loop(partial(complete_unless_done, answer, result.value))

    def _state_changed_in_thread(self, state: str) -> None:
        self._tell_loop(partial(self._on_state, state == "CONNECTED"))

    def _tell_loop(self, news: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(guarded(news, raise_again))

    # --- on the loop ------------------------------------------------------------------------------

    def _state_changed(self, is_connected: bool) -> None:
        if self._is_closed or is_connected == self._connected.is_set():
            return
        if is_connected:
            self._connected.set()
            _LOG.info("connected to ZooKeeper again root=%s", self._root)
        else:
            self._connected.clear()
            _LOG.warning("lost the connection to ZooKeeper root=%s", self._root)


def _check_size(value: bytes) -> None:
    assert len(value) <= _VALUE_BYTES_MAX, f"value is too large for ZooKeeper bytes={len(value)}"
