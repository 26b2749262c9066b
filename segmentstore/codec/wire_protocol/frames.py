"""From received bytes to frames, and from frames to commands.

Invariants:

- At most one incomplete frame is kept, so memory is bounded by `frame_bytes_max` and the last piece.
- After a ProtocolError the stream is out of step for good: feeding on raises it again.
- Every type number belongs to one command: COMMANDS is made of all that the modules of this package define.
"""

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from segmentstore.codec.wire_protocol import (
    administration,
    appends,
    command,
    reads,
    refusals,
    segments,
    store_calls,
    tables,
)
from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Command,
)
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.contracts.identifiers import BufferView

_COMMAND_MODULES: Final[tuple[ModuleType, ...]] = (
    command,
    appends,
    reads,
    segments,
    tables,
    administration,
    refusals,
    store_calls,
)


class FrameSplitter:
    """feed() takes what a socket gave and returns what is complete."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, piece: BufferView) -> list[tuple[int, bytes]]:
        """Type and payload of each frame that is complete now. Raises ProtocolError at an impossible length."""
        buffer = self._buffer
        buffer += piece
        frames: list[tuple[int, bytes]] = []
        start = 0
        with memoryview(buffer) as view:
            while len(view) - start >= FRAME_HEADER_BYTES:
                command_type, length = FRAME_HEADER.unpack_from(view, start)
                check_frame_length(command_type, length, frame_bytes_max=self._frame_bytes_max)
                end = start + FRAME_HEADER_BYTES + length
                if end > len(view):
                    break
                frames.append((command_type, bytes(view[start + FRAME_HEADER_BYTES : end])))
                start = end
        del buffer[:start]
        return frames

    def feed_commands(self, piece: BufferView) -> list[Command]:
        """As feed(), decoded. Raises ProtocolError."""
        return [decode_command(command_type, payload) for command_type, payload in self.feed(piece)]


def check_frame_length(command_type: int, length: int, *, frame_bytes_max: int) -> None:
    """Raises ProtocolError for a payload length that no frame may have."""
    if not 0 <= length <= frame_bytes_max - FRAME_HEADER_BYTES:
        raise ProtocolError(f"frame has an impossible length type={command_type} length={length}")


def _commands() -> dict[int, type[Command]]:
    found: dict[int, type[Command]] = {}
    for module in _COMMAND_MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Command) and value is not Command:
                assert value.type not in found, f"two commands of one type {value.__name__}"
                found[value.type] = value
    return found


COMMANDS: Final[Mapping[int, type[Command]]] = MappingProxyType(_commands())
"""Every command by its type number."""


def decode_command(command_type: int, payload: BufferView) -> Command:
    """The command of a frame. Raises ProtocolError for an unknown type or a payload that does not fit it."""
    command_class = COMMANDS.get(command_type)
    if command_class is None:
        raise ProtocolError(f"unknown command type={command_type} length={len(payload)}")
    return command_class.decode(payload)
