"""Objects that look like files of a partition and are none: found, and proved to be none, before they are deleted
(kept_objects.py says when).

An object is dead when its put was not followed by a registration: its owner died, or was one no more; or its file was
forgotten by retention or compaction, and the process died before it was deleted.

Invariants:

- An object is registered only by the opening of the partition that put it. The proof ends every other opening that was
  there before it. So what another one had put when it was listed is registered when the proof is there, or never.
- A deletion may reach the object store late, when another owner is at work. It must not meet an object of that owner: a
  name is deleted only if it is never given again. Names with a number never are. A plain name is given for a range
  behind COLD_END alone, and COLD_END never falls.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Final

from segmentstore.codec.topic_files import TOPICS_PREFIX, RecordFileName, files_prefix
from segmentstore.contracts.segments import Segment
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.record_files.registered_files import RegisteredFiles

_NAMES_AT_ONCE: Final = 1_000


async def find_dead_files(
    segment: Segment,
    *,
    topic: str,
    partition: int,
    files: RecordFiles,
    registered: RegisteredFiles,
    spared: Collection[str],
    prove: Callable[[], Awaitable[None]],
) -> AsyncGenerator[list[str], None]:
    """Their keys, at most _NAMES_AT_ONCE at a time; they stay dead. Nothing of the partition may be put meanwhile. Hold
    it in `aclosing`.

    `spared`: keys that this owner keeps although they are not registered. `prove` returns if this still is the owner,
    as the log has it, and ends every other opening; it raises else.

    Raises StorageError, FileGoneError, what `prove` raises.
    """
    suspects = _suspects(segment, topic, partition, files, registered, spared)
    async with aclosing(suspects) as pages:
        async for names in pages:
            await prove()
            # By now their registration would be seen.
            yield [
                name.key for name in names if not await _is_registered(segment, name, registered)
            ]


async def files_of_unknown_topics(
    files: RecordFiles, is_known: Callable[[str], bool]
) -> AsyncGenerator[tuple[str, list[str]], None]:
    """Keys of what is named like files of topics that are not known, some of one topic at a time. O(objects), and
    bounded memory. Hold it in `aclosing`. Raises StorageError."""
    topic, found = "", list[str]()
    async with aclosing(files.keys(TOPICS_PREFIX)) as keys:
        async for key in keys:
            name = RecordFileName.parsed(key)
            if name is None or is_known(name.topic):
                continue
            if found and (name.topic != topic or len(found) >= _NAMES_AT_ONCE):
                yield topic, found
                found = []
            topic = name.topic
            found.append(key)
    if found:
        yield topic, found


async def _suspects(
    segment: Segment,
    topic: str,
    partition: int,
    files: RecordFiles,
    registered: RegisteredFiles,
    spared: Collection[str],
) -> AsyncGenerator[list[RecordFileName], None]:
    """Names that are not registered now and are never given again, some at a time."""
    found: list[RecordFileName] = []
    async with aclosing(files.keys(files_prefix(topic, partition))) as keys:
        async for key in keys:
            name = RecordFileName.parsed(key)
            if name is None or (not name.name_number and name.first_offset >= registered.cold_end):
                continue
            if key not in spared and not await _is_registered(segment, name, registered):
                found.append(name)
            if len(found) >= _NAMES_AT_ONCE:
                yield found
                found = []
    if found:
        yield found


async def _is_registered(
    segment: Segment, name: RecordFileName, registered: RegisteredFiles
) -> bool:
    number = await registered.at_offset(segment, name.first_offset)
    if number > registered.last:
        return False
    file = await registered.get(segment, number)
    return file.name(name.topic, name.partition) == name
