"""Loopback ports that are held for servers of a test, also while no server is there.

A port is held by a socket that is bound and never listens: no other program of the machine is given it meanwhile, to
listen on or to connect from. A server that binds with SO_REUSEADDR, as the holder does, listens on it.
"""

import socket
from collections.abc import Sequence


def bound_sockets(count: int) -> list[socket.socket]:
    """On loopback ports of their own, which the caller closes."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return sockets


def ports_of(sockets: Sequence[socket.socket]) -> list[int]:
    return [each.getsockname()[1] for each in sockets]
