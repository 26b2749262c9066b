"""The owner of a container as the `compact` job meets it: over HTTP if the service runs, in this process if not.

- Only the owner changes a manifest. With the service off it has no owner, so the job claims an epoch first; how, only
  its caller knows (segmentstore/host/offline_owner.py): nothing here knows a log.
- Neither decides anything about a swap: a refusal comes with the owner's reason.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Protocol, TypeAlias

import aiohttp

from segmentstore.contracts.errors import (
    InvalidRequestError,
    StorageError,
    StorageUnavailableError,
    SwapRefusedError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SwapOwner, SwapProposal
from segmentstore.spark.jobs.compact import SwapOwners
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, open_for_owner

_ATTEMPTS_MAX = 120
_PAUSE_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 600.0
_CONFLICT, _BUSY = 409, 503
_UNKNOWN = frozenset({500, 502, 504})


class OfflineOwners(Protocol):
    """Owners in this process, each with an epoch of its own."""

    async def owner_of(self, container_id: ContainerId) -> SwapOwner:
        """Raises InvalidRequestError if it cannot be claimed, StorageError."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


OpenOwners: TypeAlias = Callable[[ObjectStore, Executor], OfflineOwners]
"""Of the containers in an object store that is open for their owner."""


@contextmanager
def open_owner(
    place: Tier2Location, *, server: str = "", open_owners: OpenOwners | None = None
) -> Iterator[SwapOwners | None]:
    """The service at `server`; else this process, which claims containers through `open_owners`. None without both."""
    with LoopRunner() as runner:
        if server:
            yield ServiceOwner(server, runner)
        elif open_owners is not None:
            owner = ClaimingOwner(place=place, open_owners=open_owners, runner=runner)
            try:
                yield owner
            finally:
                owner.close()
        else:
            yield None


class ServiceOwner:
    """The owners in a running service, by its HTTP address.

    It asks by a session of its own: a driver blocks on each answer for as long as a large object takes, and the command
    line's client has no verbs of swaps.
    """

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
        try:
            self._ask(container_id, "POST", "swaps", json=asked)
        except _OutcomeUnknownError as error:
            # It may be published, now or later. Its keys are used up: the window is planned anew, by the manifest.
            raise SwapRefusedError(str(error)) from error

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
            sentence = f"the service refuses {verb} status={status}: {answer.get('error')}"
            if status in _UNKNOWN and answer.get("kind") == "unavailable":
                raise _OutcomeUnknownError(sentence)
            raise StorageError(sentence)
        return answer


class _OutcomeUnknownError(StorageError):
    """What was asked for may have been done."""


class ClaimingOwner:
    """The owners while the service is off: claims a container's next epoch when it is first asked about it."""

    def __init__(
        self, *, place: Tier2Location, open_owners: OpenOwners, runner: LoopRunner
    ) -> None:
        self._place = place
        self._open_owners = open_owners
        self._runner = runner
        self._stack = AsyncExitStack()
        self._owners: OfflineOwners | None = None

    def reserve(self, container_id: int, count: int) -> list[str]:
        async def reserve() -> list[str]:
            return (await self._owner_of(ContainerId(container_id))).reserve_object_keys(count)

        return self._runner.run(reserve())

    def release(self, container_id: int, keys: Sequence[str]) -> None:
        async def release() -> None:
            (await self._owner_of(ContainerId(container_id))).release_object_keys(keys)

        self._runner.run(release())

    def upload(self, container_id: int, key: str, content: bytes) -> None:
        self._runner.run(self._owner(container_id).upload_reserved(key, content))

    def propose(self, container_id: int, proposal: SwapProposal) -> None:
        self._runner.run(self._owner(container_id).propose_swap(proposal))

    def close(self) -> None:
        """Let go of logs and volumes; what was published stays. Idempotent."""
        self._owners = None
        self._runner.run(self._stack.aclose())

    def _owner(self, container_id: int) -> SwapOwner:
        return self._runner.run(self._owner_of(ContainerId(container_id)))

    async def _owner_of(self, container_id: ContainerId) -> SwapOwner:
        if self._owners is None:
            store = await self._stack.enter_async_context(self._open_store())
            self._owners = self._open_owners(store, self._runner.executor)
            self._stack.push_async_callback(self._owners.close)
        return await self._owners.owner_of(container_id)

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
