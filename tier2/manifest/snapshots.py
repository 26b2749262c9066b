"""Snapshots: versions of the manifest that are kept for backups, and what of the store they need.

    snapshot record   u8 version (1: proved, 2: not proved), i64 when it was made (Unix ms), u64 epoch and u64 serial of
                      an identity that was given out at that moment, then the bytes of the manifest that is kept
                      (tier2/manifest/manifest.py)

All numbers are big-endian. In keys and in the verb `backup pin` a snapshot is a pin.

- An object is needed by a snapshot if the manifest that it keeps may name it: it existed when the snapshot was made,
  and it was not garbage yet. Both are known without reading the kept manifest: identities are given out in growing
  order, and a garbage record says which version dropped the object. Thus what is written and dropped behind a snapshot
  is freed as if there were none.
- A snapshot that is made beside those of other containers counts when it is known that they are of one moment: its
  maker says so of each, once all are there. Until then it is not proved, and no backup is restored from it. Those that
  versions before this mark made count as proved.
- A snapshot is itself a record below the manifest: it is made and dropped by the owner alone, it survives restarts, and
  a reader without the owner finds it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.storage import SnapshotInfo
from tier2.container_objects import ObjectIdentity
from tier2.manifest.manifest import Manifest, decode_manifest
from tier2.manifest.view import ManifestView
from tier2.sst.keyspace import SNAPSHOT, decode_garbage, range_of, snapshot_name_of

_VERSION_PROVED = 1
"""Also what versions before the mark have made: a store that has gone back to one of these reads what is proved."""
_VERSION_UNPROVED = 2
_HEAD = struct.Struct(">BqQQ")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A manifest version that is kept, under a name."""

    name: str
    created_ms: int
    """Unix time."""
    epoch: int
    serial: int
    """Objects of an earlier epoch, or of this one with at most this serial, existed when the snapshot was made."""
    manifest: Manifest
    is_proved: bool = field(default=True, compare=False)
    """That it was proved meanwhile makes no other snapshot of it."""

    def needs(self, identity: ObjectIdentity, dropped_by: int) -> bool:
        """Whether the manifest of the snapshot may name an object that became garbage in version `dropped_by`."""
        existed = identity.epoch < self.epoch or (
            identity.epoch == self.epoch and identity.serial <= self.serial
        )
        return existed and dropped_by > self.manifest.version

    def described(self) -> SnapshotInfo:
        """For a caller that only lists them."""
        return SnapshotInfo(
            self.name,
            self.created_ms,
            self.manifest.epoch,
            self.manifest.version,
            is_proved=self.is_proved,
        )

    def encode(self) -> bytes:
        """The value of the snapshot's record."""
        version = _VERSION_PROVED if self.is_proved else _VERSION_UNPROVED
        head = _HEAD.pack(version, self.created_ms, self.epoch, self.serial)
        return head + self.manifest.encode()

    @staticmethod
    def decode(name: str, value: bytes) -> "Snapshot":
        """Raises CorruptedDataError."""
        try:
            version, created_ms, epoch, serial = _HEAD.unpack_from(value)
        except struct.error as error:
            raise CorruptedDataError(f"snapshot record is cut off name={name!r}") from error
        if version not in (_VERSION_PROVED, _VERSION_UNPROVED):
            raise CorruptedDataError(
                f"snapshot record has an unknown version {version} name={name!r}"
            )
        return Snapshot(
            name,
            created_ms,
            epoch,
            serial,
            decode_manifest(value[_HEAD.size :]),
            is_proved=version == _VERSION_PROVED,
        )


async def read_snapshots(view: ManifestView) -> list[Snapshot]:
    """All snapshots below a manifest, by name. Raises CorruptedDataError."""
    start, end = range_of(SNAPSHOT)
    return [
        Snapshot.decode(snapshot_name_of(key), value)
        for key, value in await view.scan_all(start, end)
        if value is not None
    ]


def is_in_a_snapshot(
    snapshots: Sequence[Snapshot], identity: ObjectIdentity, garbage_record: bytes
) -> bool:
    """Whether any snapshot needs an object that waits as garbage."""
    if not snapshots:
        return False
    dropped_by = decode_garbage(garbage_record)
    return any(snapshot.needs(identity, dropped_by) for snapshot in snapshots)
