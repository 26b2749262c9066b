"""The door's suite over the tables of a container, and over the tables in memory that other rooms' tests use."""

import asyncio
import struct
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from containers.segment_container import StreamSegmentContainer
from containers.tables.table_record import RECORD_HEADER_BYTES, encode_update
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.tables import ENTRY_BYTES_MAX, TableApi
from tests.containers.node import MemoryTiers, running
from tests.contracts.table_suite import TableSuite, entry
from tests.reference.memory_tables import MemoryTables

RECORD_OF_TWO_GIGABYTES = struct.pack(">Biiq", 1, 1, (1 << 31) - 1, -1) + b"k"


class TestContainerTables(TableSuite):
    @pytest.fixture
    async def tables(self) -> AsyncIterator[StreamSegmentContainer]:
        async with running(MemoryTiers()) as container:
            yield container
            container.check()

    async def test_changes_from_inside_the_last_record_are_refused(
        self, tables: StreamSegmentContainer
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            # The value looks like the beginning of a record that is longer than the table.
            looks_longer = encode_update(b"k", b"v" * 1000)[: RECORD_HEADER_BYTES + 5]
            await table.update([entry(b"a", looks_longer)])
            length = table.info().length
            for position in (length - 1, length - len(looks_longer), length - RECORD_HEADER_BYTES):
                with pytest.raises(InvalidRequestError):
                    async with asyncio.timeout(60):
                        await table.read_delta(position=position, count=10)

    async def test_changes_from_inside_a_value_take_no_more_memory_than_a_record(
        self, tables: StreamSegmentContainer
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            # The value looks like the beginning of a record of two gigabytes.
            looks_longer = RECORD_OF_TWO_GIGABYTES + bytes(100)
            await table.update([entry(b"a", looks_longer)])
            position = table.info().length - len(looks_longer)
            for number in range(20):
                await table.update([entry(b"%d" % number, bytes(ENTRY_BYTES_MAX - 10))])
            # What a flush takes beside the call would be counted as well.
            await tables.flush()
            tracemalloc.start()
            try:
                with pytest.raises(InvalidRequestError):
                    await table.read_delta(position=position, count=10)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 4 * ENTRY_BYTES_MAX, f"of a table of {table.info().length} bytes"


class TestMemoryTables(TableSuite):
    @pytest.fixture
    def tables(self) -> TableApi:
        return MemoryTables()
