"""Pins: root versions of one container that are kept for backups (H6).

    pin record   u8 version (1), i64 when it was made (Unix ms), u64 epoch and u64 serial of an identity that was given
                 out at that moment, then the bytes of the root that is kept (tier2/storage/root.py)

An object is needed by a pin if the pinned root may name it: it existed when the pin was made, and it was not garbage
yet. Both are known without reading the pinned root: identities are given out in growing order, and a garbage record
says which version dropped the object. Thus what is written and dropped behind a pin is freed as if there were none.

A pin is itself a record below the root: it is made and dropped by the owner alone, it survives restarts, and whoever
reads without the owner finds it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.storage import PinnedRoot
from tier2.storage.object_names import ObjectIdentity
from tier2.storage.root import Root, decode_root
from tier2.storage.run_keys import PIN, pin_name_of, range_of
from tier2.storage.run_values import decode_garbage
from tier2.storage.run_view import RunView

_VERSION = 1
_HEAD = struct.Struct(">BqQQ")


@dataclass(frozen=True, slots=True)
class Pin:
    """A root version that is kept, under a name."""

    name: str
    created_ms: int
    """Unix time."""
    epoch: int
    serial: int
    """Objects of an earlier epoch, or of this one with at most this serial, existed when the pin was made."""
    root: Root

    def needs(self, identity: ObjectIdentity, dropped_by: int) -> bool:
        """Whether the pinned root may name an object that became garbage in version `dropped_by`."""
        existed = identity.epoch < self.epoch or (
            identity.epoch == self.epoch and identity.serial <= self.serial
        )
        return existed and dropped_by > self.root.version

    def described(self) -> PinnedRoot:
        """For whoever only lists them."""
        return PinnedRoot(self.name, self.created_ms, self.root.epoch, self.root.version)

    def encode(self) -> bytes:
        """The value of the pin's record."""
        head = _HEAD.pack(_VERSION, self.created_ms, self.epoch, self.serial)
        return head + self.root.encode()

    @staticmethod
    def decode(name: str, value: bytes) -> "Pin":
        """Raises CorruptedDataError."""
        try:
            version, created_ms, epoch, serial = _HEAD.unpack_from(value)
        except struct.error as error:
            raise CorruptedDataError(f"pin record is cut off name={name!r}") from error
        if version != _VERSION:
            raise CorruptedDataError(f"pin record has an unknown version {version} name={name!r}")
        return Pin(name, created_ms, epoch, serial, decode_root(value[_HEAD.size :]))


async def read_pins(view: RunView) -> list[Pin]:
    """All pins below a root, by name. Raises CorruptedDataError."""
    start, end = range_of(PIN)
    return [
        Pin.decode(pin_name_of(key), value)
        for key, value in await view.scan_all(start, end)
        if value is not None
    ]


def is_pinned(pins: Sequence[Pin], identity: ObjectIdentity, garbage_record: bytes) -> bool:
    """Whether any pin needs an object that waits as garbage."""
    if not pins:
        return False
    dropped_by = decode_garbage(garbage_record)
    return any(pin.needs(identity, dropped_by) for pin in pins)
