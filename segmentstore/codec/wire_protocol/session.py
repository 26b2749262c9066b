"""What opens a connection and keeps it alive, and the marks that occur only inside append blocks."""

from dataclasses import dataclass
from typing import ClassVar, Final

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import Int32, Rest

WIRE_VERSION: Final = 16
"""What we speak: the Java clients of 0.13 speak 16, the Rust and Python clients of 0.3 speak 15."""
OLDEST_WIRE_VERSION: Final = 5


@dataclass(frozen=True, slots=True)
class Hello(Command):
    """The first frame in both directions: the newest and the oldest version that the sender speaks."""

    type: ClassVar[int] = -127
    high_version: Int32
    low_version: Int32

    def speaks(self, *, high_version: int, low_version: int) -> bool:
        """Whether the sender shares a version with somebody who speaks low_version to high_version."""
        return max(self.low_version, low_version) <= min(self.high_version, high_version)


@dataclass(frozen=True, slots=True)
class KeepAlive(Command):
    """Nothing; the receiver sends it back."""

    type: ClassVar[int] = 100


@dataclass(frozen=True, slots=True)
class Padding(Command):
    """Only at the end of an append block: bytes without meaning."""

    type: ClassVar[int] = -1
    zeros: Rest


@dataclass(frozen=True, slots=True)
class PartialEvent(Command):
    """Only at the end of an append block: the first part of an event that its block end completes."""

    type: ClassVar[int] = -2
    data: Rest


@dataclass(frozen=True, slots=True)
class Event(Command):
    """An event as it stands in a segment: the frame itself, header and all."""

    type: ClassVar[int] = 0
    data: Rest
