"""A command: a frozen dataclass whose annotated fields, in order, are its payload.

- The fields are the format: nothing else describes it, and reading and writing walk the same list.
- A field with a default may be missing at the end of a frame: older or terser peers leave it out. It is always
  written.
- Bytes behind the last field are ignored: newer peers append fields.

Beside the base class stand the commands that belong to no group: those that open a connection and keep it alive, and
the marks that occur only inside append blocks.
"""

import struct
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar, Final, Self, TypeAlias, cast, get_type_hints

from segmentstore.codec.wire_protocol.fields import Field, FieldCursor, Int32, ProtocolError, Rest
from segmentstore.contracts.identifiers import BufferView

FRAME_HEADER_BYTES: Final = 8

FRAME_BYTES_MAX: Final = 0x00FFFFFF
"""The longest frame, its header included."""

PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX - FRAME_HEADER_BYTES

FRAME_HEADER: Final = struct.Struct(">ii")
"""Type, then the length of the payload."""

WIRE_VERSION: Final = 16
"""What we speak: the Java clients of 0.13 speak 16, the Rust and Python clients of 0.3 speak 15."""

OLDEST_WIRE_VERSION: Final = 5


def frame(command_type: int, *parts: bytes) -> bytes:
    """A frame of payload parts. Raises ProtocolError if they are too long together."""
    length = sum(map(len, parts))
    if length > PAYLOAD_BYTES_MAX:
        raise ProtocolError(f"frame is too long type={command_type} length={length}")
    return b"".join((FRAME_HEADER.pack(command_type, length), *parts))


@dataclass(frozen=True, slots=True)
class Command:
    """The base class of all commands."""

    type: ClassVar[int]

    def encode(self) -> bytes:
        """The whole frame. Raises ProtocolError for a value that its field cannot hold."""
        try:
            parts = [
                field.write(getattr(self, name)) for name, field, _ in _field_layout(type(self))
            ]
        except struct.error as error:
            raise ProtocolError(f"number does not fit its field: {error} {self!r:.200}") from error
        return frame(self.type, *parts)

    @classmethod
    def decode(cls, payload: BufferView) -> Self:
        """The command of a frame without its header. Raises ProtocolError."""
        cursor = FieldCursor(bytes(payload))
        values: list[object] = []
        for _, field, optional in _field_layout(cls):
            if optional and not cursor.remaining:
                break
            values.append(field.read(cursor))
        # The values are of the annotated types by construction; no signature can say so for every subclass.
        return cast(Callable[..., Self], cls)(*values)


_FieldLayout: TypeAlias = tuple[tuple[str, Field[object], bool], ...]
"""Name, form and optionality of every field."""

_FIELD_LAYOUTS: Final[dict[type[Command], _FieldLayout]] = {}


def _field_layout(command: type[Command]) -> "_FieldLayout":
    """The fields in wire order, worked out once for each class."""
    layout = _FIELD_LAYOUTS.get(command)
    if layout is None:
        hints = get_type_hints(command, include_extras=True)
        found: list[tuple[str, Field[object], bool]] = []
        for field in fields(command):
            (form,) = hints[field.name].__metadata__
            assert isinstance(form, Field), f"field has no form {command.__name__}.{field.name}"
            found.append((field.name, form, field.default is not MISSING))
        layout = _FIELD_LAYOUTS[command] = tuple(found)
    return layout


@dataclass(frozen=True, slots=True)
class Hello(Command):
    """The first frame in both directions: the newest and the oldest version that the sender speaks."""

    type: ClassVar[int] = -127
    high_version: Int32
    low_version: Int32

    def speaks(self, *, high_version: int, low_version: int) -> bool:
        """Whether the sender shares a version with a peer that speaks low_version to high_version."""
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
