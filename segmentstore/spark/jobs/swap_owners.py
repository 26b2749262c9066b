"""The owner of a container as the `compact` job meets it: over HTTP if the service runs, in this process if not.

- Only the owner changes a manifest. With the service off it has no owner, so the job claims an epoch first, by opening
  the container's log as the service would: the log is held meanwhile, and whatever is in it waits for the next
  start. Logs that are not files are opened by the caller's means.
- Neither decides anything about a swap: a refusal comes with the owner's reason.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import aiohttp

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    InvalidRequestError,
    LogInUseError,
    StorageError,
    StorageUnavailableError,
    SwapRefusedError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SwapProposal
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.spark.jobs.compact import SwapOwner
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, open_for_owner
from tier1.file_log.log import FileDurableDataLog
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage

LogOfContainer: TypeAlias = Callable[[ContainerId], Awaitable[DurableDataLog]]
"""A log that is there already, not initialized."""
OpenLogs: TypeAlias = Callable[[Path], AbstractAsyncContextManager[LogOfContainer | None]]
"""Opens the logs of the store in a data directory; None if they are files in it."""

_ATTEMPTS_MAX = 120
_PAUSE_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 600.0
_CONFLICT, _BUSY = 409, 503


@contextmanager
def open_owner(
    place: Tier2Location,
    *,
    server: str = "",
    data_directory: Path | None = None,
    open_logs: OpenLogs | None = None,
) -> Iterator[SwapOwner | None]:
    """The service at `server`; else this process, which claims the next epoch of the store in `data_directory`.

    None without both.
    """
    with LoopRunner() as runner:
        if server:
            yield ServiceOwner(server, runner)
        elif data_directory is not None:
            owner = ClaimingOwner(
                place=place, data_directory=data_directory, runner=runner, open_logs=open_logs
            )
            try:
                yield owner
            finally:
                owner.close()
        else:
            yield None


class ServiceOwner:
    """The owners in a running service, by its HTTP address."""

    def __init__(self, server: str, runner: LoopRunner) -> None:
        self._server = server.rstrip("/")
        self._runner = runner

    def reserve(self, container_id: int, count: int) -> list[str]:
        answer = self._ask(container_id, "POST", "swaps/keys", json={"count": count})
        keys = answer["keys"]
        assert isinstance(keys, list), f"the service answers with a list of keys answer={answer}"
        return [str(key) for key in keys]

    def release(self, container_id: int, keys: Sequence[str]) -> None:
        self._ask(container_id, "POST", "swaps/release", json={"keys": list(keys)})

    def upload(self, container_id: int, key: str, content: bytes) -> None:
        self._ask(container_id, "PUT", "swaps/objects", params={"key": key}, body=content)

    def propose(self, container_id: int, proposal: SwapProposal) -> None:
        asked = {
            "segment_id": int(proposal.segment_id),
            "old": [asdict(image) for image in proposal.old],
            "new": [asdict(image) for image in proposal.new],
        }
        self._ask(container_id, "POST", "swaps", json=asked)

    def _ask(
        self,
        container_id: int,
        method: str,
        verb: str,
        *,
        json: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Mapping[str, object]:
        """The answer. One that is busy is asked again: nothing was done."""
        url = f"{self._server}/v1/containers/{container_id}/{verb}"

        async def ask() -> tuple[int, Mapping[str, object]]:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS, sock_read=_ANSWER_SECONDS
            )
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, json=json, params=params, data=body) as answer,
            ):
                return answer.status, await answer.json()

        async def until_not_busy() -> tuple[int, Mapping[str, object]]:
            for _ in range(_ATTEMPTS_MAX):
                status, answer = await ask()
                if status != _BUSY:
                    return status, answer
                await asyncio.sleep(_PAUSE_SECONDS)
            raise StorageError(f"the service stays busy url={url}")

        try:
            status, answer = self._runner.run(until_not_busy())
        except (aiohttp.ClientError, OSError) as error:
            raise StorageError(f"the service does not answer url={url}: {error}") from error
        if status == _CONFLICT:
            raise SwapRefusedError(str(answer.get("error", "refused")))
        if status >= 400:
            raise StorageError(f"the service refuses {verb} status={status}: {answer.get('error')}")
        return answer


class ClaimingOwner:
    """The owner while the service is off: claims a container's next epoch when it is first asked about it."""

    def __init__(
        self,
        *,
        place: Tier2Location,
        data_directory: Path,
        runner: LoopRunner,
        open_logs: OpenLogs | None = None,
    ) -> None:
        """`data_directory`: with the logs of the store, so that the epochs are those of its owner.

        `open_logs`: gives those that are elsewhere.
        """
        self._place = place
        self._open_logs = open_logs
        self._log_elsewhere: LogOfContainer | None = None
        self._data_directory = data_directory.absolute()
        self._runner = runner
        self._stack = AsyncExitStack()
        self._store: ObjectStore | None = None
        self._owners: dict[int, TieredStorage] = {}

    def reserve(self, container_id: int, count: int) -> list[str]:
        return self._owner(container_id).reserve_object_keys(count)

    def release(self, container_id: int, keys: Sequence[str]) -> None:
        self._owner(container_id).release_object_keys(keys)

    def upload(self, container_id: int, key: str, content: bytes) -> None:
        self._runner.run(self._owner(container_id).upload_reserved(key, content))

    def propose(self, container_id: int, proposal: SwapProposal) -> None:
        self._runner.run(self._owner(container_id).propose_swap(proposal))

    def close(self) -> None:
        """Let go of logs and volumes; what was published stays. Idempotent."""
        self._owners.clear()
        self._runner.run(self._stack.aclose())

    def _owner(self, container_id: int) -> TieredStorage:
        if container_id not in self._owners:
            self._owners[container_id] = self._runner.run(self._claim(ContainerId(container_id)))
        return self._owners[container_id]

    async def _claim(self, container_id: ContainerId) -> TieredStorage:
        if self._store is None:
            if self._open_logs is not None:
                self._log_elsewhere = await self._stack.enter_async_context(
                    self._open_logs(self._data_directory)
                )
            self._store = await self._stack.enter_async_context(self._open_store())
        log = await self._log(container_id)
        reader = ContainerReader(
            object_store=self._store,
            container_id=container_id,
            settings=StorageSettings(),
            executor=self._runner.executor,
        )
        await reader.refresh()
        try:
            epoch = await log.initialize()
        except LogInUseError as error:
            raise InvalidRequestError(
                f"the store runs: name it with --server, so that it can check what is proposed: {error}"
            ) from error
        self._stack.push_async_callback(log.close)
        storage = TieredStorage(
            object_store=self._store,
            store_id=reader.manifest.store_id,
            container_id=container_id,
            container_count=reader.manifest.container_count,
            settings=StorageSettings(),
            wall_clock=SystemWallClock(),
            random=system_random(),
            executor=self._runner.executor,
        )
        await storage.claim(epoch=epoch, log_id=log.log_id, follows=log.follows)
        return storage

    async def _log(self, container_id: ContainerId) -> DurableDataLog:
        if self._log_elsewhere is not None:
            return await self._log_elsewhere(container_id)
        path = self._data_directory / "tier1" / f"container-{container_id:04d}"
        if not (path / "identity").exists():
            raise InvalidRequestError(
                f"the log of the container is not there, so its next epoch is not known path={path}; "
                "name the data directory of the store with --data"
            )
        return FileDurableDataLog(
            str(path),
            files=SystemFileSystem(),
            executor=self._runner.executor,
            random=system_random(),
            owner=f"compaction process_id={os.getpid()}",
        )

    @asynccontextmanager
    async def _open_store(self) -> AsyncIterator[ObjectStore]:
        async with AsyncExitStack() as opened:
            try:
                store = await opened.enter_async_context(
                    open_for_owner(self._place, self._runner.executor)
                )
            except StorageUnavailableError as error:
                raise InvalidRequestError(
                    f"the volumes are in use; if the store runs, name it with --server: {error}"
                ) from error
            yield store
