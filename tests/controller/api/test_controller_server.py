"""The socket: one server per port, and an end that may come twice."""

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.api.grpc_server import (
    ControllerServer,
    ControllerServerSettings,
    ControllerService,
)
from tests.held_ports import bound_sockets, ports_of


def server_on(port: int, address: str = "127.0.0.1") -> ControllerServer:
    return ControllerServer(
        service=ControllerService(calls=[]),
        settings=ControllerServerSettings(address=address, port=port),
    )


async def test_a_port_that_is_taken_is_refused_in_words() -> None:
    first = server_on(0)
    await first.start()
    second = server_on(first.port)
    with pytest.raises(InvalidRequestError):
        await second.start()
    await second.close()
    await first.close()
    await first.close()


async def test_the_port_is_free_again_after_the_end() -> None:
    # Held by a socket that never listens, so that no other process is given it in between.
    (holder,) = bound_sockets(1)
    with holder:
        (port,) = ports_of([holder])
        for _ in range(2):
            server = server_on(port)
            await server.start()
            assert server.port == port
            await server.close()
