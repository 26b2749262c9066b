"""Segment verbs that would break a table are refused, and break nothing."""

import pytest

from containers.container_settings import ContainerSettings, TableSettings
from containers.tables.table_index import TABLE
from segmentstore.contracts.errors import InvalidRequestError, NotATableError
from segmentstore.contracts.identifiers import (
    SEGMENT_TYPE,
    TABLE_ENTRY_COUNT,
    TABLE_KEY_LENGTH,
    TABLE_LIVE_BYTES,
    AttributeKey,
)
from segmentstore.contracts.segments import AttributeUpdate
from tests.containers.node import MemoryTiers, running
from tests.contracts.table_suite import all_entries, entry

UPDATE = AttributeUpdate(AttributeKey(b"k"), 1)


async def test_a_table_takes_no_segment_verb_that_changes_its_bytes_or_index() -> None:
    async with running(MemoryTiers()) as container:
        await container.create_table("table")
        await container.create("segment")
        async with container.open_table("table") as table:
            await table.update([entry(b"key", b"value")])
        async with container.open_segment("table") as handle:
            with pytest.raises(NotATableError, match="by the verbs of tables"):
                await handle.append(b"not a record")
        with pytest.raises(NotATableError):
            await container.update_attributes("table", [UPDATE])
        with pytest.raises(NotATableError):
            await container.truncate("table", 5)
        with pytest.raises(NotATableError):
            await container.merge("table", "segment", seal_source=True)
        with pytest.raises(NotATableError):
            await container.merge("segment", "table", seal_source=True)
        async with container.open_table("table") as table:
            assert [found.value for found in await all_entries(table)] == [b"value"]


async def test_a_segment_is_not_made_a_table_once_it_exists() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("segment")
        to_table = [AttributeUpdate(TABLE_KEY_LENGTH, 0)]
        with pytest.raises(InvalidRequestError, match="only a new segment"):
            await container.update_attributes("segment", to_table)
        async with container.open_segment("segment") as handle:
            with pytest.raises(InvalidRequestError, match="only a new segment"):
                await handle.append(b"bytes", attribute_updates=to_table)
            assert handle.info().length == 0


async def test_a_segment_that_bears_the_type_of_a_table_keeps_its_bytes() -> None:
    """A type is an attribute like others, and a caller that writes it has no table: nothing is compacted away."""
    settings = ContainerSettings(tables=TableSettings(compact_bytes_min=100))
    async with running(MemoryTiers(), settings=settings) as container:
        await container.create("segment")
        await container.update_attributes("segment", [AttributeUpdate(SEGMENT_TYPE, TABLE)])
        async with container.open_segment("segment") as handle:
            await handle.append(b"x" * 1000)
            await container._components.tables.compact_due()
            assert handle.info().start_offset == 0
        with pytest.raises(NotATableError, match="not a table"):
            async with container.open_table("segment"):
                pass


async def test_the_index_of_a_table_is_not_among_its_attributes() -> None:
    """It is as long as the table has keys, and a look at one segment is no reason to read all of it."""
    tiers = MemoryTiers()
    given = [
        AttributeUpdate(AttributeKey(key), number)
        for number, key in enumerate((b"\x00own", b"\x02own", b"own", b"\xff" * 255))
    ]
    own = {update.key: update.value for update in given}
    async with running(tiers) as container:
        await container.create("table", [AttributeUpdate(TABLE_KEY_LENGTH, 0), *given])
        async with container.open_table("table") as table:
            await table.update([entry(b"key-%d" % number, b"value") for number in range(300)])
        told = await container.attributes("table")
        assert {key: told[key] for key in own} == own
        counted = {TABLE_KEY_LENGTH, TABLE_ENTRY_COUNT, TABLE_LIVE_BYTES}
        assert told.keys() - own.keys() == counted
        await container.flush()
    async with running(tiers) as container:
        assert await container.attributes("table") == told
        segment = container.container_metadata.last_of_name("table")
        assert segment is not None
        assert not segment.attributes.complete
        async with container.open_table("table") as table:
            assert len(await all_entries(table)) == 300
        assert await container.attributes("table") == told
