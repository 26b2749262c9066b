"""Cuts a stream of received pieces into frames.

Invariants:

- At most one incomplete frame is kept, so memory is bounded by `frame_bytes_max` and the last piece.
- After a ProtocolError the stream is out of step for good: feeding on raises it again.
"""

from segmentstore.codec.wire_protocol.command import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    Command,
)
from segmentstore.codec.wire_protocol.protocol_error import ProtocolError
from segmentstore.codec.wire_protocol.registry import decode_command
from segmentstore.contracts.identifiers import BufferView


def check_frame_length(command_type: int, length: int, *, frame_bytes_max: int) -> None:
    """Raises ProtocolError for a payload length that no frame may have."""
    if not 0 <= length <= frame_bytes_max - FRAME_HEADER_BYTES:
        raise ProtocolError(f"frame has an impossible length type={command_type} length={length}")


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
