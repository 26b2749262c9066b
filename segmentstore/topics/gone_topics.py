"""What is left of topics that are deleted: their files, segments that came too late; found, proved, deleted.

| what | is deleted when |
|---|---|
| files of a topic that is being deleted | its segments are retired, so that no process registers a file any more |
| objects of a topic that is gone | behind the listing and behind a mark, the catalogue names no such topic |
| an empty segment of a partition of a topic that is gone | behind the listing, the catalogue has no such id |

Invariants:

- A topic's files are deleted before its segments, and behind a mark that its name was used (NAMES_USED). What a listing
  finds is deleted only if the record was there still behind the listing: else the files may be those of a later topic
  of the same name.
- What is named like a file of a topic that is gone (a put came late, or a backup kept it) is deleted when, behind the
  listing and behind that mark, the catalogue names no such topic and there is no segment of one. From the mark on no
  name is given that was listed before, so a deletion that comes late meets none of a topic that is made anew.
- A segment with records is kept, whatever the catalogue says: that may have been restored as of an earlier time.

Nothing here waits until Tier 2 has the deletion: it was asked for, and a Tier 2 that is full or away would hold it up.
A store that is recovered from Tier 2 alone before that lists the topic again, without its files: it can be deleted
again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final

from segmentstore.codec.topic_files import RecordFileName, topic_prefix
from segmentstore.contracts.errors import (
    ObjectExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.segments import SegmentApi
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.topics.catalogue import Catalogue, Topic
from segmentstore.topics.errors import (
    CatalogueConflictError,
    TopicsUnavailableError,
)
from segmentstore.topics.partition_files import NAMES_USED
from segmentstore.topics.record_files.dead_files import files_of_unknown_topics
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.record_files.registered_files import FILES_PER_UPDATE_MAX, RegisteredFiles
from segmentstore.topics.topic_records import (
    PARTITION_PREFIX,
    partition_segment_name,
    partition_segments_prefix,
    topic_id_of_segment,
)

_LOG = logging.getLogger(__name__)

_LISTED_KEYS_MAX: Final = 1_000
"""Keys of objects that are deleted behind one look at the catalogue."""
_SEGMENTS_PER_PAGE: Final = 1_000


class GoneTopics:
    """Any process deletes; what two of them do at once is done by either."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        refresh: Callable[[], Awaitable[None]],
        locks: KeyedLocks[str],
        all_segments: SegmentApi,
        record_files: RecordFiles | None,
    ) -> None:
        """`refresh` reads the catalogue again. `locks`: by name of topic, held by what changes it."""
        self._catalogue = catalogue
        self._refresh = refresh
        self._locks = locks
        self._all_segments = all_segments
        self._record_files = record_files

    # --- of a topic that is being deleted ----------------------------------------------------

    async def delete_files(self, topic: Topic) -> None:
        """Of all partitions, while their segments still say which there are. Raises TopicsUnavailableError."""
        files = self._record_files
        if files is None:
            return
        prefix = topic_prefix(topic.name)
        try:
            listed = False
            async with aclosing(files.keys(prefix)) as keys:
                async for key in keys:
                    listed = listed or RecordFileName.parsed(key) is not None
                    if listed:
                        break
            indexes = range(topic.record.partitions_target)
            have_records = [await self._had_records(topic, index) for index in indexes]
            if not listed and not any(have_records):
                return
            # From here on no topic of this name gives plain names: a deletion that comes late meets none of its files.
            # Also for records without files: one may be on its way.
            with suppress(ObjectExistsError):
                await files.put(prefix + NAMES_USED, b"")
            for index, has_records in enumerate(have_records):
                if has_records:
                    await self._delete_registered(topic, index, files)
            found: list[str] = []
            async with aclosing(files.keys(prefix)) as keys:
                async for key in keys:
                    if RecordFileName.parsed(key) is None:
                        continue
                    found.append(key)
                    if len(found) >= _LISTED_KEYS_MAX:
                        await self._delete_listed(topic, found, files)
                        found.clear()
            await self._delete_listed(topic, found, files)
        except SegmentStoreError as error:
            raise TopicsUnavailableError(
                f"files of a deleted topic are not deleted yet name={topic.name!r}: {error}"
            ) from error

    async def _delete_listed(self, topic: Topic, keys: Sequence[str], files: RecordFiles) -> None:
        """Another process may have finished the deletion meanwhile: then these may be files of another topic."""
        if keys and not await self._catalogue.is_current(topic):
            raise CatalogueConflictError(f"another process deleted the topic name={topic.name!r}")
        for key in keys:
            await files.delete(key)

    async def _had_records(self, topic: Topic, index: int) -> bool:
        with suppress(SegmentNotFoundError):
            info = await self._all_segments.info(
                partition_segment_name(topic.name, topic.record.topic_id, index)
            )
            return info.length > 0
        return False

    async def _delete_registered(self, topic: Topic, index: int, files: RecordFiles) -> None:
        """A listing may not have them yet."""
        name = partition_segment_name(topic.name, topic.record.topic_id, index)
        registered = RegisteredFiles(known_max=1)
        async with self._all_segments.open_segment(name) as segment:
            registered.load(segment.info())
            number = registered.first
            while number <= registered.last:
                several = await registered.some(segment, number, FILES_PER_UPDATE_MAX)
                for file in several:
                    await files.delete(file.name(topic.name, index).key)
                number += len(several)

    # --- of topics that are gone -------------------------------------------------------------

    async def sweep_files(self) -> int:
        """Deletes files of topics that are gone; how many there were. Raises TopicsUnavailableError."""
        files, deleted = self._record_files, 0
        if files is None:
            return 0
        try:
            unknown = files_of_unknown_topics(files, lambda name: name in self._catalogue.all())
            async with aclosing(unknown) as found:
                async for name, keys in found:
                    async with self._locks.held(name):
                        deleted += await self._delete_if_gone(name, keys, files)
        except SegmentStoreError as error:
            raise TopicsUnavailableError(
                f"files of topics that are gone are not deleted yet: {error}"
            ) from error
        return deleted

    async def _delete_if_gone(self, name: str, keys: Sequence[str], files: RecordFiles) -> int:
        with suppress(ObjectExistsError):
            await files.put(topic_prefix(name) + NAMES_USED, b"")
        await self._refresh()
        # Of a catalogue that lost its end with Tier 1 partitions may have outlived the record.
        prefix = partition_segments_prefix(name)
        if name in self._catalogue.all() or await self._all_segments.list_segments(prefix, limit=1):
            return 0
        deleted = 0
        for key in keys:
            if not await files.delete(key):
                break  # a backup is kept
            deleted += 1
        return deleted

    async def sweep_segments(self) -> None:
        """Deletes empty segments of topics that are gone: a process that stood still may have made them since.

        A record is there before its segments, and an id is never given again: what is listed before the catalogue is
        read, and has no record then, has none any more. One with records is kept: the catalogue may have been restored
        as of an earlier time than the segment.
        """
        try:
            after = PARTITION_PREFIX
            while True:
                page = await self._all_segments.list_segments(
                    PARTITION_PREFIX, after, _SEGMENTS_PER_PAGE
                )
                await self._refresh()
                ids = {each.record.topic_id for each in self._catalogue.all().values()}
                for info in page:
                    topic_id = topic_id_of_segment(info.name)
                    if topic_id is None or topic_id in ids:
                        continue
                    if info.length > 0:
                        _LOG.warning("segment=%s has records and belongs to no topic", info.name)
                        continue
                    _LOG.info("segment=%s belongs to no topic any more, and is deleted", info.name)
                    with suppress(SegmentNotFoundError):
                        await self._all_segments.delete(info.name)
                if len(page) < _SEGMENTS_PER_PAGE:
                    return
                after = page[-1].name
        except (SegmentStoreError, TopicsUnavailableError) as error:
            _LOG.info("segments of deleted topics are looked for later: %s", error)
