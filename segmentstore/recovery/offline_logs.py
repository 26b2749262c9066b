"""The logs in BookKeeper of a store that is off, for a tool that owns some containers for a while.

The data directory is held meanwhile, so that the store is not started beside the tool from there. From another machine
it may be: it fences the tool then, as the tool fences a store that runs elsewhere.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.data_directory import DataDirectoryInUseError
from segmentstore.host.log_cluster import log_in_cluster, open_cluster
from segmentstore.host.store_record import log_record_path
from segmentstore.recovery.rebuilt_logs import find_log_place
from segmentstore.recovery.tier2_copy import held_directory
from segmentstore.runtime.entropy import system_random

LogOfContainer: TypeAlias = Callable[[ContainerId], Awaitable[DurableDataLog]]
"""A log that is there already, not initialized."""


@asynccontextmanager
async def open_logs_in_cluster(data_directory: Path) -> AsyncIterator[LogOfContainer | None]:
    """None if the logs are in the data directory.

    Raises InvalidRequestError if the store runs, SettingsError, DataDirectoryError, and as open_cluster() does.
    """
    resolved, log_place = await find_log_place(data_directory, environment=os.environ)
    if log_place is None:
        yield None
        return
    settings = resolved.settings.bookkeeper
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(held_directory(data_directory))
        except DataDirectoryInUseError as error:
            raise InvalidRequestError(
                f"the store runs: name it with --server, so that it can check what is proposed: {error}"
            ) from error
        opened = await stack.enter_async_context(open_cluster(log_place, settings))

        async def log_of(container_id: ContainerId) -> DurableDataLog:
            if await opened.metadata.get(log_record_path(container_id)) is None:
                raise InvalidRequestError(
                    "the log of the container is not there, so its next epoch is not known"
                    f" container={container_id} {opened.names.facts}"
                )
            return log_in_cluster(
                opened,
                container_id,
                settings=settings,
                random=system_random(),
                purpose="compaction",
            )

        yield log_of
