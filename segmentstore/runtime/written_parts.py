"""Parts that are written to a transport at once, and the pause that some versions of Python forget behind them.

`writelines()` of asyncio's own transports in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never calls `pause_writing()`
(CVE-2024-12254): a client that takes nothing would look like one that takes everything, and what is kept for it would
have no bound. Setting the limits of the buffer to what they are makes the transport look at it.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

_FORGETS_TO_PAUSE: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    3,
    13,
) <= sys.version_info < (3, 13, 2)


def write_parts(
    transport: asyncio.WriteTransport, parts: Sequence[bytes | bytearray | memoryview]
) -> None:
    """One call of the system for all of them, if the socket takes them. The protocol is paused as by `write()`."""
    transport.writelines(parts)
    if _FORGETS_TO_PAUSE and transport.get_write_buffer_size():
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(high=high, low=low)
