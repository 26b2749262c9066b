"""What a partition remembers of its producers, so that a batch that is sent again is not stored again.

Of each producer: its epoch, and of its latest WINDOW_BATCHES batches the first and the last sequence number, the offset
and the time of the append. A producer has at most that many batches under way.

| incoming | is |
|---|---|
| a producer that is not known | taken, whatever its sequence: what was known of it may have been forgotten |
| an older epoch | ProducerFencedError |
| a newer epoch | taken if its sequence is 0, OutOfOrderSequenceError else |
| the first and last sequence of a remembered batch | that batch, sent again |
| the sequence behind the last one; 0 behind 2**31 - 1 | taken |
| anything else | OutOfOrderSequenceError |

They are stored in pages, attributes of the partition's segment (page_key), each one value of at most PAGE_BYTES_MAX
bytes:

    page       producers, one behind the other
    producer   i64 id, i16 epoch, i64 time of its latest append (Unix milliseconds), u8 count of batches, the batches
    batch      u32 first sequence, u32 last sequence, u64 base offset, i64 time of the append (-1: the records' own)

Invariants: at most `producers_max` are known; the order of the producers is that of their latest appends.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from segmentstore.codec.record_batch import BatchHeader, SentBatch, add_to_sequence
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import ATTRIBUTE_VALUE_BYTES_MAX, AttributeKey
from segmentstore.topics.errors import OutOfOrderSequenceError, ProducerFencedError

WINDOW_BATCHES: Final = 5
PAGE_BYTES_MAX: Final = ATTRIBUTE_VALUE_BYTES_MAX

_PAGE_KEY: Final = b"topic producers "
_PRODUCER: Final = Struct(">qhqB")
_BATCH: Final = Struct(">IIQq")


def page_key(number: int) -> AttributeKey:
    """The attribute that holds a page of producers."""
    return AttributeKey(_PAGE_KEY + number.to_bytes(4, "big"))


@dataclass(frozen=True, slots=True)
class RememberedBatch:
    """One batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    seen_ms: int
    batches: list[RememberedBatch]


class ProducerWindows:
    """Of one partition, as of everything submitted to it."""

    def __init__(self, *, producers_max: int, silent_ms_max: int) -> None:
        self._producers_max = producers_max
        self._silent_ms_max = silent_ms_max
        self._producers: dict[int, _Producer] = {}
        """The one that appended last is the last."""

    def __len__(self) -> int:
        return len(self._producers)

    def find_duplicate(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that this one is, sent again; None if it is to be appended.

        Raises ProducerFencedError, OutOfOrderSequenceError.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            return None
        if header.producer_epoch < known.epoch:
            raise ProducerFencedError(
                producer_id=header.producer_id, current=known.epoch, given=header.producer_epoch
            )
        if header.producer_epoch > known.epoch:
            expected = 0
        else:
            sequences = header.base_sequence, header.last_sequence
            for batch in known.batches:
                if (batch.first_sequence, batch.last_sequence) == sequences:
                    return batch
            expected = add_to_sequence(known.batches[-1].last_sequence, 1)
        if header.base_sequence != expected:
            raise OutOfOrderSequenceError(
                producer_id=header.producer_id, expected=expected, given=header.base_sequence
            )
        return None

    def expects(self, sent: SentBatch) -> bool:
        """Whether, by what is known of its producer, it is the next batch or one that is sent again."""
        known = self._producers.get(sent.producer_id)
        if known is None or known.epoch != sent.epoch:
            return False
        if sent.sequence == add_to_sequence(known.batches[-1].last_sequence, 1):
            return True
        return any(batch.first_sequence == sent.sequence for batch in known.batches)

    def remember(
        self, header: BatchHeader, *, base_offset: int, append_time_ms: int, now_ms: int
    ) -> None:
        """The batch was appended, or was found in the log."""
        known = self._producers.pop(header.producer_id, None)
        if known is None or known.epoch != header.producer_epoch:
            known = _Producer(header.producer_epoch, now_ms, [])
            self._make_room(now_ms)
        known.seen_ms = now_ms
        known.batches.append(
            RememberedBatch(header.base_sequence, header.last_sequence, base_offset, append_time_ms)
        )
        del known.batches[:-WINDOW_BATCHES]
        self._producers[header.producer_id] = known

    def _make_room(self, now_ms: int) -> None:
        """Forgets those that were silent for too long, and one more if there are too many."""
        for producer_id, producer in list(self._producers.items()):
            full = len(self._producers) >= self._producers_max
            if not full and now_ms - producer.seen_ms <= self._silent_ms_max:
                break
            del self._producers[producer_id]

    def pages(self) -> list[bytes]:
        """All of it as values of attributes."""
        pages: list[bytes] = []
        page = bytearray()
        for producer_id, producer in self._producers.items():
            entry = _PRODUCER.pack(
                producer_id, producer.epoch, producer.seen_ms, len(producer.batches)
            ) + b"".join(
                _BATCH.pack(
                    batch.first_sequence,
                    batch.last_sequence,
                    batch.base_offset,
                    batch.append_time_ms,
                )
                for batch in producer.batches
            )
            if len(page) + len(entry) > PAGE_BYTES_MAX:
                pages.append(bytes(page))
                page.clear()
            page += entry
        if page:
            pages.append(bytes(page))
        return pages

    def load(self, pages: Iterable[bytes]) -> None:
        """Instead of what is known. Raises CorruptedDataError."""
        self._producers.clear()
        for page in pages:
            try:
                self._load_page(page)
            except struct.error as error:
                raise CorruptedDataError(
                    f"a page of producers is cut length={len(page)}"
                ) from error

    def _load_page(self, page: bytes) -> None:
        at = 0
        while at < len(page):
            producer_id, epoch, seen_ms, count = _PRODUCER.unpack_from(page, at)
            at += _PRODUCER.size
            batches = [
                RememberedBatch(*_BATCH.unpack_from(page, at + number * _BATCH.size))
                for number in range(count)
            ]
            at += count * _BATCH.size
            if not 1 <= count <= WINDOW_BATCHES:
                raise CorruptedDataError(
                    f"a producer has no window producer_id={producer_id} batches={count}"
                )
            self._producers[producer_id] = _Producer(epoch, seen_ms, batches)

    def snapshot(self) -> Sequence[tuple[int, int, Sequence[RememberedBatch]]]:
        """Id, epoch and batches of each producer, for checks."""
        return [(each, p.epoch, tuple(p.batches)) for each, p in self._producers.items()]

    def check(self) -> None:
        """Proves the bounds. O(producers)."""
        assert len(self._producers) <= self._producers_max, f"producers={len(self._producers)}"
        for producer_id, producer in self._producers.items():
            count = len(producer.batches)
            assert 1 <= count <= WINDOW_BATCHES, f"producer_id={producer_id} batches={count}"
