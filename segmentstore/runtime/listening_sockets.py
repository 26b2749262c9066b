"""Closing a listening socket without a connection that is reset.

The kernel takes connections by itself, and the process accepts them later. A connection that comes about between the
last accept() and close() is reset, although its client may have sent a request by then, and cannot know what became of
it. refuse_handshakes() ends the first of the two: no connection begins any more, and those that have begun can all be
accepted. A client whose first packet is dropped sends it again after a second, and is refused then.
"""

import ctypes
import socket
import struct
import sys
from typing import Final

_SO_ATTACH_FILTER: Final = 26
_LOAD_BYTE, _JUMP_IF_SET, _RETURN = 0x30, 0x45, 0x06
_FLAGS_OF_TCP_HEADER, _SYN = 13, 0x02
_DROP_SYN: Final = (
    (_LOAD_BYTE, 0, 0, _FLAGS_OF_TCP_HEADER),
    (_JUMP_IF_SET, 0, 1, _SYN),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, 0xFFFFFFFF),
)
"""A classic packet filter. The last packet of a handshake, and what follows it, pass."""


def refuse_handshakes(listening: socket.socket) -> bool:
    """No connection begins on this socket any more, also where another process has it; False where it cannot be had."""
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN)
    )
    try:
        listening.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("HL", len(_DROP_SYN), ctypes.addressof(program)),
        )
    except OSError:
        return False
    return True
