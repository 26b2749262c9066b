"""A process of a store of several, from its fork to its end. See `launcher.py` and `supervisor.py`.

It has one descriptor: its end of the pair of sockets to the parent. Orders come first, with descriptors of sockets to
listen on, and then of the lock of the data directory, which this process keeps as long as it is there.

Invariants:

- It ends when its parent does, at once: what was acknowledged is safe. The lock of the data directory is free only when
  every process of the store has ended, so none of another parent's can start beside it.
"""

import os
import socket
from collections.abc import Sequence

from segmentstore.host.processes.node_process import serve_node
from segmentstore.host.processes.orders import (
    MESSAGE_BYTES_MAX,
    NODE,
    Orders,
    decode,
    orders_in,
)
from segmentstore.host.processes.volumes_process import serve_volumes
from segmentstore.host.serving import run_process
from segmentstore.host.setting_sources import resolve_settings

_DESCRIPTORS_MAX = 8


def main(descriptor: int) -> None:
    """Serve until told to end."""
    parent = socket.socket(fileno=descriptor)
    received = _receive_orders(parent)
    if received is None:
        return
    orders, descriptors = received
    # The last one is the lock, which is kept by having it.
    listening = [socket.socket(fileno=each) for each in descriptors[:-1]]
    resolved = resolve_settings(flags=orders.settings, environment={})
    serve = serve_node if orders.role == NODE else serve_volumes
    run_process(serve(orders, resolved, parent, listening), resolved.settings.log)


def _receive_orders(parent: socket.socket) -> tuple[Orders, Sequence[int]] | None:
    """With the descriptors that came with them. None if the parent has ended."""
    line = b""
    descriptors: list[int] = []
    while not line.endswith(b"\n"):
        # Not a byte more: what follows is for the channel.
        piece, more, _, _ = socket.recv_fds(parent, 1, _DESCRIPTORS_MAX)
        if not piece or len(line) > MESSAGE_BYTES_MAX:
            return None
        line += piece
        descriptors += more
    for each in descriptors:
        os.set_inheritable(each, False)
    return orders_in(decode(line)), descriptors
