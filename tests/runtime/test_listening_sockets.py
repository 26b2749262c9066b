"""A listening socket that closes: who has connected is accepted, who has not is refused, and none is reset."""

import socket
import sys

import pytest

from segmentstore.runtime.listening_sockets import refuse_handshakes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_no_connection_begins_any_more_and_those_that_have_are_accepted(
    family: socket.AddressFamily, host: str
) -> None:
    with socket.socket(family) as listening, socket.socket(family) as before:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        listening.listen(8)
        address = listening.getsockname()
        before.connect(address)
        before.sendall(b"sent by one that has connected")
        assert refuse_handshakes(listening)
        with socket.socket(family) as behind:
            behind.settimeout(0.3)
            with pytest.raises(TimeoutError):
                behind.connect(address)
        with socket.socket(family) as pending:
            pending.settimeout(60)
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.recv(100) == b"sent by one that has connected"
            listening.close()
            with pytest.raises(ConnectionRefusedError):
                pending.connect(address)
