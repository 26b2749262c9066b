"""What the protocol's state says of one append: steps 5 to 8 of `stream_append`. Pure.

5 content type 409 -> 6 producer 403, 400, duplicate 204, gap 409 -> 7 Stream-Seq 409 -> 8 JSON 400
"""

from collections.abc import Mapping
from dataclasses import dataclass

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from segmentstore.http.producers import ProducerClaim, Verdict, judge, refuse
from segmentstore.http.refusals import Refusal, bad_request, conflict
from segmentstore.http.stream_attributes import (
    PRODUCER_COUNT_KEY,
    STREAM_SEQUENCE_KEY,
    ProducerRecord,
    producer_record,
)


@dataclass(slots=True)
class AppendRequest:
    """What one POST asks for, parsed."""

    content_type: str | None
    close: bool
    claim: ProducerClaim | None
    sequence: bytes | None
    body: bytes = b""
    payload: bytes = b""
    """What is stored for the body."""
    invalid_body: InvalidRequestError | None = None
    """JSON that does not parse is refused last, after duplicates."""
    producer_key: AttributeKey | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the protocol's state says of a request: submit `updates`, or answer."""

    updates: list[AttributeUpdate]
    refusal: Refusal | None = None
    duplicate_of: ProducerRecord | None = None

    @property
    def accepted(self) -> bool:
        return self.refusal is None and self.duplicate_of is None


ACCEPTED = Judgement([])
"""Nothing speaks against the request, and nothing is changed but bytes."""


def judge_request(
    known: Mapping[AttributeKey, AttributeValue | None] | Mapping[AttributeKey, AttributeValue],
    asked: AppendRequest,
    *,
    mismatch: bool,
    producers_max: int,
) -> Judgement:
    """Steps 5 to 8 against some state of the attributes. Pure."""
    if mismatch:
        return Judgement([], conflict(f"content type does not match given={asked.content_type!r}"))
    updates: list[AttributeUpdate] = []
    if asked.claim is not None and asked.producer_key is not None:
        value = known.get(asked.producer_key)
        record = producer_record(value)
        verdict = judge(record, asked.claim)
        if verdict is Verdict.DUPLICATE:
            return Judgement([], duplicate_of=record)
        if verdict is not Verdict.ACCEPT:
            return Judgement([], refuse(verdict, record, asked.claim))
        if record is None:
            count = known.get(PRODUCER_COUNT_KEY) or 0
            if isinstance(count, int) and count >= producers_max:
                return Judgement(
                    [], conflict(f"stream has too many producers producers_max={producers_max}")
                )
            updates.append(AttributeUpdate(PRODUCER_COUNT_KEY, 1, AttributeUpdateType.ACCUMULATE))
        updates.append(
            AttributeUpdate(
                asked.producer_key,
                asked.claim.record.encode(),
                AttributeUpdateType.REPLACE_IF_EQUALS,
                comparison=value,
            )
        )
    if asked.sequence is not None:
        last = known.get(STREAM_SEQUENCE_KEY)
        if isinstance(last, bytes) and asked.sequence <= last:
            return Judgement([], conflict("Stream-Seq is not greater than the last one"))
        updates.append(
            AttributeUpdate(
                STREAM_SEQUENCE_KEY,
                asked.sequence,
                AttributeUpdateType.REPLACE_IF_EQUALS,
                comparison=last,
            )
        )
    if asked.invalid_body is not None:
        return Judgement([], bad_request(str(asked.invalid_body)))
    return Judgement(updates)
