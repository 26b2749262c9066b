"""What a process does with ledgers before anything depends on it, so that the first log it opens finds nothing cold.

The first ledger that a JVM makes, opens and reads takes seconds on a busy machine, because every class is loaded and
none is compiled. A node does that before it registers: nothing is given to it before, and the others go on serving.

Invariants:

- No log changes: a record is read, a ledger that is closed is read without being fenced, and a ledger is made that no
  record names. It stays empty, and has the labels of its log's present owner: if the process dies in between,
  `segmentstore log sweep` finds it.
- Nothing relies on it: what fails is said and left.
"""

import asyncio
import logging
from collections.abc import Iterable

from segmentstore.contracts.errors import DurableDataLogError
from tier1.bookkeeper.ledgers import LedgerClient
from tier1.bookkeeper.log_record import ledger_labels
from tier1.bookkeeper.metadata_store import MetadataStore
from tier1.bookkeeper.owned_record import read_record
from tier1.bookkeeper.settings import BookKeeperLogSettings

_LOG = logging.getLogger(__name__)
_SECONDS_MAX = 10.0
_ENTRIES = 8
"""They may all be of the largest size."""


async def rehearse(
    paths: Iterable[str],
    *,
    ledgers: LedgerClient,
    metadata: MetadataStore,
    settings: BookKeeperLogSettings,
) -> None:
    """With the first of these logs that there is; in a new store with none."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            await _rehearse(paths, ledgers=ledgers, metadata=metadata, settings=settings)
    except (TimeoutError, DurableDataLogError) as error:
        _LOG.info("the rehearsal of ledgers ended early: %s", str(error) or "slow")
    _LOG.info("rehearsed ledgers seconds=%.3f", loop.time() - began)


async def _rehearse(
    paths: Iterable[str],
    *,
    ledgers: LedgerClient,
    metadata: MetadataStore,
    settings: BookKeeperLogSettings,
) -> None:
    for path in paths:
        record = await read_record(path, metadata=metadata)
        if record is None:
            continue
        writer = await ledgers.create(settings.quorum, labels=ledger_labels(path, record))
        await writer.close()
        reader = await ledgers.open_fenced(writer.ledger_id)
        await reader.close()
        await ledgers.delete(writer.ledger_id)
        closed = [
            each for each in record.ledgers if not each.is_open and each.last_address is not None
        ]
        if closed:
            reader = await ledgers.open_unfenced(closed[-1].ledger_id)
            await reader.read(0, min(reader.last_entry, _ENTRIES - 1))
            await reader.close()
        return
