"""Ranges with the blocks that their reader needs, and where these lie: for the Java reader, which knows no layouts.

- `RangeResolver` looks the blocks of a range up, and leaves out those outside of the bounds of time that
  Spark's filters gave (`_is_before_times`, `_is_behind_times`).
- `ResolvedBlockCache` keeps what it found, for a process that is asked about the same stream again and again. Reading
  indexes and making values of their entries is most of what a plan costs, and between two looks at a stream its
  manifest has often not changed.
- `locate_objects` says where the bytes of objects are, for a reader that knows nothing of object stores:

    /PATH            a file: an object of its own, or a volume
    http(s)://...    an object in a bucket, with the permission to read it
    data:BASE64      an object so small that it lies in the index of the volumes

Invariants:

- The first block is one in which an event is known to begin at or before the start of the range, or the first one
  behind it if there is none; a reader that walks from there meets every event of the range.
- The blocks go on behind the range until another event begins, so that the last event of the range ends in them.
- What Tier 2 does not hold yet are blocks of no object; the reader asks the service for their bytes.
- A version of a manifest says what its container holds for ever, so what was found below one is true of that one: a
  manifest with another version, or another attempt's nonce, is asked anew.
- So many blocks are kept at most; the ranges that were not asked for longest go first.
- A location is where the object is now. Compaction may move it at any time, so a reader that finds nothing there, or
  other bytes than the checksum wants, asks again.
- Nothing is written, and no bytes of chunks are read but by `number_at_head`, where no index knows a number.
"""

import asyncio
import base64
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from segmentstore.contracts.errors import ObjectNotFoundError, SegmentTruncatedError
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.runtime.files import FileSystem
from segmentstore.spark.options import Content
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import BlockLocation, BlockRange, SegmentRange
from segmentstore.spark.scan.range_reader import number_at_head
from segmentstore.spark.tier2_access import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    Tier2Location,
    Tier2Reader,
)
from tier2.manifest.manifest import Manifest
from tier2.object_stores.filesystem import path_of_key
from tier2.object_stores.places import object_directory
from tier2.object_stores.volumes import OBJECT_PREFIX
from tier2.store_reader import ContainerReader
from tier2.volumes.index import blob_key, current_key, decode_blob_row, decode_object_row
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.volume_files import VolumeFiles, is_engine_directory

_LOG = logging.getLogger(__name__)
URL_SECONDS: Final = 12 * 3600
"""How long a URL may be used; then its reader asks for another."""
BLOCKS_MAX: Final = 1 << 16
"""Some 20 MB: those of 64 GB in blocks of 1 MB."""
_SERVED_BYTES: Final = 4 << 20
"""Asked for at once from the service."""
_UNKNOWN_NUMBER: Final = -1
"""Number of an event that nobody counted."""
_NUMBER_TO_COUNT_BACK: Final = -2
"""Number of the first event of a segment, where it is still to be found out."""
Found = tuple[Sequence[BlockLocation], int]
"""The blocks of a range, and where Tier 2 ends."""


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """Where the first byte of an object is."""

    name: str
    position: int = 0


class ResolvedBlockCache:
    """What RangeResolver found."""

    def __init__(self, *, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._found: OrderedDict[tuple[object, ...], Found] = OrderedDict()
        self._count = 0

    def get(self, manifest: Manifest, part: SegmentRange) -> Found | None:
        """What was found for the range below this manifest. O(1)."""
        key = _cache_key(manifest, part)
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def keep(self, manifest: Manifest, part: SegmentRange, found: Found) -> None:
        """`found` is all that is below this manifest."""
        key = _cache_key(manifest, part)
        if key in self._found or len(found[0]) > self._blocks_max:
            return
        self._found[key] = found
        self._count += len(found[0])
        while self._count > self._blocks_max:
            _, (blocks, _) = self._found.popitem(last=False)
            self._count -= len(blocks)


def _cache_key(manifest: Manifest, part: SegmentRange) -> tuple[object, ...]:
    return manifest.store_id, manifest.container_id, manifest.version, manifest.nonce, part


class RangeResolver:
    """Fills in the blocks of ranges."""

    def __init__(
        self,
        view: Tier2Reader | None,
        *,
        asks_service: bool,
        fail_on_data_loss: bool,
        executor: Executor | None,
        placed: ResolvedBlockCache,
    ) -> None:
        """`view` is None where the service alone is asked; `placed` outlives it."""
        self._view = view
        self._placed = placed
        self._executor = executor
        self._asks_service = asks_service
        self._fail_on_data_loss = fail_on_data_loss

    async def place(self, part: SegmentRange) -> BlockRange | None:
        """The range with its blocks; None if nothing of it is left. Raises DataLossError, StorageError."""
        found, end = await self._seen(part)
        blocks = [*found, *self._served(part, found, end)] if self._asks_service else list(found)
        start = max(part.start, blocks[0].offset) if blocks else part.start
        if not blocks or start >= part.end:
            return None
        # What is not there was left out with a warning: a reader must not wait for it.
        part_end = min(part.end, blocks[-1].offset + blocks[-1].length)
        return BlockRange(
            scope=part.scope,
            stream=part.stream,
            segment_id=part.segment_id,
            segment_name=part.segment_name,
            container_id=part.container_id,
            start=start,
            end=part_end,
            content=part.content,
            blocks=tuple(blocks),
        )

    async def _seen(self, part: SegmentRange) -> Found:
        """As _published, once this process sees as much as the plan did."""
        attempts = 1
        while True:
            found, end = await self._published(part)
            if end >= part.end or self._asks_service:
                return found, end
            if self._view is None or attempts == OPEN_ATTEMPTS:
                self._lose(part, head=part.start, tail=end)
                return found, end
            # Volumes are seen up to a second late.
            attempts += 1
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            await self._view.refresh()

    async def _published(self, part: SegmentRange) -> Found:
        """The blocks in Tier 2, and where Tier 2 ends."""
        view = self._view
        if view is None:
            return [], 0
        container = await view.container(view.container_id(part.segment_name))
        if container is None:
            return [], 0
        manifest = container.manifest
        kept = self._placed.get(manifest, part)
        if kept is not None:
            return kept
        record = await container.find(part.segment_name)
        if record is None or record.length <= record.start_offset:
            return [], 0 if record is None else record.length
        start = part.start
        if start < record.start_offset:
            self._lose(part, head=record.start_offset, tail=record.length)
            start = record.start_offset
        try:
            async with aclosing(_blocks_of_range(container, record, part, start)) as blocks:
                found = [block async for block in blocks]
            if found and found[0].event_number == _NUMBER_TO_COUNT_BACK:
                number = await number_at_head(
                    view, container, record, part=part, executor=self._executor
                )
                number = _UNKNOWN_NUMBER if number is None else number
                found[0] = replace(found[0], event_number=number)
            # What was lost is told each time, and the manifest may have moved on meanwhile.
            if start == part.start and container.manifest == manifest:
                self._placed.keep(manifest, part, (found, record.length))
            return found, record.length
        except SegmentTruncatedError as error:
            self._lose(part, head=error.start_offset, tail=record.length)
            return await self._published(replace(part, start=error.start_offset))

    def _served(
        self, part: SegmentRange, published: Sequence[BlockLocation], published_end: int
    ) -> list[BlockLocation]:
        first = max(part.start, published_end) if not published else published_end
        blocks: list[BlockLocation] = []
        for offset in range(first, part.end, _SERVED_BYTES):
            is_first = not published and offset == first
            blocks.append(
                BlockLocation(
                    object_key="",
                    position=offset,
                    stored_length=min(_SERVED_BYTES, part.end - offset),
                    compression=0,
                    offset=offset,
                    length=min(_SERVED_BYTES, part.end - offset),
                    first_event_offset=offset if is_first else None,
                    event_number=0 if is_first and offset == 0 else _UNKNOWN_NUMBER,
                    events_known=is_first,
                    lowest_time_ms=0,
                    highest_time_ms=0,
                )
            )
        return blocks

    def _lose(self, part: SegmentRange, *, head: int, tail: int) -> None:
        loss = DataLossError(
            part.segment_name, start=part.start, end=part.end, head=head, tail=tail
        )
        if self._fail_on_data_loss:
            raise loss
        _LOG.warning("going on without what is lost: %s", loss)


async def _blocks_of_range(
    container: ContainerReader, record: SegmentRecord, part: SegmentRange, start: int
) -> AsyncGenerator[BlockLocation, None]:
    """From where an event is known to begin, until all events of the range have ended."""
    is_bytes = part.content == Content.BYTES
    if start >= record.length and not is_bytes:
        start = record.length - 1
    begin = start if is_bytes else await _beginning_of_events(container, record, start)
    if begin >= record.length:
        return
    bounds = part if isinstance(part, BlockRange) else None
    is_first = True
    async with aclosing(
        container.list_blocks(record.segment_id, begin, record.length)
    ) as stored_blocks:
        async for stored in stored_blocks:
            block = _location_of(stored)
            if is_first and not is_bytes:
                if bounds is not None and _is_before_times(stored, bounds):
                    continue
                if not stored.events_known and stored.offset <= record.start_offset:
                    # Nobody said where events lie: one begins where the segment does.
                    block = replace(
                        block,
                        first_event_offset=record.start_offset,
                        event_number=_NUMBER_TO_COUNT_BACK,
                    )
                elif stored.first_event_offset is None:
                    continue
            is_last = is_bytes or stored.first_event_offset is not None
            if (
                not is_first
                and is_last
                and (
                    stored.offset >= part.end
                    or (bounds is not None and _is_behind_times(stored, bounds))
                )
            ):
                # An event that began before may still end in this block.
                if not is_bytes and not stored.begins_on_event:
                    yield block
                return
            is_first = False
            yield block


async def _beginning_of_events(
    container: ContainerReader, record: SegmentRecord, start: int
) -> int:
    """An offset in the last block in which an event is known to begin at or before `start`."""
    offset = start
    while True:
        async with aclosing(
            container.list_blocks(record.segment_id, offset, record.length)
        ) as blocks:
            block = await anext(blocks)
        first = block.first_event_offset
        if first is not None and first <= start:
            return max(block.offset, record.start_offset)
        if block.offset <= record.start_offset:
            return record.start_offset
        offset = block.offset - 1


def _is_before_times(block: StoredBlock, part: BlockRange) -> bool:
    """All of its events are older than what is asked for."""
    lowest = part.lowest_time_ms
    return lowest is not None and block.times_known and block.highest_time_ms < lowest


def _is_behind_times(block: StoredBlock, part: BlockRange) -> bool:
    """All of its events are newer than what is asked for."""
    highest = part.highest_time_ms
    return highest is not None and block.times_known and block.lowest_time_ms > highest


def _location_of(block: StoredBlock) -> BlockLocation:
    return BlockLocation(
        object_key=block.object_key,
        position=block.position,
        stored_length=block.stored_length,
        compression=block.compression,
        offset=block.offset,
        length=block.length,
        first_event_offset=block.first_event_offset,
        event_number=block.event_number
        if block.first_event_offset is not None
        else _UNKNOWN_NUMBER,
        events_known=block.events_known,
        lowest_time_ms=block.lowest_time_ms,
        highest_time_ms=block.highest_time_ms,
    )


def is_remote(place: Tier2Location) -> bool:
    """Whether every look at an object is a request to somewhere else."""
    return place.place.startswith("s3://")


def locate_objects(
    place: Tier2Location, keys: Iterable[str], *, files: FileSystem
) -> Mapping[str, ObjectLocation]:
    """The objects of these keys; those that are gone are left out. The place must not be open in this process.

    Raises CorruptedDataError, OSError.
    """
    if is_remote(place):
        return _locations_in_bucket(place, keys)
    directory = object_directory(place.place)
    if is_engine_directory(directory, files):
        return _locations_in_volumes(directory, keys, files)
    return {key: ObjectLocation(path_of_key(f"{directory}/objects", key)) for key in keys}


def _locations_in_volumes(
    directory: str, keys: Iterable[str], files: FileSystem
) -> Mapping[str, ObjectLocation]:
    # Only names of files are asked for, so neither randomness nor the identity matters.
    volumes = VolumeFiles(f"{directory}/volumes", files=files, random=Random(0), engine_id=b"")
    found: dict[str, ObjectLocation] = {}
    index = LmdbIndex(f"{directory}/index", read_only=True)
    try:
        for key in keys:
            try:
                found[key] = _location_in_index(index, volumes, key)
            except ObjectNotFoundError:
                continue
    finally:
        index.close()
    return found


def _location_in_index(index: LmdbIndex, volumes: VolumeFiles, key: str) -> ObjectLocation:
    content = index.get(current_key((OBJECT_PREFIX + key).encode()))
    if content is None:
        raise ObjectNotFoundError(f"object does not exist key={key}")
    row = decode_object_row(content)
    if row.inline is not None:
        return ObjectLocation("data:" + base64.b64encode(row.inline).decode())
    blob = index.get(blob_key(row.record.content_hash))
    if blob is None:
        raise ObjectNotFoundError(f"object has no bytes key={key}")
    place = decode_blob_row(blob)
    return ObjectLocation(volumes.path(place.volume), place.blob_offset)


def _locations_in_bucket(place: Tier2Location, keys: Iterable[str]) -> Mapping[str, ObjectLocation]:
    # Only those who use S3 need its client library.
    import botocore.session
    from botocore.config import Config

    from tier2.object_stores.s3.settings import parse_s3_url

    bucket, prefix = parse_s3_url(place.place)
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=place.region,
        endpoint_url=place.endpoint or None,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if place.endpoint else "auto"},
        ),
    )
    found: dict[str, ObjectLocation] = {}
    for key in keys:
        address = {"Bucket": bucket, "Key": f"{prefix}/{key}" if prefix else key}
        url = client.generate_presigned_url("get_object", Params=address, ExpiresIn=URL_SECONDS)
        found[key] = ObjectLocation(str(url))
    return found
