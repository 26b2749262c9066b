"""Says that an index is being made anew, by a file beside its directory, until what was made is synced.

    DIR/index.incomplete    there: the index counts for nothing, and the next start makes it anew

An index that is loaded is not synced batch by batch, so after a power cut it may say anything: what tells that it
counts for nothing cannot stand in it. It serves before it is synced, since the volumes say everything that it says.

Invariants: the mark is durable before the first row is loaded, and goes only after the database was synced whole.
"""

import asyncio
import logging
from concurrent.futures import Executor

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.files import FileSystem
from tier2.volumes.index_database import IndexDatabase

_LOGGER = logging.getLogger(__name__)
_SUFFIX = ".incomplete"


class IndexMark:
    """Of one index; put and taken away by the process that writes it."""

    def __init__(self, index_directory: str, *, files: FileSystem) -> None:
        self._path = index_directory + _SUFFIX
        self._parent = index_directory.rsplit("/", 1)[0]
        self._files = files

    @property
    def is_there(self) -> bool:
        """Blocking, as all of this class."""
        return self._files.exists(self._path)

    def put(self) -> None:
        """Raises OSError."""
        self._files.open(self._path, create=True).close()
        self._files.sync_directory(self._parent)

    def take_away(self) -> None:
        """Raises OSError."""
        self._files.remove(self._path)
        self._files.sync_directory(self._parent)


class IndexSettling:
    """Syncs an index that was made anew while it serves: start(), close()."""

    def __init__(
        self, database: IndexDatabase, *, mark: IndexMark, executor: Executor | None
    ) -> None:
        self._database = database
        self._mark = mark
        self._executor = executor
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None, "the index is being settled already"
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name="volumes: sync of a new index")

    async def close(self) -> None:
        """Waits until it is synced: the database may be closed then. Idempotent."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._settle)
        except (OSError, CorruptedDataError) as error:
            _LOGGER.error("an index that was made anew cannot be synced: %s", error)

    def _settle(self) -> None:
        if self._mark.is_there:
            self._database.sync()
            self._mark.take_away()
