"""The objects of one container in the store: their keys and identities, puts, reads and deletes, and counters.

- An identity (epoch, claim, serial) is given out once, ever: epochs grow, the claim is a random number of the process
  that claimed the epoch, serials count up within it. A second attempt at anything takes another serial.
- Identities sort by epoch first, in bytes, as values and as keys of the store alike.
- No key is a path prefix of another: `root` and the leaves below `runs/` and `chunks/` are never directories.
- A put is repeated under the same key only with the same bytes. It is an immutable object, so an attempt that
  lands late changes nothing.

An identity has 20 bytes: u64 epoch, u32 claim, u64 serial, all big-endian. The keys, some of whose words are older than
those of the code:

    containers/0003/root                                                the manifest
    containers/0003/runs/0000000000000005-9f3a01c2-0000000000000011     a part of an SST
    containers/0003/chunks/0000000000000005-9f3a01c2-0000000000000010   one chunk, or many small ones
    containers/0003/probe-<random>                                      a race of conditional puts, of the first claim
    containers/0003/lost-root-<random>                                  a damaged manifest that an empty one replaced
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import TypeAlias

from segmentstore.contracts.errors import (
    CorruptedDataError,
    StorageError,
)
from segmentstore.contracts.identifiers import BufferView, ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import StorageStatistics

CONTAINERS_PREFIX = "containers/"
_IDENTITY_LAYOUT = struct.Struct(">QIQ")
IDENTITY_BYTES = _IDENTITY_LAYOUT.size
_IDENTITY_TEXT = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{16})")
_CONTAINER_KEY = re.compile(r"containers/([0-9]{4,})/.*")


class ObjectKind(IntEnum):
    """What an immutable object holds. Persistent (in garbage records): never renumber."""

    SST = 1
    CHUNKS = 2


_KIND_FOLDERS = {ObjectKind.SST: "runs", ObjectKind.CHUNKS: "chunks"}


@dataclass(frozen=True, slots=True, order=True)
class ObjectIdentity:
    """Which immutable object of a container, for ever."""

    epoch: int
    claim: int
    serial: int

    def encode(self) -> bytes:
        return _IDENTITY_LAYOUT.pack(self.epoch, self.claim, self.serial)

    @staticmethod
    def decode(content: bytes) -> "ObjectIdentity":
        if len(content) != IDENTITY_BYTES:
            raise CorruptedDataError(f"object identity has a wrong size bytes={len(content)}")
        return ObjectIdentity(*_IDENTITY_LAYOUT.unpack(content))

    def __str__(self) -> str:
        return f"{self.epoch:016x}-{self.claim:08x}-{self.serial:016x}"


ObjectReference: TypeAlias = tuple[ObjectKind, ObjectIdentity]


class ObjectNames:
    """Keys of one container's objects."""

    def __init__(self, container_id: ContainerId) -> None:
        self.prefix = f"{CONTAINERS_PREFIX}{container_id:04d}/"
        self.manifest = f"{self.prefix}root"
        self.probes = f"{self.prefix}probe-"

    def folder(self, kind: ObjectKind) -> str:
        return f"{self.prefix}{_KIND_FOLDERS[kind]}/"

    def key(self, kind: ObjectKind, identity: ObjectIdentity) -> str:
        return f"{self.folder(kind)}{identity}"

    def identity(self, kind: ObjectKind, key: str) -> ObjectIdentity | None:
        """The identity that a listed key spells; None for a stranger."""
        folder = self.folder(kind)
        match = _IDENTITY_TEXT.fullmatch(key[len(folder) :]) if key.startswith(folder) else None
        if match is None:
            return None
        return ObjectIdentity(*(int(part, 16) for part in match.groups()))

    def is_immutable(self, key: str) -> bool:
        """Whether a listed key is that of an SST or of chunks."""
        return any(self.identity(kind, key) is not None for kind in ObjectKind)

    def probe(self, nonce: bytes) -> str:
        return f"{self.probes}{nonce.hex()}"

    def lost_root(self, nonce: bytes) -> str:
        """Where a damaged manifest is kept when its container begins anew."""
        return f"{self.prefix}lost-root-{nonce.hex()}"


def container_of_key(key: str) -> ContainerId | None:
    """The container that a listed key belongs to; None for a stranger."""
    match = _CONTAINER_KEY.fullmatch(key)
    return None if match is None else ContainerId(int(match.group(1)))


class IdentitySource:
    """Gives out the identities of one claim: each once, in growing order, serials from 1 on."""

    def __init__(self, *, epoch: int, claim: int) -> None:
        self._epoch = epoch
        self._claim = claim
        self._serial = 0

    def take(self) -> ObjectIdentity:
        self._serial += 1
        return ObjectIdentity(self._epoch, self._claim, self._serial)


@dataclass(slots=True)
class StorageCounters:
    """What one container's Tier 2 counted since the process started: written all over tier2, read by statistics().

    Counters only ever grow. For their units see StorageStatistics.
    """

    puts: int = 0
    gets: int = 0
    put_bytes: int = 0
    get_bytes: int = 0
    stored_bytes_before_compression: int = 0
    stored_bytes_after_compression: int = 0
    checksum_failures: int = 0
    joined_chunks: int = 0
    joined_bytes: int = 0
    scrubbed_chunks: int = 0
    scrubbed_bytes: int = 0
    scrub_damages: int = 0
    scrub_repairs: int = 0
    scrub_passes: int = 0
    last_scrubbed_ms: int = 0

    def snapshot(
        self, *, root_version: int, run_count: int, garbage_objects: int
    ) -> StorageStatistics:
        return StorageStatistics(
            root_version=root_version,
            run_count=run_count,
            garbage_objects=garbage_objects,
            **asdict(self),
        )


class ContainerObjects:
    """Writes the immutable objects of one container by kind and identity, reads them, and counts both."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        names: ObjectNames,
        counters: StorageCounters,
        put_attempts_max: int,
    ) -> None:
        self._store = object_store
        self._names = names
        self._counters = counters
        self._put_attempts_max = put_attempts_max

    @property
    def store(self) -> ObjectStore:
        """Where they are, beside those of other containers."""
        return self._store

    async def put(
        self, kind: ObjectKind, identity: ObjectIdentity, buffers: Sequence[BufferView]
    ) -> None:
        """Raises StorageError after the last attempt, StorageFullError at once."""
        key = self._names.key(kind, identity)
        for attempt in range(1, self._put_attempts_max + 1):
            self._counters.puts += 1
            try:
                await self._store.put(key, buffers)
            except StorageError:
                if attempt == self._put_attempts_max:
                    raise
            else:
                break
        self._counters.put_bytes += sum(map(len, buffers))

    async def get_range(
        self, kind: ObjectKind, identity: ObjectIdentity, start: int, length: int
    ) -> bytes:
        """The bytes [start, start + length) or fewer. Raises ObjectNotFoundError, StorageError."""
        self._counters.gets += 1
        content = await self._store.get_range(self._names.key(kind, identity), start, length)
        self._counters.get_bytes += len(content)
        return content

    async def size(self, kind: ObjectKind, identity: ObjectIdentity) -> int:
        """Raises ObjectNotFoundError, StorageError."""
        return await self._store.size(self._names.key(kind, identity))

    async def delete(self, kind: ObjectKind, identity: ObjectIdentity) -> None:
        await self._store.delete(self._names.key(kind, identity))
