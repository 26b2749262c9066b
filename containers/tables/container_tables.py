"""The tables of one container: verbs by name, and the loop that compacts them."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from containers.attributes.extended_attributes import AttributeFetches
from containers.container_settings import TableSettings
from containers.held_changes import HeldChanges
from containers.log.operation_processor import OperationProcessor
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.ownership import Ownership
from containers.segments.segment_mapper import SegmentMapper
from containers.tables.table_batch import counter
from containers.tables.table_compaction import TableCompaction
from containers.tables.table_handle import TableHandle
from containers.tables.table_index import TABLE, IndexScan, is_table
from containers.tables.table_reader import TableReader
from segmentstore.contracts.errors import (
    InvalidRequestError,
    NotATableError,
    SegmentNotFoundError,
    TableNotEmptyError,
)
from segmentstore.contracts.identifiers import (
    SEGMENT_TYPE,
    TABLE_ENTRY_COUNT,
    TABLE_KEY_LENGTH,
    SegmentId,
)
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.contracts.storage import ReadOnlyStorage
from segmentstore.contracts.tables import KEY_BYTES_MAX

_SCANS_MAX = 4
"""Tables whose sorted keys are remembered between the pages of iterations."""


class ContainerTables:
    """Implements contracts.tables.TableApi for the tables of one container."""

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        mapper: SegmentMapper,
        processor: OperationProcessor,
        ownership: Ownership,
        held: HeldChanges,
        fetches: AttributeFetches,
        storage: ReadOnlyStorage,
        executor: Executor | None,
        settings: TableSettings,
    ) -> None:
        self._metadata = metadata
        self._mapper = mapper
        self._processor = processor
        self._ownership = ownership
        self._held = held
        self._fetches = fetches
        self._storage = storage
        self._executor = executor
        self._settings = settings
        self._scans: OrderedDict[SegmentId, IndexScan] = OrderedDict()
        self.compaction = TableCompaction(processor=processor, settings=settings)

    @asynccontextmanager
    async def open_table(self, name: str) -> AsyncIterator[TableHandle]:
        """Raises SegmentNotFoundError, NotATableError."""
        segment = await self._mapper.resolve(name)
        try:
            if not is_table(segment):
                raise NotATableError(f"segment is not a table name={name!r}")
            yield TableHandle(
                segment=segment,
                processor=self._processor,
                ownership=self._ownership,
                held=self._held,
                fetches=self._fetches,
                reader=self._reader(segment),
                scan=lambda: self._scan(segment),
                settings=self._settings,
            )
        finally:
            segment.pins -= 1

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        """Raises SegmentExistsError, InvalidRequestError."""
        if not 0 <= key_length <= KEY_BYTES_MAX:
            raise InvalidRequestError(
                f"keys of a table have at most {KEY_BYTES_MAX} bytes key_length={key_length}"
            )
        segment = await self._mapper.create(
            name,
            [AttributeUpdate(SEGMENT_TYPE, TABLE), AttributeUpdate(TABLE_KEY_LENGTH, key_length)],
        )
        segment.pins -= 1

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        """Raises TableNotEmptyError, SegmentNotFoundError, NotATableError."""
        async with self.open_table(name):
            segment = self._metadata.get(name)
            if segment is None:
                raise SegmentNotFoundError(name)
            while must_be_empty:
                # What was submitted before is judged and durable: what it left is no secret.
                await asyncio.shield(self._processor.barrier(segment))
                if counter(segment.attributes.committed_value(TABLE_ENTRY_COUNT)):
                    raise TableNotEmptyError(name)
                if not segment.waiting_requests and not counter(
                    segment.attributes.pending_value(TABLE_ENTRY_COUNT)
                ):
                    break
            await asyncio.shield(self._processor.delete(segment))

    def _reader(self, segment: SegmentMetadata) -> TableReader:
        return TableReader(segment=segment, fetches=self._fetches, settings=self._settings)

    def _scan(self, segment: SegmentMetadata) -> IndexScan:
        scan = self._scans.pop(segment.segment_id, None)
        if scan is None or not scan.serves(segment):
            scan = IndexScan(
                segment=segment,
                storage=self._storage,
                executor=self._executor,
                settings=self._settings,
            )
        self._scans[segment.segment_id] = scan
        if len(self._scans) > _SCANS_MAX:
            self._scans.popitem(last=False)
        return scan

    # --- background work -------------------------------------------------------------------------

    async def run(self) -> None:
        """Compact what is due, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.compact_seconds)
            await self.compact_due()

    async def compact_due(self) -> None:
        """One round over the active tables, one after the other."""
        for segment in list(self._metadata.by_id.values()):
            if not is_table(segment) or not self.compaction.is_due(segment):
                continue
            if self._metadata.by_id.get(segment.segment_id) is not segment:
                continue
            segment.pins += 1
            try:
                await self.compaction.compact(segment, self._reader(segment))
            finally:
                segment.pins -= 1
