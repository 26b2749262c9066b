"""Names of a container's objects in the store.

- An identity (epoch, claim, serial) is given out once, ever: epochs grow, the claim is a random number of the process
  that claimed the epoch, serials count up within it. A second attempt at anything takes another serial (H2).
- No key is a path prefix of another: `root` and the leaves below `runs/` and `chunks/` are never directories.
- Identities sort by epoch first, in bytes, as values and as keys of the store alike.

    containers/0003/root
    containers/0003/runs/0000000000000005-9f3a01c2-0000000000000011
    containers/0003/chunks/0000000000000005-9f3a01c2-0000000000000010
    containers/0003/probe-<random>
    containers/0003/lost-root-<random>
"""

import re
import struct
from dataclasses import dataclass
from enum import IntEnum

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import ContainerId

CONTAINERS_PREFIX = "containers/"
_IDENTITY_LAYOUT = struct.Struct(">QIQ")
IDENTITY_BYTES = _IDENTITY_LAYOUT.size
_LEAF = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{16})")
_CONTAINER_KEY = re.compile(r"containers/([0-9]{4,})/.*")


class ObjectKind(IntEnum):
    """What an immutable object holds. Persistent (in garbage records): never renumber."""

    RUN = 1
    CHUNKS = 2


_FOLDERS = {ObjectKind.RUN: "runs", ObjectKind.CHUNKS: "chunks"}


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


class ObjectNames:
    """Keys of one container's objects."""

    def __init__(self, container_id: ContainerId) -> None:
        self.prefix = f"{CONTAINERS_PREFIX}{container_id:04d}/"
        self.root = f"{self.prefix}root"

    def folder(self, kind: ObjectKind) -> str:
        return f"{self.prefix}{_FOLDERS[kind]}/"

    def key(self, kind: ObjectKind, identity: ObjectIdentity) -> str:
        return f"{self.folder(kind)}{identity}"

    def identity(self, kind: ObjectKind, key: str) -> ObjectIdentity | None:
        """The identity that a listed key spells; None for a stranger."""
        folder = self.folder(kind)
        match = _LEAF.fullmatch(key[len(folder) :]) if key.startswith(folder) else None
        if match is None:
            return None
        return ObjectIdentity(*(int(part, 16) for part in match.groups()))

    def is_immutable(self, key: str) -> bool:
        """Whether a listed key is that of a run or of chunks."""
        return any(self.identity(kind, key) is not None for kind in ObjectKind)

    def probe(self, nonce: bytes) -> str:
        return f"{self.prefix}probe-{nonce.hex()}"

    def lost_root(self, nonce: bytes) -> str:
        """Where a damaged root is kept whose container began anew."""
        return f"{self.prefix}lost-root-{nonce.hex()}"


def container_of_key(key: str) -> ContainerId | None:
    """The container that a listed key belongs to; None for a stranger."""
    match = _CONTAINER_KEY.fullmatch(key)
    return None if match is None else ContainerId(int(match.group(1)))
