"""One call of the service, from the bytes of the request to the bytes of the answer.

Invariant: a refusal, or anything else that an old record would make wrong, is told once what it rests on is proved
(stale_answers.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.controller.api.stale_answers import is_refusal, may_be_told
from segmentstore.controller.metadata.tables_read import noting_reads

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
        with noting_reads() as read:
            try:
                told = await method(message)
            except SegmentStoreError as error:
                if is_refusal(error):
                    await read.prove()
                raise
            if not may_be_told(told, wrote=read.wrote):
                await read.prove()
        return told.SerializeToString()

    return Call(name, answer, service)
