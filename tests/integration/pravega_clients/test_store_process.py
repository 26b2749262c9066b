"""The ports of a server that tests kill and start again are its own all the time."""

import errno
import socket
from pathlib import Path

import pytest

from tests.integration.pravega_clients.store_process import StoreProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_nobody_is_given_a_port_of_a_server_that_is_down(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "data") as server:
        ports = (server.http_port, server.wire_port, server.controller_port)
        holders = list(server._holders)
        server.kill()
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError) as refused:
                other.bind(("127.0.0.1", port))
            assert refused.value.errno == errno.EADDRINUSE
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        server.start()
        for port in ports:
            socket.create_connection(("127.0.0.1", port)).close()
    assert [each.fileno() for each in holders] == [-1] * len(ports), "they are given back"
