"""One connection to a server of Kafka's protocol: one request after the other, each with its answer.

Invariants:

- At most one request is on its way: its answer is the next frame. A caller that is cancelled in between ends the
  connection, because the answer to its request would be taken for that of the next one.
- A request that was sent and not answered has an unknown outcome; one that could not be sent had none.
"""

import asyncio
import struct
from asyncio import StreamReader, StreamWriter
from typing import Final, TypeVar

from segmentstore.client.errors import ConnectionLostError, OutcomeUnknownError
from segmentstore.codec.kafka_protocol.fields import KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import (
    FRAME_BYTES_MAX,
    LENGTH_BYTES,
    api_of,
    decode_response,
    encode_request,
)
from segmentstore.codec.kafka_protocol.structure import Structure

_Response = TypeVar("_Response", bound=Structure)

_CLIENT_ID: Final = "segmentstore"
_LENGTH = struct.Struct(">i")
_CORRELATION_IDS: Final = 1 << 31


class KafkaConnection:
    """Made by `open_kafka_connection`; `close()` ends it."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, *, address: str) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._asking = asyncio.Lock()
        self._correlation_id = 0

    @property
    def is_open(self) -> bool:
        """False once either side is known to have ended it."""
        return not self._writer.is_closing() and not self._reader.at_eof()

    async def ask(self, request: Structure, kind: type[_Response]) -> _Response:
        """The answer to a request, in the newest version of its API that is spoken here.

        Raises ConnectionLostError (the request was not sent), OutcomeUnknownError, KafkaProtocolError.
        """
        api = api_of(request)
        assert api.response is kind, f"a request has another answer request={request!r:.100}"
        async with self._asking:
            self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
            sent = encode_request(
                request, api.newest, correlation_id=self._correlation_id, client_id=_CLIENT_ID
            )
            if self._writer.is_closing():
                raise ConnectionLostError(f"connection is closed address={self._address}")
            answered = False
            try:
                self._writer.writelines(sent)
                await self._writer.drain()
                frame = await self._frame()
                answered = True
            except (OSError, EOFError) as error:
                raise OutcomeUnknownError(
                    f"connection ended before the answer address={self._address}"
                ) from error
            finally:
                if not answered:
                    self._writer.close()
            return decode_response(kind, frame, api.newest, correlation_id=self._correlation_id)

    async def close(self) -> None:
        """Idempotent."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            # It had ended already, on the other side.
            return

    async def _frame(self) -> bytes:
        (length,) = _LENGTH.unpack(await self._reader.readexactly(LENGTH_BYTES))
        if not 0 <= length <= FRAME_BYTES_MAX:
            raise KafkaProtocolError(f"no frame has this length length={length}")
        return await self._reader.readexactly(length)


async def open_kafka_connection(host: str, port: int) -> KafkaConnection:
    """Raises ConnectionLostError."""
    address = f"{host}:{port}"
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise ConnectionLostError(f"no connection address={address}: {error}") from error
    return KafkaConnection(reader, writer, address=address)
