"""Idempotent producers: what a stream does with (id, epoch, sequence) of a request. Pure decisions.

| known record | request | verdict |
|---|---|---|
| none | sequence 0, any epoch | accept |
| none | sequence > 0 | gap, 0 expected |
| epoch e | epoch < e | stale epoch |
| epoch e | epoch > e, sequence 0 | accept, the record starts again |
| epoch e | epoch > e, sequence > 0 | bad start of an epoch |
| epoch e, last n | sequence <= n | duplicate |
| epoch e, last n | sequence = n + 1 | accept |
| epoch e, last n | sequence > n + 1 | gap, n + 1 expected |

A duplicate is judged by its numbers alone; its body is not compared.
"""

import re
from dataclasses import dataclass
from enum import Enum

from segmentstore.http.refusals import Refusal, bad_request
from segmentstore.http.stream_attributes import ProducerRecord

NUMBER_MAX = (1 << 53) - 1
"""What a JavaScript client can count exactly."""

_NUMBER = re.compile("[0-9]{1,16}")


class Verdict(Enum):
    """What to do with a producer's request."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    STALE_EPOCH = "stale_epoch"
    BAD_EPOCH_START = "bad_epoch_start"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class ProducerClaim:
    """The producer headers of one request."""

    producer_id: str
    epoch: int
    sequence: int

    @property
    def record(self) -> ProducerRecord:
        """What the stream remembers once the request is accepted."""
        return ProducerRecord(self.epoch, self.sequence)


def judge(known: ProducerRecord | None, claim: ProducerClaim) -> Verdict:
    """The table above."""
    if known is None:
        return Verdict.ACCEPT if claim.sequence == 0 else Verdict.GAP
    if claim.epoch < known.epoch:
        return Verdict.STALE_EPOCH
    if claim.epoch > known.epoch:
        return Verdict.ACCEPT if claim.sequence == 0 else Verdict.BAD_EPOCH_START
    if claim.sequence <= known.sequence:
        return Verdict.DUPLICATE
    return Verdict.ACCEPT if claim.sequence == known.sequence + 1 else Verdict.GAP


def expected_sequence(known: ProducerRecord | None) -> int:
    """The sequence that a gap lacks."""
    return 0 if known is None else known.sequence + 1


def producer_claim(
    producer_id: str | None,
    epoch: str | None,
    sequence: str | None,
    *,
    producer_id_bytes_max: int,
) -> ProducerClaim | None:
    """Parse the three headers: all or none. Raises Refusal (400)."""
    if producer_id is None and epoch is None and sequence is None:
        return None
    if producer_id is None or epoch is None or sequence is None:
        raise bad_request("Producer-Id, Producer-Epoch and Producer-Seq belong together")
    if not producer_id:
        raise bad_request("Producer-Id is empty")
    # Headers arrive decoded with surrogates for bytes that are not UTF-8.
    if any("\ud800" <= character <= "\udfff" for character in producer_id):
        raise bad_request("Producer-Id is not UTF-8")
    length = len(producer_id.encode())
    if length > producer_id_bytes_max:
        raise bad_request(
            f"Producer-Id is too long bytes={length} bytes_max={producer_id_bytes_max}"
        )
    return ProducerClaim(
        producer_id, _number("Producer-Epoch", epoch), _number("Producer-Seq", sequence)
    )


def _number(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > NUMBER_MAX:
        raise bad_request(f"{name} is not a number from 0 to {NUMBER_MAX} value={text[:32]!r}")
    return int(text)


def refuse(verdict: Verdict, known: ProducerRecord | None, claim: ProducerClaim) -> Refusal:
    """The answer to a claim that is neither accepted nor a duplicate."""
    match verdict:
        case Verdict.STALE_EPOCH:
            assert known is not None, f"no record, yet stale claim={claim}"
            return Refusal(
                403,
                f"a newer epoch of this producer exists epoch={known.epoch} given={claim.epoch}",
                kind="conflict",
                headers={"Producer-Epoch": str(known.epoch)},
            )
        case Verdict.BAD_EPOCH_START:
            return bad_request(f"a new epoch begins with sequence 0 given={claim.sequence}")
        case Verdict.GAP:
            expected = expected_sequence(known)
            return Refusal(
                409,
                f"a request is missing expected={expected} received={claim.sequence}",
                kind="conflict",
                headers={
                    "Producer-Expected-Seq": str(expected),
                    "Producer-Received-Seq": str(claim.sequence),
                },
            )
        case Verdict.ACCEPT | Verdict.DUPLICATE:
            raise AssertionError(f"not a refusal verdict={verdict} claim={claim}")
