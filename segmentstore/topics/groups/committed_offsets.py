"""How far the groups have read: one entry of a table segment for each group, topic and partition.

| part | bytes, numbers big endian |
|---|---|
| key | version 1, u16 length and group id, u16 length and topic (UTF-8 both), u32 partition |
| value | version 1, i64 offset, i32 leader epoch, i64 Unix milliseconds of the commit, 16 bytes topic id, flag, text |

The flag is 1 if a text follows, which may be empty, and 0 if the consumer gave none.

Invariants:

- A commit that was acknowledged is in the table: it survives every process, and every later look shows it.
- Only names are kept in memory, values are read from the table. So a commit whose answer was lost, or whose caller
  left, needs no repair: a name without an entry reads as "nothing committed".
- What is submitted takes place in the order of the calls. What permits a commit is asked in the same stretch, without
  an await in between: a member that is replaced meanwhile moves no offset.
- An offset counts for the topic with the id under which it was committed. A topic that was deleted and created again
  has none.
"""

import asyncio
import logging
import struct
from asyncio import Future
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from segmentstore.contracts.errors import CorruptedDataError, SegmentExistsError
from segmentstore.contracts.tables import KEY_BYTES_MAX, TableApi, TableEntry, TableKey
from segmentstore.runtime.cancellation import retrieve_exception

_LOG = logging.getLogger(__name__)

OFFSETS_TABLE: Final = "_system/_topics/group_offsets"

ENTRIES_PER_BATCH: Final = 1_000
"""Of one update or read of the table: far below the largest batch, with the longest texts."""

_Item = TypeVar("_Item")

_VERSION: Final = 1
_LENGTH = struct.Struct(">H")
_PARTITION = struct.Struct(">I")
_VALUE = struct.Struct(">Bqiq16sB")


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A partition, by its topic's name."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next record that a group wants of a partition."""

    offset: int
    leader_epoch: int
    """-1: the consumer gave none."""
    metadata: str | None
    commit_time_ms: int
    topic_id: UUID


class CommittedOffsets:
    """The table of all groups. load() before anything else."""

    def __init__(self, *, tables: TableApi, entries_per_read: int = ENTRIES_PER_BATCH) -> None:
        self._tables = tables
        self._entries_per_read = entries_per_read
        self._names: dict[str, dict[TopicPartition, None]] = {}
        """What may be in the table, of each group; in the order in which it came."""
        self._count = 0

    def __len__(self) -> int:
        """Offsets of all groups; those that may be there among them."""
        return self._count

    async def load(self) -> None:
        """Make the table if there is none, and look up what is in it. O(offsets)."""
        try:
            await self._tables.create_table(OFFSETS_TABLE)
        except SegmentExistsError:
            _LOG.debug("offsets of groups are there already")
        self._names = {}
        self._count = 0
        token = b""
        async with self._tables.open_table(OFFSETS_TABLE) as table:
            while True:
                page = await table.read_keys(count=self._entries_per_read, token=token)
                for each in page.keys:
                    self._note(*decode_key(each.key))
                token = page.token
                if not token:
                    return

    def group_ids(self) -> Sequence[str]:
        """Groups that may have offsets, in the order in which they came."""
        return list(self._names)

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._names

    def places(self, group_id: str) -> Sequence[TopicPartition]:
        """Of which the group may have offsets. O(places)."""
        return list(self._names.get(group_id, ()))

    def is_known(self, group_id: str, place: TopicPartition) -> bool:
        """Whether there may be an offset, so that another one takes no more room."""
        return place in self._names.get(group_id, ())

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        permit: Callable[[], None],
    ) -> None:
        """Returns when all of them are durable. `permit` raises if they may not be committed any more.

        If it raises what the interface of tables raises, some may be committed and others not.
        """
        entries: list[TableEntry] = []
        for place, offset in offsets.items():
            entries.append(TableEntry(encode_key(group_id, place), encode_value(offset)))
            if len(entries) % ENTRIES_PER_BATCH == 0:
                await asyncio.sleep(0)
        async with self._tables.open_table(OFFSETS_TABLE) as table:
            permit()
            for place in offsets:
                self._note(group_id, place)
            await _all_of([table.update(part) for part in _parts(entries)])

    async def read(
        self, group_id: str, places: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """What is committed of these places, or of all; a place without an offset is left out.

        Raises CorruptedDataError, and what the interface of tables raises.
        """
        known = self._names.get(group_id, {})
        wanted = list(known) if places is None else [each for each in places if each in known]
        found: dict[TopicPartition, CommittedOffset] = {}
        async with self._tables.open_table(OFFSETS_TABLE) as table:
            for part in _parts(wanted):
                keys = [encode_key(group_id, place) for place in part]
                entries = table.get_nowait(keys)
                if entries is None:
                    entries = await table.get(keys)
                for place, entry in zip(part, entries, strict=True):
                    if entry is not None:
                        found[place] = decode_value(entry.value)
                if len(part) == ENTRIES_PER_BATCH:
                    # From memory they come without a turn of the loop.
                    await asyncio.sleep(0)
            # Which places have an offset was judged by what is remembered here; where there is none consumers begin at
            # an end. Another coordinator may have committed one.
            await table.confirm()
        return found

    async def remove(
        self,
        group_id: str,
        *,
        permit: Callable[[], None],
        places: Sequence[TopicPartition] | None = None,
    ) -> None:
        """Remove these offsets of a group, or all. `permit` as in commit(), and so are the errors."""
        async with self._tables.open_table(OFFSETS_TABLE) as table:
            permit()
            known = self._names.get(group_id, {})
            removed = list(known) if places is None else [each for each in places if each in known]
            for place in removed:
                del known[place]
            if not known:
                self._names.pop(group_id, None)
            self._count -= len(removed)
            keys = [TableKey(encode_key(group_id, place)) for place in removed]
            try:
                await _all_of([table.remove(part) for part in _parts(keys)])
            except BaseException:
                # They may be there still, or come and go behind this: names too many do no harm.
                for place in removed:
                    self._note(group_id, place)
                raise

    def check(self) -> None:
        """The count is that of the names. O(offsets)."""
        count = sum(len(places) for places in self._names.values())
        assert count == self._count, f"offsets are miscounted {count} {self._count}"
        assert all(self._names.values()), "a group without offsets is kept"

    def _note(self, group_id: str, place: TopicPartition) -> None:
        places = self._names.setdefault(group_id, {})
        if place not in places:
            places[place] = None
            self._count += 1


def fits_in_a_key(group_id: str, topic: str) -> bool:
    """Whether the two names are short enough for a key of the table, and can be written as UTF-8."""
    try:
        length = len(group_id.encode()) + len(topic.encode())
    except UnicodeEncodeError:
        return False
    return length + 1 + 2 * _LENGTH.size + _PARTITION.size <= KEY_BYTES_MAX


def encode_key(group_id: str, place: TopicPartition) -> bytes:
    """Where the offset of a group stands."""
    group, topic = group_id.encode(), place.topic.encode()
    return b"".join(
        (
            bytes((_VERSION,)),
            _LENGTH.pack(len(group)),
            group,
            _LENGTH.pack(len(topic)),
            topic,
            _PARTITION.pack(place.partition),
        )
    )


def decode_key(key: bytes) -> tuple[str, TopicPartition]:
    """Group and place. Raises CorruptedDataError."""
    try:
        (group_length,) = _LENGTH.unpack_from(key, 1)
        topic_at = 3 + group_length + _LENGTH.size
        (topic_length,) = _LENGTH.unpack_from(key, topic_at - _LENGTH.size)
        (partition,) = _PARTITION.unpack(key[topic_at + topic_length :])
        group = key[3 : 3 + group_length].decode()
        topic = key[topic_at : topic_at + topic_length].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptedDataError(f"key of an offset does not parse key={key.hex()}") from error
    if key[0] != _VERSION:
        raise CorruptedDataError(f"key of an offset has an unknown version key={key.hex()}")
    return group, TopicPartition(topic, partition)


def encode_value(offset: CommittedOffset) -> bytes:
    """The bytes of an offset."""
    head = _VALUE.pack(
        _VERSION,
        offset.offset,
        offset.leader_epoch,
        offset.commit_time_ms,
        offset.topic_id.bytes,
        offset.metadata is not None,
    )
    return head + (offset.metadata or "").encode()


def decode_value(value: bytes) -> CommittedOffset:
    """The offset of the bytes. Raises CorruptedDataError."""
    try:
        version, offset, epoch, time_ms, topic_id, flag = _VALUE.unpack_from(value)
        text = value[_VALUE.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptedDataError(f"a committed offset does not parse value={value!r}") from error
    if version != _VERSION or flag > 1 or (text and not flag):
        raise CorruptedDataError(f"a committed offset has an unknown form value={value!r}")
    return CommittedOffset(offset, epoch, text if flag else None, time_ms, UUID(bytes=topic_id))


def _parts(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(items), ENTRIES_PER_BATCH):
        yield items[first : first + ENTRIES_PER_BATCH]


async def _all_of(submitted: "Sequence[Future[Any]]") -> None:
    """Returns when all have taken place. A caller that leaves takes none of them back."""
    for each in submitted:
        each.add_done_callback(retrieve_exception)
    for each in submitted:
        await asyncio.shield(each)
