"""A gRPC server that listens: how every server of the store uses its port, what is said when the port is taken, and
how much is said with the status of a call.

Its requests are received when there is room for them (`grpc_request_bytes.py`).
"""

from collections.abc import Sequence
from typing import Final

import grpc

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.grpc_request_bytes import LOOKAHEAD_BYTES, ReceivedInTurn, RequestBytes

WORDS_CHARACTERS_MAX: Final = 500
"""Of the sentence with a status. It goes in headers, of which clients take 8 KiB: of more they make RESOURCE_EXHAUSTED,
whatever the status is, and ask again. A character takes up to 12 bytes there."""


def words_of(error: Exception) -> str:
    """The sentence with the status that an error becomes. What clients sent may stand in it, at any length."""
    return str(error)[:WORDS_CHARACTERS_MAX]


async def listening_server(
    who: str,
    *,
    address: str,
    port: int,
    calls_at_once_max: int,
    handlers: "Sequence[grpc.GenericRpcHandler[bytes, bytes]]",
    requests: RequestBytes,
    silence_seconds: float | None = None,
    answer_seconds: float = 60.0,
) -> tuple[grpc.aio.Server, int]:
    """The started server, and its port, which the system chooses for 0. Plain HTTP/2.

    `who` begins the sentence of the InvalidRequestError that says that the address cannot be bound. A client of which
    nothing came for `silence_seconds` (None: for two hours) is asked whether it is there; if it does not say so in
    `answer_seconds`, its connection ends, and its calls.
    """
    looks_after: list[tuple[str, int]] = []
    if silence_seconds is not None:
        looks_after = [
            ("grpc.keepalive_time_ms", round(silence_seconds * 1000)),
            # The one or the other, by the version of gRPC.
            ("grpc.keepalive_timeout_ms", round(answer_seconds * 1000)),
            ("grpc.http2.ping_timeout_ms", round(answer_seconds * 1000)),
            # However often it has to be asked.
            ("grpc.http2.max_pings_without_data", 0),
        ]
    server = grpc.aio.server(
        maximum_concurrent_rpcs=calls_at_once_max,
        options=[
            # Two servers on one port would share its connections without a word.
            ("grpc.so_reuseport", 0),
            # Clients keep idle connections alive with pings; refusing these would cut the connections.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_receive_message_length", requests.message_bytes_max),
            # Of what no handler has asked for yet: so much, and not by what the network carries.
            ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
            ("grpc.http2.bdp_probe", 0),
            *looks_after,
        ],
    )
    server.add_generic_rpc_handlers((ReceivedInTurn(handlers, requests),))
    host = f"[{address}]" if ":" in address else address
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise InvalidRequestError(f"{who} cannot listen address={address} port={port}") from error
    await server.start()
    return server, bound
