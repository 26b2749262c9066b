"""The BookKeeper cluster of a store: which one it is, and the clients of it that all logs of a process share.

Invariants:

- A data directory whose logs are elsewhere says where: a start, or a tool, that names no Tier 1 finds them by that, and
  one that names another kind is refused. Logs that seemed to be gone would be begun anew beside those that are there.
- One client of BookKeeper and one of ZooKeeper in a process, opened here and closed here, the one opened last first.
- What both need (JPype, kazoo, the jars) is imported here alone, and only when a store is in BookKeeper. What is
  missing is one sentence with the command that brings it.
- A start that reaches no ZooKeeper ends after a while, with its address; later losses are the clients' own to mend.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from segmentstore.coordination.coordination_store import CoordinationSession, CoordinationStore
from segmentstore.host.data_directory import DataDirectory, DataDirectoryError, LogPlace
from segmentstore.host.setting_sources import ResolvedSettings, resolve_settings
from segmentstore.host.settings import (
    BOOKKEEPER_SCHEME,
    BookKeeperSettings,
    SettingsError,
    parse_bookkeeper_place,
)
from segmentstore.host.store_record import LogCluster, log_record_path
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier1.bookkeeper.ledgers import LedgerClient, LedgerUnavailableError
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.metadata_store import MetadataStore
from tier1.bookkeeper.settings import BookKeeperLogSettings, GiveUpSettings

PASSWORD_VARIABLE = "SEGMENTSTORE_BOOKKEEPER_PASSWORD"


@dataclass(frozen=True, slots=True)
class OpenedCluster:
    """Clients for all logs of a process."""

    names: LogCluster
    ledgers: LedgerClient
    metadata: MetadataStore


def choose_log_place(
    resolved: ResolvedSettings, *, noted: LogPlace | None, has_logs: bool, path: str
) -> LogPlace | None:
    """Where the logs of a store are: what was asked for, or what the data directory says. None: not in BookKeeper.

    `noted`: what the directory says; `has_logs`: it has logs itself. Raises DataDirectoryError if they do not agree.
    """
    asked = resolved.settings.tier1.kind
    is_asked = resolved.source_of("tier1.kind") != "default"
    if asked.startswith(BOOKKEEPER_SCHEME):
        if has_logs:
            raise DataDirectoryError(
                "the logs of this store are files in its data directory: leave --tier1 out; to move it, flush it, stop"
                " it, and begin one over its Tier 2 with `segmentstore recover --from-tier2 DIR --data NEW --tier1"
                f" {asked}` path={path}"
            )
        place = asked
    elif noted is None:
        if has_logs and asked == "memory":
            raise DataDirectoryError(
                f"the logs of this store are files in its data directory: leave --tier1 out path={path}"
            )
        return None
    elif is_asked:
        raise DataDirectoryError(
            f"the logs of this store are in BookKeeper: leave --tier1 out, or name {noted.place} path={path}"
        )
    else:
        place = noted.place
    is_root_asked = resolved.source_of("bookkeeper.root") != "default"
    if noted is None or is_root_asked:
        return LogPlace(place, resolved.settings.bookkeeper.root)
    return LogPlace(place, noted.root)


async def find_log_place(
    data_directory: Path, *, tier1: str = "", environment: Mapping[str, str]
) -> tuple[ResolvedSettings, LogPlace | None]:
    """The settings of a tool, and where the logs are; None: in the directory, which need not be there.

    Raises SettingsError, DataDirectoryError, DataDirectoryCorruptedError.
    """
    flags = {"tier1.kind": tier1} if tier1 else {}
    resolved = resolve_settings(flags=flags, environment=environment)
    directory = data_directory_at(data_directory)
    log_place = choose_log_place(
        resolved,
        noted=await directory.log_place(),
        has_logs=await directory.has_logs(),
        path=directory.path,
    )
    return resolved, log_place


def data_directory_at(path: Path) -> DataDirectory:
    """For a tool: not held, and nothing is looked at."""
    return DataDirectory(
        str(path.absolute()),
        files=SystemFileSystem(),
        executor=None,
        random=system_random(),
        wall_clock=SystemWallClock(),
        process_id=os.getpid(),
    )


def log_cluster(log_place: LogPlace, settings: BookKeeperSettings) -> LogCluster:
    """Which cluster, and with which password. Raises SettingsError."""
    place = parse_bookkeeper_place(log_place.place)
    return LogCluster(
        servers=place.servers,
        root=log_place.root,
        ledgers_path=place.ledgers_path,
        password=_password(settings),
    )


def _password(settings: BookKeeperSettings) -> bytes:
    if not settings.password_file:
        return os.environ.get(PASSWORD_VARIABLE, "").encode()
    try:
        content = Path(settings.password_file).read_bytes()
    except OSError as error:
        raise SettingsError(
            [
                f"bookkeeper.password_file cannot be read: {error.strerror} path={settings.password_file}"
            ]
        ) from error
    return content.partition(b"\n")[0].rstrip(b"\r")


@asynccontextmanager
async def open_cluster(
    log_place: LogPlace, settings: BookKeeperSettings
) -> AsyncIterator[OpenedCluster]:
    """Clients of the cluster, closed behind the caller.

    Raises InvalidRequestError if something is not installed, SettingsError, LedgerUnavailableError,
    MetadataUnavailableError.
    """
    names = log_cluster(log_place, settings)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(settings.start_seconds):
                metadata = await connect_metadata(names, settings)
                stack.push_async_callback(metadata.close)
                ledgers = await connect_ledgers(names, settings)
                stack.push_async_callback(ledgers.close)
        except TimeoutError:
            raise LedgerUnavailableError(
                f"no BookKeeper cluster answers servers={names.servers} ledgers_path={names.ledgers_path}"
            ) from None
        yield OpenedCluster(names, ledgers, metadata)


async def connect_metadata(names: LogCluster, settings: BookKeeperSettings) -> MetadataStore:
    """A client of ZooKeeper. Raises InvalidRequestError, MetadataUnavailableError."""
    # Only a store in BookKeeper needs kazoo.
    from tier1.bookkeeper.zookeeper import ZooKeeperMetadataStore

    return await ZooKeeperMetadataStore.connect(
        names.servers, root=names.root, session_seconds=settings.session_seconds
    )


async def connect_coordination(
    names: LogCluster, settings: BookKeeperSettings
) -> CoordinationStore:
    """A client of ZooKeeper. Raises InvalidRequestError, CoordinationUnavailableError."""
    from segmentstore.coordination.zookeeper import ZooKeeperStore

    return await ZooKeeperStore.connect(
        names.servers, root=names.root, session_seconds=settings.session_seconds
    )


async def connect_session(names: LogCluster, session_seconds: float) -> CoordinationSession:
    """A client of ZooKeeper with one session. Raises as connect_coordination()."""
    from segmentstore.coordination.zookeeper import ZooKeeperStore

    return await ZooKeeperStore.connect_session(
        names.servers, root=names.root, session_seconds=session_seconds
    )


async def connect_ledgers(names: LogCluster, settings: BookKeeperSettings) -> LedgerClient:
    """A client of the bookies. Raises InvalidRequestError, LedgerUnavailableError."""
    # Only a store in BookKeeper needs JPype, and a JVM.
    from tier1.bookkeeper.java_client import JavaClientSettings, JavaLedgerClient
    from tier1.bookkeeper.jvm import JvmSettings

    return await JavaLedgerClient.connect(
        names.servers,
        ledgers_path=names.ledgers_path,
        password=names.password,
        settings=JavaClientSettings(
            zookeeper_session_seconds=settings.session_seconds,
            bookie_seconds_max=settings.bookie_seconds,
            append_seconds_max=settings.append_seconds,
            jvm=JvmSettings(
                heap_bytes_max=settings.heap_bytes_max,
                direct_bytes_max=settings.direct_bytes_max,
            ),
        ),
    )


def log_settings(
    settings: BookKeeperSettings, *, give_up: GiveUpSettings | None = None
) -> BookKeeperLogSettings:
    """Of every log in the cluster. `give_up`: where another process may take the log over."""
    return BookKeeperLogSettings(
        quorum=settings.quorum,
        quorum_with_few_bookies=settings.quorum_with_few_bookies,
        ledger_bytes_max=settings.ledger_bytes_max,
        ledger_age_seconds_max=settings.ledger_age_seconds,
        retry_seconds_max=settings.retry_seconds,
        give_up=give_up,
    )


def log_in_cluster(
    opened: OpenedCluster,
    container_id: int,
    *,
    settings: BookKeeperSettings,
    random: Random,
    purpose: str = "",
    give_up: GiveUpSettings | None = None,
) -> BookKeeperDurableDataLog:
    """A container's log, to be initialized once. `purpose`: of a tool; the record names it as the owner."""
    owner = f"{socket.gethostname()} process_id={os.getpid()}"
    return BookKeeperDurableDataLog(
        log_record_path(container_id),
        ledgers=opened.ledgers,
        metadata=opened.metadata,
        random=random,
        settings=log_settings(settings, give_up=give_up),
        owner=f"{purpose} {owner}" if purpose else owner,
    )
