"""The catalogue: one table with a record for each topic, and what this process knows of it.

Any process of a store reads and changes the table. A change is one conditional update, so of two that decided on the
same record one is refused (CatalogueConflictError): it reads again, and decides anew.

Invariants:

- refresh() returns when every change that was durable before its call is known here. Only what has changed since is
  read: the table tells from which position on. It does not tell of removals, so the counts are compared, and everything
  is read again if they differ.
- Of two records of one topic the one with the higher version is kept, in whatever order they arrive.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentStoreError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.tables import Table, TableApi, TableEntry, TableKey
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.topics.errors import (
    CatalogueConflictError,
    InvalidConfigError,
    TopicsUnavailableError,
)
from segmentstore.topics.topic_config import TopicConfig, known_words, make_config
from segmentstore.topics.topic_records import (
    CATALOGUE_TABLE,
    TopicRecord,
    TopicState,
    decode_topic,
    encode_topic,
)

_LOG = logging.getLogger(__name__)

_ENTRIES_PER_PAGE: Final = 500
_LOOKS_MAX: Final = 5
"""Of one refresh, while others change the catalogue: each look finds all that was there before it."""


TopicKey: TypeAlias = str | UUID
"""A topic's name, or its id: another topic may have the name later, none has the id."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's record, its version in the catalogue, and what follows from it."""

    name: str
    record: TopicRecord
    version: int
    config: TopicConfig

    @property
    def is_there(self) -> bool:
        """Whether it is told of, and takes batches."""
        return self.record.state is TopicState.ACTIVE


class Catalogue:
    """start(), then everything else in any order."""

    def __init__(self, *, tables: TableApi, config_bytes_max: int) -> None:
        self._tables = tables
        self._config_bytes_max = config_bytes_max
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._position: int | None = None
        """Up to here the table has been read; None: not at all, or nothing that counts."""
        self._reading = asyncio.Lock()
        self._rounds = 0
        """Of reading; the last one may have failed."""
        self._last_failed = False
        self.changes = 0
        """Grows whenever what is known here has changed."""
        self.why_silent = ""
        """Why the last look failed; empty if it did not."""

    async def start(self) -> None:
        """Makes the table if there is none, and reads it. Raises TopicsUnavailableError."""
        try:
            await self._tables.create_table(CATALOGUE_TABLE)
        except SegmentExistsError:
            _LOG.debug("the catalogue of topics is there already")
        except SegmentStoreError as error:
            raise TopicsUnavailableError(f"the catalogue cannot be made: {error}") from error
        self._position = None
        await self.refresh()

    def get(self, topic: TopicKey) -> Topic | None:
        """As it is known now."""
        return self._topics.get(topic) if isinstance(topic, str) else self._by_id.get(topic)

    def all(self) -> Mapping[str, Topic]:
        """By name. Do not keep it across an await."""
        return self._topics

    async def refresh(self) -> None:
        """Raises TopicsUnavailableError; what is known stays as it is then."""
        wanted = self._rounds + 1
        async with self._reading:
            if self._rounds >= wanted and not self._last_failed:
                return  # a round that began behind this call has read what it asks for
            self._rounds += 1
            self._last_failed = True
            try:
                await self._catch_up()
            except SegmentStoreError as error:
                self.why_silent = str(error)
                raise TopicsUnavailableError(f"the catalogue cannot be read: {error}") from error
            self._last_failed = False
            self.why_silent = ""

    async def _catch_up(self) -> None:
        for _ in range(_LOOKS_MAX):
            # Opened for each look: what an open table says of itself may be as of its opening.
            async with self._tables.open_table(CATALOGUE_TABLE) as table:
                info = table.info()
                if info.length == self._position:
                    await table.confirm()
                    if info.entry_count == len(self._topics):
                        return
                    self._position = None  # topics were removed
                is_shorter = self._position is not None and info.length < self._position
                if self._position is None or is_shorter:
                    await self._read_all(table, info.length, keep_newer=not is_shorter)
                else:
                    await self._read_changes(table, self._position)
                await table.confirm()
        _LOG.info("the catalogue changes faster than it is read topics=%d", len(self._topics))

    async def _read_all(self, table: Table, length: int, *, keep_newer: bool) -> None:
        """`keep_newer`: than the length; not of a table whose end was lost with its log."""
        found: dict[str, Topic] = {}
        token = b""
        while True:
            page = await table.read_entries(count=_ENTRIES_PER_PAGE, token=token)
            for entry in page.entries:
                topic = self._topic_of(entry)
                found[topic.name] = topic
            token = page.token
            if not token:
                break
        # What this process has written meanwhile may be in what was read, or not.
        for name, known in self._topics.items():
            read = found.get(name)
            if (
                keep_newer
                and known.version >= length
                and (read is None or read.version < known.version)
            ):
                found[name] = known
        self._topics = found
        self._by_id = {each.record.topic_id: each for each in found.values()}
        self._position = length
        self.changes += 1

    async def _read_changes(self, table: Table, position: int) -> None:
        while True:
            delta = await table.read_delta(position=position, count=_ENTRIES_PER_PAGE)
            if delta.should_clear:
                self._position = None
                return
            for entry in delta.entries:
                self._take(self._topic_of(entry))
            self._position = position = delta.last_position
            if delta.reached_end:
                return

    def _take(self, topic: Topic) -> None:
        known = self._topics.get(topic.name)
        if known is None or known.version < topic.version:
            if known is not None:
                self._by_id.pop(known.record.topic_id, None)
            self._topics[topic.name] = self._by_id[topic.record.topic_id] = topic
            self.changes += 1

    def _topic_of(self, entry: TableEntry) -> Topic:
        name = entry.key.decode(errors="replace")
        record = decode_topic(entry.value, name=name)
        try:
            return self.made(name, record, entry.version)
        except InvalidConfigError as error:
            # A newer version of the program, in another process, may know more words: this topic is served without.
            _LOG.warning("topic=%s has a setting that is not known here: %s", name, error)
            config = make_config(known_words(record.config), bytes_max=self._config_bytes_max)
            return Topic(name, record, entry.version, config)

    def made(self, name: str, record: TopicRecord, version: int) -> Topic:
        """What follows from a record. Raises InvalidConfigError."""
        return Topic(
            name, record, version, make_config(record.config, bytes_max=self._config_bytes_max)
        )

    async def put(self, name: str, record: TopicRecord, version: int) -> Topic:
        """Writes a record in the place of the version that was decided on.

        Raises CatalogueConflictError, TopicsUnavailableError: the change may have been made.
        """
        entry = TableEntry(name.encode(), encode_topic(record), version)
        try:
            async with self._tables.open_table(CATALOGUE_TABLE) as table:
                (version,) = await await_shielded(table.update([entry]))
        except (TableVersionError, TableKeyNotFoundError) as error:
            raise CatalogueConflictError(f"another process changed the topic: {error}") from error
        except SegmentStoreError as error:
            raise TopicsUnavailableError(f"the catalogue cannot be written: {error}") from error
        topic = self.made(name, record, version)
        self._take(topic)
        return topic

    async def is_current(self, topic: Topic) -> bool:
        """Whether the table has this very record still. Raises SegmentStoreError."""
        async with self._tables.open_table(CATALOGUE_TABLE) as table:
            (entry,) = await table.get([topic.name.encode()])
            await table.confirm()
        return entry is not None and entry.version == topic.version

    async def remove(self, topic: Topic) -> None:
        """Removes the record if it is the present one still. Raises as put()."""
        key = TableKey(topic.name.encode(), topic.version)
        try:
            async with self._tables.open_table(CATALOGUE_TABLE) as table:
                await await_shielded(table.remove([key]))
        except (TableVersionError, TableKeyNotFoundError) as error:
            raise CatalogueConflictError(f"another process changed the topic: {error}") from error
        except SegmentStoreError as error:
            raise TopicsUnavailableError(f"the catalogue cannot be written: {error}") from error
        if self._topics.get(topic.name) == topic:
            del self._topics[topic.name]
            self._by_id.pop(topic.record.topic_id, None)
            self.changes += 1
