"""The socket: one server per port, and an end that may come twice."""

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.api.grpc_server import (
    ControllerServer,
    ControllerServerSettings,
    ControllerService,
)


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
    first = server_on(0)
    await first.start()
    await first.close()
    second = server_on(first.port)
    await second.start()
    assert second.port == first.port
    await second.close()
