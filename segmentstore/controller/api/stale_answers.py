"""Which answers are told as they are, although the controller may have lost its tables and not know it yet.

All others wait for a proof (metadata/log_proof.py): refusals, "there is none", "nothing follows", listings, and what a
call found done already.

| told at once | why an old one does no harm |
|---|---|
| success of a call that wrote | only the owner can write |
| segments of an epoch, if there are any | a writer that comes late meets a sealed one, and asks for its successors |
| successors, if there are any | recorded once, never changed |
| a scale in progress | the client asks again |
| a transaction that is committing, aborting, or ended | decided once |
| a transaction begun, a lease renewed | proved for as long as the lease needs it (transactions.py) |
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

_PING = api.PingTxnStatus.Status
_STATE = api.TxnState.State

_HARMLESS: Final[dict[type[Message], Callable[[Any], bool]]] = {
    api.SegmentRanges: lambda answer: bool(answer.segmentRanges),
    api.SuccessorResponse: lambda answer: bool(answer.segments),
    api.ScaleStatusResponse: lambda answer: (
        answer.status == api.ScaleStatusResponse.ScaleStatus.IN_PROGRESS
    ),
    api.TxnStatus: lambda answer: answer.status == api.TxnStatus.Status.SUCCESS,
    api.PingTxnStatus: lambda answer: answer.status in (_PING.OK, _PING.COMMITTED, _PING.ABORTED),
    api.TxnState: lambda answer: answer.state not in (_STATE.UNKNOWN, _STATE.OPEN),
    api.CreateTxnResponse: lambda _: True,
    own_api.BeginStageResponse: lambda _: True,
}

_GOOD: Final = ("SUCCESS", "STARTED")
_REFUSALS: Final = (ErrorKind.NOT_FOUND, ErrorKind.CONFLICT)


def may_be_told(answer: Message, *, wrote: bool) -> bool:
    """Whether the answer needs no proof; `wrote`: its call has changed a table."""
    harmless = _HARMLESS.get(type(answer))
    if harmless is not None and harmless(answer):
        return True
    return wrote and not _refuses(answer)


def is_refusal(error: SegmentStoreError) -> bool:
    """Whether clients give up on it because of what was read. Others ask again, or are judged by the request alone."""
    return error.kind in _REFUSALS


def _refuses(answer: Message) -> bool:
    for field in answer.DESCRIPTOR.fields:
        if field.enum_type is not None and field.name in ("status", "result"):
            number = getattr(answer, field.name)
            return field.enum_type.values_by_number[number].name not in _GOOD
    return False
