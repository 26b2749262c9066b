"""One call of the service, from the bytes of the request to the bytes of the answer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from segmentstore.contracts.errors import InvalidRequestError

Request = TypeVar("Request", bound=Message)

SERVICE_NAME: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
"""The one that Pravega's clients call."""
OWN_SERVICE: Final = "segmentstore.controller.v1.StagedCommits"


@dataclass(frozen=True, slots=True)
class Call:
    """A unary call by its name."""

    name: str
    answer: Callable[[bytes], Awaitable[bytes]]
    """Raises SegmentStoreError for what has no status of its own in the answer's message."""
    service: str = SERVICE_NAME


def unary(
    name: str,
    request: type[Request],
    method: Callable[[Request], Awaitable[Message]],
    *,
    service: str = SERVICE_NAME,
) -> Call:
    """A call that `method` answers."""

    async def answer(content: bytes) -> bytes:
        message = request()
        try:
            message.ParseFromString(content)
        except DecodeError as error:
            raise InvalidRequestError(f"request does not parse call={name}") from error
        return (await method(message)).SerializeToString()

    return Call(name, answer, service)
