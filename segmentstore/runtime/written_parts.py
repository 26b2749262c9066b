"""Parts that are written to a transport at once, whatever the version of Python makes of them.

asyncio's own transports join them in Python 3.11. From 3.12 on they keep each part by itself until it is sent:

- Behind `writelines()` 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never call `pause_writing()` (CVE-2024-12254): a client that
  takes nothing would look like one that takes everything, and what is kept for it would have no bound. Setting the
  limits of the buffer to what they are makes the transport look at it.
- A part of eight bytes is kept in two hundred, and `get_write_buffer_size()` walks over all of them. So small parts are
  joined.
- `writelines()` of a transport that was aborted, or whose client has gone, watches its closed socket again: the next
  socket of that number would hear nothing. `write()` does not.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

_FORGETS_TO_PAUSE: Final = any(
    first <= sys.version_info < mended
    for first, mended in (((3, 12), (3, 12, 9)), ((3, 13), (3, 13, 2)))
)
_KEEPS_PARTS: Final = sys.version_info >= (3, 12)
_PART_BYTES_MIN: Final = 4096
"""On average; a copy of so many bytes costs less than a part of its own."""


def write_parts(
    transport: asyncio.WriteTransport, parts: Sequence[bytes | bytearray | memoryview]
) -> None:
    """One call of the system for all of them, if the socket takes them. The protocol is paused as by `write()`."""
    is_small = sum(map(len, parts)) < len(parts) * _PART_BYTES_MIN
    if _KEEPS_PARTS and (is_small or transport.is_closing()):
        transport.write(b"".join(parts))
        return
    transport.writelines(parts)
    if _FORGETS_TO_PAUSE and transport.get_write_buffer_size():
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(high=high, low=low)
