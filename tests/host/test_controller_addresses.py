"""Where a client is sent that asks for the controllers, as one of Pravega with a `pravega://` address does."""

import grpc
import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.host.service_builder import open_service
from segmentstore.host.setting_sources import resolve_settings

FLAGS = {
    "tier1.kind": "memory",
    "tier2.place": "memory",
    "http.address": "127.0.0.1:0",
    "wire.address": "127.0.0.1:0",
}
LIST = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/getControllerServerList"


async def listed_at(address: str) -> list[tuple[str, int]]:
    async with grpc.aio.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            LIST,
            request_serializer=api.ServerRequest.SerializeToString,
            response_deserializer=api.ServerResponse.FromString,
        )
        answer = await ask(api.ServerRequest())
    return [(each.endpoint, each.port) for each in answer.nodeURI]


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        ({"controller.address": "127.0.0.1:0"}, "127.0.0.1"),
        ({"controller.address": "localhost:0"}, "127.0.0.1"),
        ({"controller.address": "0.0.0.0:0"}, "127.0.0.1"),
        ({"controller.address": "0.0.0.0:0", "wire.advertised_address": "10.0.0.7:1"}, "10.0.0.7"),
    ],
    ids=["an address", "a name", "everywhere", "everywhere, advertised"],
)
async def test_a_server_names_itself(flags: dict[str, str], host: str) -> None:
    resolved = resolve_settings(flags={**FLAGS, **flags}, environment={})
    async with open_service(resolved) as service:
        await service.servers.start()
        try:
            port = int(service.servers.addresses().controller.rpartition(":")[2])
            assert await listed_at(f"127.0.0.1:{port}") == [(host, port)]
        finally:
            await service.servers.close()
