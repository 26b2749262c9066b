"""Ids of idempotent producers. An id is given out once, whatever is restarted, moved or lost.

A partition tells a repeated batch by its producer's id. If an id were given out twice, records of the second producer
would be taken for repetitions of the first one's: acknowledged, and never stored.

Ids are given out of blocks. Taking a block is one conditional update of one entry of a table, so two processes never
take the same one; what is left of a block at the end of a process is never used.

| part | bytes |
|---|---|
| table `_system/_topics/producer_ids` | one entry |
| key | `next` |
| value | version 1, u64 big endian: ids from here on are free |

Invariants:

- A block is durable before an id of it is given out.
- A block begins at the free ids or, if that is more, at 1000 times the present time in Unix milliseconds. So the ids
  also differ from those of a table whose last entries were lost with Tier 1. Both, the table and the clock, would have
  to go back for an id to come again; and no store takes a million ids in each second.
"""

import asyncio
import logging
import struct
from typing import Final

from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentExistsError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.tables import NOT_EXISTS, Table, TableApi, TableEntry
from segmentstore.runtime.cancellation import await_shielded, retrieve_exception
from segmentstore.runtime.clock import WallClock

_LOG = logging.getLogger(__name__)

PRODUCER_IDS_TABLE: Final = "_system/_topics/producer_ids"
BLOCK_IDS: Final = 1_000

_KEY: Final = b"next"
_VERSION: Final = 1
_VALUE = struct.Struct(">BQ")
_IDS_PER_MS: Final = 1_000
_ID_MAX: Final = (1 << 63) - 1


class ProducerIds:
    """start(), then next() any number of times."""

    def __init__(self, *, tables: TableApi, wall_clock: WallClock) -> None:
        self._tables = tables
        self._wall_clock = wall_clock
        self._next = 0
        self._end = 0
        """Of the block in hand."""
        self._taking = asyncio.Lock()

    async def start(self) -> None:
        """Make the table if there is none. Raises what the interface of tables raises."""
        try:
            await self._tables.create_table(PRODUCER_IDS_TABLE)
        except SegmentExistsError:
            _LOG.debug("producer ids were given out before")

    async def next(self) -> int:
        """An id that no producer had before: 0 or more, below 2^63.

        Raises what the interface of tables raises; then no id was given out, and the caller may ask again.
        """
        while self._next == self._end:
            async with self._taking:
                # The one before may have taken a block that is not used up.
                if self._next == self._end:
                    await self._take_block()
        given = self._next
        self._next += 1
        return given

    async def _take_block(self) -> None:
        async with self._tables.open_table(PRODUCER_IDS_TABLE) as table:
            first: int | None = None
            while first is None:
                first = await self._try_to_take(table)
        self._next, self._end = first, first + BLOCK_IDS

    async def _try_to_take(self, table: Table) -> int | None:
        """The first id of a block that is durable and ours; None if another process took one meanwhile."""
        (entry,) = await table.get([_KEY])
        free = 0 if entry is None else decode_free_ids(entry.value)
        first = max(free, self._wall_clock.now_ms() * _IDS_PER_MS)
        assert first + BLOCK_IDS <= _ID_MAX, f"producer ids are used up first={first}"
        value = encode_free_ids(first + BLOCK_IDS)
        version = NOT_EXISTS if entry is None else entry.version
        taken = table.update([TableEntry(_KEY, value, version)])
        taken.add_done_callback(retrieve_exception)
        try:
            await await_shielded(taken)
        except (TableVersionError, TableKeyNotFoundError) as error:
            _LOG.info("another process took producer ids: %s", error)
            return None
        return first


def encode_free_ids(first: int) -> bytes:
    """The bytes of the entry."""
    return _VALUE.pack(_VERSION, first)


def decode_free_ids(value: bytes) -> int:
    """From where on ids are free. Raises CorruptedDataError."""
    try:
        version, first = _VALUE.unpack(value)
    except struct.error as error:
        raise CorruptedDataError(f"producer ids do not parse value={value.hex()}") from error
    if version != _VERSION:
        raise CorruptedDataError(f"producer ids have an unknown version version={version}")
    return int(first)
