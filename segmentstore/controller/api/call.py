"""One call of the service, from the bytes of the request to the bytes of the answer.

The controller may have lost its tables to another process and not know it yet. So most answers wait for a proof that
what they rest on was not old when it was read (`segmentstore/controller/metadata/ownership_proof.py`): refusals, "there
is none", "nothing follows", listings, and what a call found done already. These are told at once:

| told at once | why an old one does no harm |
|---|---|
| success of a call that wrote | only the owner can write |
| segments of an epoch, if there are any | a writer that comes late meets a sealed one, and asks for its successors |
| successors, if there are any | recorded once, never changed |
| a scale in progress | the client asks again |
| a transaction that is committing, aborting, or ended | decided once |
| a transaction begun, a lease renewed | proved for as long as the lease needs it (`Decisions.prove_lease`) |

Invariants:

- A refusal, or anything else that an old record would make wrong, is told once what it rests on is proved.
- Nothing is made of a request that names more things than LIST_ITEMS_MAX and REQUEST_ITEMS_MAX say: what answers it
  looks at all of them in one stretch of the event loop.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from segmentstore.codec.controller_api import SERVICE
from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.controller.metadata.ownership_proof import noting_reads

_PING_STATUS = api.PingTxnStatus.Status
_TRANSACTION_STATE = api.TxnState.State

_HARMLESS_IF_STALE: Final[dict[type[Message], Callable[[Any], bool]]] = {
    api.SegmentRanges: lambda answer: bool(answer.segmentRanges),
    api.SuccessorResponse: lambda answer: bool(answer.segments),
    api.ScaleStatusResponse: lambda answer: (
        answer.status == api.ScaleStatusResponse.ScaleStatus.IN_PROGRESS
    ),
    api.TxnStatus: lambda answer: answer.status == api.TxnStatus.Status.SUCCESS,
    api.PingTxnStatus: lambda answer: (
        answer.status in (_PING_STATUS.OK, _PING_STATUS.COMMITTED, _PING_STATUS.ABORTED)
    ),
    api.TxnState: lambda answer: (
        answer.state not in (_TRANSACTION_STATE.UNKNOWN, _TRANSACTION_STATE.OPEN)
    ),
    api.CreateTxnResponse: lambda _: True,
    own_api.BeginStageResponse: lambda _: True,
}

LIST_ITEMS_MAX: Final = 10_000
"""Of one list or map of a request: ten times what any stream has of segments. One takes up to 8 us."""
REQUEST_ITEMS_MAX: Final = 100_000
"""Of all of them together: the positions of a reader group in many streams, which take 1 us each."""

_SUCCESSFUL_STATUSES: Final = ("SUCCESS", "STARTED")
_REFUSAL_KINDS: Final = (ErrorKind.NOT_FOUND, ErrorKind.CONFLICT)

Request = TypeVar("Request", bound=Message)


@dataclass(frozen=True, slots=True)
class Call:
    """A unary call by its name."""

    name: str
    answer: Callable[[bytes], Awaitable[bytes]]
    """Raises SegmentStoreError for what has no status of its own in the answer's message."""
    service: str = SERVICE
    rests_on_tables: bool = True
    """If not, every controller of a store answers it, at any time."""


def unary(
    name: str,
    request: type[Request],
    method: Callable[[Request], Awaitable[Message]],
    *,
    service: str = SERVICE,
    rests_on_tables: bool = True,
) -> Call:
    """A call that `method` answers."""

    async def answer(content: bytes) -> bytes:
        message = request()
        try:
            message.ParseFromString(content)
        except DecodeError as error:
            raise InvalidRequestError(f"request does not parse call={name}") from error
        # An item has a byte at least.
        if len(content) > LIST_ITEMS_MAX:
            _require_few_items(name, message)
        with noting_reads() as read:
            try:
                told = await method(message)
            except SegmentStoreError as error:
                if is_refusal(error):
                    await read.prove()
                raise
            if not is_safe_if_stale(told, wrote=read.wrote):
                await read.prove()
        return told.SerializeToString()

    return Call(name, answer, service, rests_on_tables)


def is_safe_if_stale(answer: Message, *, wrote: bool) -> bool:
    """Whether the answer needs no proof; `wrote`: its call has changed a table."""
    harmless = _HARMLESS_IF_STALE.get(type(answer))
    if harmless is not None and harmless(answer):
        return True
    return wrote and not _refuses(answer)


def is_refusal(error: SegmentStoreError) -> bool:
    """Whether clients give up on it because of what was read. Others ask again, or are judged by the request alone."""
    return error.kind in _REFUSAL_KINDS


def _require_few_items(name: str, request: Message) -> None:
    """Raises InvalidRequestError. O(what the lists and maps may have)."""
    left = REQUEST_ITEMS_MAX
    waiting = [request]
    while waiting:
        for field, value in waiting.pop().ListFields():
            if isinstance(value, Message):
                waiting.append(value)
            elif not isinstance(value, str | bytes | int | float):
                count = len(value)
                left -= count
                if count > LIST_ITEMS_MAX or left < 0:
                    raise InvalidRequestError(
                        f"request names too many things call={name} field={field.name} count={count}"
                        f" list_items_max={LIST_ITEMS_MAX} request_items_max={REQUEST_ITEMS_MAX}"
                    )
                # The keys of a map are no messages.
                waiting += [each for each in value if isinstance(each, Message)]


def _refuses(answer: Message) -> bool:
    for field in answer.DESCRIPTOR.fields:
        if field.enum_type is not None and field.name in ("status", "result"):
            number = getattr(answer, field.name)
            return field.enum_type.values_by_number[number].name not in _SUCCESSFUL_STATUSES
    return False
