"""Copies the files of topics' records that a copy of containers names, to where the copy is.

Behind a partition's flush point its files are the only copy of its records, and they lie outside of its container.
Which they are, the attributes of its segment say (segmentstore/codec/topic_files.py).

- The containers were copied before: what their copy names is copied, no more.
- Each file is proved as it is copied. One that is damaged is copied as it is, and named. One that is missing ends the
  copy, or is named if the caller goes on without it; unless its topic is being deleted.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from segmentstore.codec.topic_files import FIRST_FILE, LAST_FILE, RETIRED, RegisteredFile, count_of
from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.topics.record_files.published_files import published_files
from segmentstore.topics.topic_records import parse_partition_segment
from tier2.offline.record_file_proof import damages_of_registered_file
from tier2.store_reader import ContainerReader


async def copy_record_files(
    reader: ContainerReader,
    source: ObjectStore,
    target: ObjectStore,
    *,
    go_on: bool,
    progress: Callable[[int], object] = lambda _: None,
) -> list[str]:
    """Sentences about files that are damaged, or missing. `progress` is called with the bytes of each file.

    O(bytes); memory: the largest file. Raises ObjectNotFoundError for one that is missing, unless the caller wants to
    `go_on`, CorruptedDataError (a registration), StorageError.
    """
    damage: list[str] = []
    async with aclosing(_keys(reader)) as keys:
        async for key, file, may_be_gone in keys:
            try:
                content = (await source.get(key)).content
            except ObjectNotFoundError:
                if may_be_gone:
                    continue
                if not go_on:
                    raise
                damage.append(f"records are lost: their file is not there key={key}")
                continue
            damage += await reader.components.offload(
                partial(damages_of_registered_file, file=file, key=key), content
            )
            await target.put(key, [content])
            progress(len(content))
    return damage


async def _keys(reader: ContainerReader) -> AsyncGenerator[tuple[str, RegisteredFile, bool], None]:
    """Of the files of all partitions in the container, and whether they may be gone."""
    async with aclosing(reader.scan_layouts()) as layouts:
        async for layout in layouts:
            place = parse_partition_segment(layout.record.name)
            if place is None:
                continue
            record = layout.record
            first, last = (
                count_of(record.core_attributes, each, name=record.name)
                for each in (FIRST_FILE, LAST_FILE)
            )
            is_retired = RETIRED in record.core_attributes
            files = published_files(reader, record.segment_id, first=first, last=last)
            async with aclosing(files) as found:
                async for _, file in found:
                    yield file.name(*place).key, file, is_retired
