"""An object store in another building: one shared truth, many mounted views, and every way a request can go wrong.

A request has three moments: it is sent, it takes effect, it is answered. The effect is atomic and belongs to the
world, not to the sender: it comes although the sender gave up, died or was fenced in the meantime (H80).

- error before: no effect, an error.
- error after: the effect, then an error.
- late: an error now, the effect at any time up to `late_seconds_max` later, behind later requests of the same key.
- own retry: a conditional put succeeds, the client library sends it again and reports the conflict with itself.
- stale list: each key shows as it was up to `stale_list_seconds` ago.
- down, cut off, full, slow.

Keys mean one content, as in any object store; a `strict` one also fails the run when a caller breaks H2 (other bytes
under one key, a key used again after its delete) or sends a key that lies above or below another.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from tests.sim.loop import SimLoop
from tests.sim.node import Node, SimulationError
from tier2.object_stores.object_key import check_key, check_prefix, check_range

Result = TypeVar("Result")

_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """Probabilities per request, and times in seconds."""

    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.0
    late_seconds_max: float = 7200.0
    own_retry: float = 0.0
    stale_list_seconds: float = 0.0
    latency_seconds_mean: float = 0.005
    slow_request: float = 0.0
    """Such a request takes a hundred times as long."""
    bytes_per_second: float = math.inf


NO_FAULTS = StoreFaults()


@dataclass(slots=True)
class _Listed:
    """What listings know of a key."""

    size: int
    appeared_at: float
    vanished_at: float = math.inf


class SimulatedObjectStore:
    """The store itself. `faults`, `down` and `capacity_bytes` may be changed at any time."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        faults: StoreFaults = NO_FAULTS,
        *,
        strict: bool = True,
    ) -> None:
        self.loop = loop
        self.strict = strict
        self.random = random
        self.faults = faults
        self.down = False
        self.capacity_bytes: float = math.inf
        self.used_bytes = 0
        self.effects = 0
        self._objects: dict[str, VersionedObject] = {}
        self._listed: dict[str, _Listed] = {}
        self._first_content: dict[str, tuple[bytes, str]] = {}
        self._deleted_keys: dict[str, str] = {}
        self._tags = 0

    def mount(self, node: Node | None = None) -> "MountedObjectStore":
        """The view of one process."""
        return MountedObjectStore(self, node)

    def keys(self) -> list[str]:
        """What exists at this moment, for checkers."""
        return sorted(self._objects)

    def peek(self, key: str) -> bytes | None:
        """The content at this moment, for checkers."""
        found = self._objects.get(key)
        return found.content if found else None

    def settle(self) -> None:
        """Faults off: from now on every new request is answered truly and soon."""
        self.faults = NO_FAULTS
        self.down = False
        self.capacity_bytes = math.inf

    # --- effects, each atomic ---------------------------------------------------------------------

    def write_once(self, key: str, content: bytes) -> None:
        found = self._objects.get(key)
        if found is None:
            self.write(key, content)
        elif found.content != content:
            raise ObjectExistsError(f"the key holds other bytes key={key}")

    def write(self, key: str, content: bytes) -> str:
        old = self._objects.get(key)
        if old is None:
            self._refuse_path_prefix(key)
        growth = len(content) - (len(old.content) if old else 0)
        if self.used_bytes + growth > self.capacity_bytes:
            raise StorageFullError(f"object store is full used_bytes={self.used_bytes}")
        self._tags += 1
        tag = f"tag{self._tags}"
        self.used_bytes += growth
        self._objects[key] = VersionedObject(content, tag)
        if key not in self._listed or self._listed[key].vanished_at < math.inf:
            self._listed[key] = _Listed(len(content), self.loop.time())
        self._listed[key].size = len(content)
        return tag

    def write_if_absent(self, key: str, content: bytes) -> str:
        if key in self._objects:
            raise ObjectExistsError(f"object exists key={key}")
        return self.write(key, content)

    def write_if_match(self, key: str, content: bytes, tag: str) -> str:
        found = self._objects.get(key)
        if found is None or found.tag != tag:
            now = found.tag if found else None
            raise ObjectChangedError(f"object has changed key={key} expected={tag} found={now}")
        return self.write(key, content)

    def read(self, key: str) -> VersionedObject:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(f"object does not exist key={key}")
        return found

    def erase(self, key: str) -> None:
        found = self._objects.pop(key, None)
        if found is not None:
            self.used_bytes -= len(found.content)
            self._listed[key].vanished_at = self.loop.time()

    def names(self, prefix: str) -> list[ObjectInfo]:
        now = self.loop.time()
        listing = []
        for key in sorted(key for key in self._listed if key.startswith(prefix)):
            entry = self._listed[key]
            as_of = now
            if self.faults.stale_list_seconds > 0:
                as_of -= self.random.random() * self.faults.stale_list_seconds
            if entry.appeared_at <= as_of < entry.vanished_at:
                listing.append(ObjectInfo(key, entry.size))
        return listing

    # --- the rules for callers --------------------------------------------------------------------

    def hold_to_one_content(self, key: str, content: bytes, sender: str) -> None:
        """H2, judged when the request is sent: late effects of honest requests are the store's own doing."""
        if not self.strict:
            return
        digest = hashlib.sha256(content).digest()
        known, first_sender = self._first_content.setdefault(key, (digest, sender))
        if known != digest:
            self.loop.fail(SimulationError(f"a key was given other bytes (H2) key={key}"))
        # A zombie that repeats its own put cannot know that its successor has swept the orphan away.
        if key in self._deleted_keys and (
            sender != first_sender or self._deleted_keys[key] == sender
        ):
            self.loop.fail(SimulationError(f"a key was used again after its delete (H2) key={key}"))

    def _refuse_path_prefix(self, key: str) -> None:
        parts = key.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        others = [other for other in above if other in self._objects]
        others += [other for other in self._objects if other.startswith(key + "/")]
        if others:
            error = InvalidRequestError(f"key lies above or below another {key=!s} {others=!s}")
            if self.strict:
                self.loop.fail(SimulationError(str(error)))
            raise error

    def note_delete(self, key: str, sender: str) -> None:
        self._deleted_keys[key] = sender


class MountedObjectStore:
    """The ObjectStore door as one process holds it."""

    def __init__(self, store: SimulatedObjectStore, node: Node | None) -> None:
        self.store = store
        self.name = node.name if node else "-"
        self.reachable = True
        """False: a partition between this process and the store."""

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        store = self.store
        body = b"".join(content)
        check_key(key)
        store.hold_to_one_content(key, body, self.name)
        await self._request("put", key, len(body), lambda: store.write_once(key, body))

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        store = self.store
        body = bytes(content)
        check_key(key)
        return await self._request(
            "put_if_absent", key, len(body), lambda: store.write_if_absent(key, body), retried=True
        )

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        store = self.store
        body = bytes(content)
        check_key(key)
        return await self._request(
            "put_if_match",
            key,
            len(body),
            lambda: store.write_if_match(key, body, tag),
            retried=True,
        )

    async def get(self, key: str) -> VersionedObject:
        check_key(key)
        return await self._request("get", key, 0, lambda: self.store.read(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        return await self._request(
            "get_range", key, length, lambda: self.store.read(key).content[start : start + length]
        )

    async def size(self, key: str) -> int:
        check_key(key)
        return await self._request("size", key, 0, lambda: len(self.store.read(key).content))

    async def delete(self, key: str) -> None:
        check_key(key)
        self.store.note_delete(key, self.name)
        await self._request("delete", key, 0, lambda: self.store.erase(key))

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        for entry in await self._request("list", prefix, 0, lambda: self.store.names(prefix)):
            yield entry

    async def close(self) -> None:
        """Requests under way go on without anybody to answer to."""

    async def _request(
        self,
        verb: str,
        key: str,
        size: int,
        effect: Callable[[], Result],
        *,
        retried: bool = False,
    ) -> Result:
        request = _Request(self, verb, key, effect, retried=retried)
        return await request.send(size)


class _Request(Generic[Result]):
    """One request on its way: decides by the seed when it happens and what its sender hears."""

    def __init__(
        self,
        view: MountedObjectStore,
        verb: str,
        key: str,
        effect: Callable[[], Result],
        *,
        retried: bool,
    ) -> None:
        self._store = view.store
        self._loop = view.store.loop
        self._view = view
        self._verb = verb
        self._key = key
        self._effect = effect
        self._retried = retried
        self._answer: asyncio.Future[Result] = self._loop.create_future()

    async def send(self, size: int) -> Result:
        store = self._store
        random, faults = store.random, store.faults
        seconds = random.expovariate(1 / faults.latency_seconds_mean)
        if random.random() < faults.slow_request:
            seconds *= 100
        seconds += size / faults.bytes_per_second
        answer_at = seconds * (1 + random.random())
        if store.down or not self._view.reachable:
            seconds = answer_at = min(seconds * 100, _TIMEOUT_SECONDS)
            self._later(seconds, self._fail, "no answer from the object store")
            return await self._answer
        fate = random.random()
        if fate < faults.error_before:
            self._later(seconds, self._fail, "request failed")
        elif fate < faults.error_before + faults.error_after:
            self._later(seconds, self._happen, None)
            self._later(answer_at, self._fail, "the connection was reset")
        elif fate < faults.error_before + faults.error_after + faults.late:
            self._later(seconds, self._fail, "the request timed out")
            late = seconds * (faults.late_seconds_max / seconds) ** random.random()
            self._later(max(seconds, late), self._happen, None)
        else:
            own_retry = self._retried and random.random() < faults.own_retry
            self._later(seconds, self._happen, answer_at - seconds, own_retry)
        return await self._answer

    def _later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        # An empty context: the effect belongs to the world and survives the sender.
        self._loop.call_later(seconds, callback, *args, context=Context())

    def _fail(self, why: str) -> None:
        self._reply(StorageError(f"{why} verb={self._verb} key={self._key}"))

    def _happen(self, answer_in: float | None, own_retry: bool = False) -> None:
        store = self._store
        store.effects += 1
        outcome: Result | Exception
        try:
            outcome = self._effect()
        except SegmentStoreError as error:
            outcome = error
        else:
            if own_retry:
                outcome = self._conflict_with_itself()
        word = type(outcome).__name__ if isinstance(outcome, Exception) else "ok"
        self._loop.trace("store", self._view.name, self._verb, self._key, word)
        if answer_in is not None:
            self._later(answer_in, self._reply, outcome)

    def _conflict_with_itself(self) -> StorageError:
        if self._verb == "put_if_absent":
            return ObjectExistsError(f"object exists key={self._key}")
        return ObjectChangedError(f"object has changed key={self._key}")

    def _reply(self, outcome: Result | Exception) -> None:
        if self._answer.done():
            return
        if isinstance(outcome, Exception):
            self._answer.set_exception(outcome)
        else:
            self._answer.set_result(outcome)
