"""Buffers for one vectored write: few enough for the system, and nothing large copied."""

from collections.abc import Iterable

from segmentstore.contracts.identifiers import BufferView

LARGE_BUFFER_BYTES = 16 * 1024
"""A buffer of this length is not worth copying; below it, an entry of its own costs more than the copy."""


def join_small(buffers: Iterable[BufferView]) -> list[BufferView]:
    """The same bytes in the same order: neighbours below LARGE_BUFFER_BYTES have become one buffer."""
    joined: list[BufferView] = []
    small: list[BufferView] = []
    for buffer in buffers:
        if len(buffer) < LARGE_BUFFER_BYTES:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
