"""From records to batches, one for each partition that they go to, and their appends.

    records -> batches_of (pure, for a thread if there are many) -> append_batches -> offsets

Invariants:

- Every batch is made before one is appended: records that cannot be encoded are refused whole.
- Between some appends of a request others have their turn: it may go to thousands of partitions.
- A partition takes all records of a request, or none. Where one takes them and another does not, the error names those
  that did, and never says that nothing was done.
"""

import asyncio
from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.murmur2 import partition_of
from segmentstore.codec.record_batch import Compression, Record, encode_batch
from segmentstore.topics.errors import PartitionUnavailableError, TopicError
from segmentstore.topics.partition_log import Appended
from segmentstore.topics.topics import TopicDescription, Topics

_APPENDS_AT_ONCE: Final = 16
"""Of one request, in one turn of the loop: each batch is proved and copied, in some 0.1 ms if it is short."""


@dataclass(frozen=True, slots=True)
class Batches:
    """What one request produces."""

    places: Sequence[int]
    """The partition of each record, in their order."""
    encoded: Mapping[int, bytes]
    """By partition: its batch."""
    counts: Mapping[int, int]
    """By partition: the records of its batch."""


class PartlyStoredError(Exception):
    """Some partitions have their records of a request, and others have not; `cause` says why of one of them.

    No TopicError: a server of batches, which have one partition each, never meets it.
    """

    def __init__(self, cause: TopicError, stored: Sequence[int]) -> None:
        super().__init__(
            f"{cause}; the records of other partitions are stored partitions={list(stored)}"
        )
        self.cause = cause
        self.stored = stored


def compression_of(description: TopicDescription) -> Compression:
    """What the topic asks for. `producer` leaves it to whatever makes a batch: here that is LZ4."""
    return compression_of_config(description.config)


def compression_of_config(config: Mapping[str, str]) -> Compression:
    """As compression_of, of what is set of a topic."""
    return {
        "uncompressed": Compression.NONE,
        "gzip": Compression.GZIP,
        "snappy": Compression.SNAPPY,
        "zstd": Compression.ZSTD,
    }.get(config.get("compression.type", "producer"), Compression.LZ4)


def batches_of(
    records: Sequence[Record],
    *,
    partition: int | None,
    drawn: int,
    partition_count: int,
    compression: Compression,
) -> Batches:
    """Records go to `partition`; without one by their keys, and those without a key to the one that was `drawn`.

    Raises ValueError for a number that fits no batch.
    """
    places = [
        partition
        if partition is not None
        else drawn
        if record.key is None
        else partition_of(record.key, partition_count=partition_count)
        for record in records
    ]
    grouped: dict[int, list[Record]] = {}
    for place, record in zip(places, records, strict=True):
        grouped.setdefault(place, []).append(record)
    encoded = {
        index: encode_batch(group, compression=compression) for index, group in grouped.items()
    }
    return Batches(places, encoded, {index: len(group) for index, group in grouped.items()})


async def append_batches(topics: Topics, name: str, batches: Batches) -> Mapping[int, Appended]:
    """By partition; durable. Raises TopicError, PartlyStoredError."""
    partitions = {index: await topics.partition(name, index) for index in batches.encoded}
    appended: dict[int, Appended] = {}
    errors: list[TopicError] = []
    appends: dict[int, Future[Appended]] = {}
    for number, (index, batch) in enumerate(batches.encoded.items(), start=1):
        try:
            appends[index] = partitions[index].produce(batch)
        except TopicError as error:
            errors.append(error)
            break
        if number % _APPENDS_AT_ONCE == 0:
            await asyncio.sleep(0)
    outcomes = await asyncio.gather(*appends.values(), return_exceptions=True)
    for index, outcome in zip(appends, outcomes, strict=True):
        if isinstance(outcome, TopicError):
            errors.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            appended[index] = outcome
    if errors:
        # What may have been stored weighs more than what surely was not.
        errors.sort(key=lambda error: not _may_be_stored(error))
        raise PartlyStoredError(errors[0], sorted(appended)) if appended else errors[0]
    return appended


def _may_be_stored(error: TopicError) -> bool:
    return isinstance(error, PartitionUnavailableError) and error.stored is not False
