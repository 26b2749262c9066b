"""Rows of `transactions`: the controller's records, from the table segment where it keeps them.

_system/_tables/transactions      record `transaction/<scope>/<stream>/<32 hex digits>` per transaction
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from segmentstore.codec.stream_names import transaction_epoch_of
from segmentstore.codec.stream_records.record_places import REMOVED
from segmentstore.codec.stream_records.transaction_record import NO_TIMESTAMP, TransactionRecord
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.spark.metadata_tables.table_rows import Row, time_of
from segmentstore.spark.published_table import PublishedTable

TRANSACTIONS_TABLE: Final = "_system/_tables/transactions"
_KIND: Final = "transaction/"


async def transaction_rows(
    table: PublishedTable, *, scope: str, stream: str
) -> AsyncGenerator[Row, None]:
    """Of one stream, of a scope, or (both empty) of all. Hold it in `aclosing`. Raises StorageError."""
    prefix = _KIND + (f"{scope}/" if scope else "") + (f"{stream}/" if stream else "")
    async with aclosing(table.scan(prefix)) as entries:
        async for key, value in entries:
            if value != REMOVED:
                yield transaction_row(key, TransactionRecord.decode(value))


def transaction_row(key: str, record: TransactionRecord) -> Row:
    """One record under its key. Raises CorruptedDataError for another key."""
    parts = key.removeprefix(_KIND).split("/")
    if len(parts) != 3 or len(parts[2]) != 32:
        raise CorruptedDataError(f"table of transactions has a foreign key key={key!r}")
    scope, stream, digits = parts
    return {
        "scope": scope,
        "stream": stream,
        "transaction_id": digits,
        "epoch": transaction_epoch_of(int(digits, 16)),
        "state": record.state.name,
        "created": time_of(record.created_ms),
        "completed": time_of(record.completed_ms),
        "lease_ms": record.lease_ms,
        "commit_number": record.commit_number or None,
        "writer": record.writer or None,
        "writer_timestamp": None if record.timestamp == NO_TIMESTAMP else record.timestamp,
        "stages": [f"{each:032x}" for each in record.stages],
        "joins": None if record.joins is None else f"{record.joins:032x}",
    }
