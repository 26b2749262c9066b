"""Batches of one connection that are to be sent again, before what their producer sent behind them is taken.

An idempotent producer has up to five batches of a partition under way on one connection. One that is refused with a
code that clients repeat, because its partition is not here, is recovered for too long, or lost its container, comes
again behind those that were sent with it. If one of those finds the partition open, it must not be stored: a producer
of which the partition knows nothing is taken at any sequence, so the records would change places, and the refused batch
would be told 45 when it comes again, with which librdkafka's producer ends. Where the producer is known, the batch that
came too early would be told 45, with which kafka-python and aiokafka fail a delivery. So it is refused with 56, as
surely not stored: all clients repeat it in order.

Invariants:

- What is held up is behind the refused batch, of the same producer and epoch, and on the same connection: a client that
  connects again has nothing under way.
- A batch that the partition expects, by what it knows of the producer, is never held up: the refused one is stored, by
  another connection or another broker.
- The refused batch itself, or another producer or epoch, ends it; so does time, for clients that gave the batch up. It
  begins when the client is told of the refusal: a request is answered when all of its batches are settled.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

from segmentstore.codec.record_batch import SentBatch

_HALF_OF_SEQUENCES: Final = 1 << 30
"""They end at 2^31 and begin again at 0."""


@dataclass(frozen=True, slots=True)
class _Refused:
    sent: SentBatch
    until: float = inf
    """Time of the loop; without an end until the client is told."""


class RefusedBatches:
    """Those of one connection."""

    def __init__(self, *, partitions_max: int, seconds: float) -> None:
        """`seconds`: how long a refusal holds up what is behind it."""
        self._partitions_max = partitions_max
        self._seconds = seconds
        self._refused: dict[str, _Refused] = {}
        """The first one of each partition, by the name of its segment: requests name topics in two ways."""

    def note(self, partition: str, sent: SentBatch, *, now: float) -> None:
        """It was refused, and is to come again, once its client is told."""
        known = self._refused.pop(partition, None)
        if known is not None and now < known.until and _is_behind(sent, known.sent):
            self._refused[partition] = _Refused(known.sent)
            return
        while len(self._refused) >= self._partitions_max:
            del self._refused[next(iter(self._refused))]
        self._refused[partition] = _Refused(sent)

    def told(self, partition: str, *, now: float) -> None:
        """The client hears of a refusal now."""
        known = self._refused.get(partition)
        if known is not None:
            self._refused[partition] = replace(known, until=now + self._seconds)

    def holds_up(self, partition: str, sent: SentBatch, *, now: float) -> bool:
        """Whether a batch before this one is to come first. If not, none of the partition is waited for any more."""
        known = self._refused.get(partition)
        if known is None:
            return False
        if now < known.until and _is_behind(sent, known.sent):
            return True
        del self._refused[partition]
        return False


def _is_behind(sent: SentBatch, refused: SentBatch) -> bool:
    if (sent.producer_id, sent.epoch) != (refused.producer_id, refused.epoch):
        return False
    distance = (sent.sequence - refused.sequence) % (2 * _HALF_OF_SEQUENCES)
    return 0 < distance < _HALF_OF_SEQUENCES
