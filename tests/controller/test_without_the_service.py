"""A reader that has only tables and the record formats finds a stream's segments, their order and its head (H78)."""

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import ScopeRecord
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    StreamStateRecord,
    TruncationRecord,
)
from tests.controller.cluster import Cluster
from tests.reference.memory_tables import MemoryTables

EPOCH = 1 << 32


async def value(tables: MemoryTables, table: str, key: str) -> bytes:
    async with tables.open_table(table) as opened:
        entry = (await opened.get([key.encode()]))[0]
    assert entry is not None
    return entry.value


async def test_h78_a_stream_is_found_without_the_service() -> None:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=2)
    await cluster.streams.scaling.scale("s", "a", sealed=[0], ranges=[(0.0, 0.2), (0.2, 0.5)])
    cut = {1: 0, EPOCH | 2: 0, EPOCH | 3: 0}
    await cluster.streams.truncation.truncate("s", "a", cut)
    tables = cluster.memory_tables

    scope = ScopeRecord.decode(
        await value(tables, record_keys.SCOPES_TABLE, record_keys.scope("s"))
    )
    table = record_keys.scope_table("s", scope.incarnation)
    state = StreamStateRecord.decode(await value(tables, table, record_keys.state("a")))
    epochs = [
        EpochRecord.decode(await value(tables, table, record_keys.epoch("a", number)))
        for number in range(state.last_epoch + 1)
    ]
    truncation = TruncationRecord.decode(await value(tables, table, record_keys.truncation("a")))

    assert [[segment.segment_id for segment in epoch.segments] for epoch in epochs] == [
        [0, 1],
        [EPOCH | 2, EPOCH | 3, 1],
    ]
    assert truncation.head == cut
