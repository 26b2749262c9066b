"""Logs in BookKeeper, as they are below a root in ZooKeeper: what `segmentstore log` shows and does.

- Looking fences nothing and changes nothing; the log of a running store may move on meanwhile, and of its newest ledger
  only what its writer had confirmed is seen.
- A log that is set aside keeps its ledgers. Its owner can change its record no more; the record, as it was found, moves
  to <root>/set-aside/0003-1a2b3c4d, and an empty value stays in its place; then its ledgers are fenced: a process that
  still writes them completes no append more, and stops. A ledger that cannot be fenced (it is gone, or too few of its
  bookies answer) is named by a warning; the log is set aside nevertheless.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from containers.log.data_frame import RecordStream, decode_frame
from containers.operations.record_codec import decode_record
from segmentstore.contracts.errors import (
    DurableDataLogError,
    ErrorKind,
    InvalidRequestError,
    LogCorruptedError,
)
from segmentstore.contracts.identifiers import LogAddress
from segmentstore.host.data_directory import LogPlace
from segmentstore.host.log_cluster import OpenedCluster, find_log_place, open_cluster
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.host.settings import BOOKKEEPER_SCHEME
from segmentstore.host.store_record import CONTAINERS_PATH, find_store_record, log_record_path
from segmentstore.recovery.log_inspection import LogRow, LogsSeen, operation_row
from segmentstore.runtime.entropy import random_id, system_random
from tier1.bookkeeper.ledgers import LedgerNotFoundError
from tier1.bookkeeper.log_record import LedgerInLog, LogRecord, address_of
from tier1.bookkeeper.opening import fence_ledgers, take_record
from tier1.bookkeeper.owned_record import edit_record, is_vacant, read_record, vacate_record
from tier1.bookkeeper.unrecorded_ledgers import delete_unrecorded_ledgers

SET_ASIDE_PATH = "/set-aside"
_OWNER = "log set-aside"
"""Of a record that is about to move, for the messages of the process that wrote the log."""
_READ_ENTRIES = 16
"""At once; each may have a megabyte."""


@asynccontextmanager
async def open_cluster_of(
    place: str, *, environment: Mapping[str, str]
) -> AsyncIterator[OpenedCluster | None]:
    """`place`: bookkeeper://..., or a data directory. None if the logs are in the directory.

    Raises SettingsError, DataDirectoryError, InvalidRequestError, and as open_cluster() does.
    """
    if place.startswith(BOOKKEEPER_SCHEME):
        flags = {"tier1.kind": place}
        resolved = resolve_settings(flags=flags, environment=environment)
        log_place: LogPlace | None = LogPlace(place, resolved.settings.bookkeeper.root)
    else:
        resolved, log_place = await find_log_place(Path(place), environment=environment)
    if log_place is None:
        yield None
        return
    async with open_cluster(log_place, resolved.settings.bookkeeper) as opened:
        # That it is a store, and the password is its own.
        if await find_store_record(opened.metadata, opened.names, may_lack_record=True) is None:
            raise InvalidRequestError(
                f"there is no store below the root in ZooKeeper {opened.names.facts}"
            )
        yield opened


async def see_logs(
    opened: OpenedCluster,
    container_id: int | None,
    read: Callable[[OpenedCluster, Sequence[int]], AsyncGenerator[LogRow, None]],
    seen: LogsSeen,
) -> None:
    """What `read` gives of each log, or of that one: damage of one ends no other."""
    named = None if container_id is None else [container_id]
    for each in named or await _container_ids(opened):
        with seen.looking_at(_name(each)):
            async with aclosing(read(opened, [each])) as rows:
                async for row in rows:
                    seen.rows.append(row)


async def ledger_rows(
    opened: OpenedCluster, container_ids: Sequence[int]
) -> AsyncGenerator[LogRow, None]:
    """One row for each ledger of the logs; every entry is read. `container_ids`: none means all."""
    for container_id in container_ids or await _container_ids(opened):
        record = await _record(opened, container_id)
        if not record.ledgers:
            yield _ledger_row(container_id, record, None, _Content())
        for ledger in record.ledgers:
            content = _Content()
            async with aclosing(_entries(opened, container_id, ledger, content)) as entries:
                async for _ in entries:
                    pass
            if not content.is_given_up:
                yield _ledger_row(container_id, record, ledger, content)


async def operation_rows(
    opened: OpenedCluster, container_ids: Sequence[int]
) -> AsyncGenerator[LogRow, None]:
    """One row for each operation behind the truncation point. Raises LogCorruptedError where a ledger is damaged."""
    for container_id in container_ids or await _container_ids(opened):
        record = await _record(opened, container_id)
        stream = RecordStream()
        for ledger in record.ledgers:
            content = _Content()
            async with aclosing(_entries(opened, container_id, ledger, content)) as entries:
                async for address, payload in entries:
                    if address <= record.truncated_up_to:
                        continue
                    for view in stream.records(decode_frame(payload)):
                        yield operation_row(_name(container_id), address, decode_record(view))
            if content.is_given_up:
                stream = RecordStream()
            if content.damage:
                raise LogCorruptedError(f"{content.damage} log={_name(container_id)}")


async def sweep_ledgers(
    opened: OpenedCluster, container_ids: Sequence[int]
) -> AsyncGenerator[LogRow, None]:
    """Deletes ledgers that no record will ever name; one row for each. `container_ids`: none means all."""
    for container_id in container_ids or await _container_ids(opened):
        await _record(opened, container_id)
        unrecorded = delete_unrecorded_ledgers(
            log_record_path(container_id), ledgers=opened.ledgers, metadata=opened.metadata
        )
        async with aclosing(unrecorded) as found:
            async for ledger in found:
                yield {
                    "log": _name(container_id),
                    "epoch": ledger.epoch,
                    "ledger": ledger.ledger_id,
                    "entries": ledger.entries,
                    "action": "kept" if ledger.entries else "deleted",
                }


async def enable_log(opened: OpenedCluster, container_id: int) -> None:
    """Undo disable(). Raises InvalidRequestError if there is no such log."""
    await _record(opened, container_id)

    def enabled(record: LogRecord | None) -> LogRecord | None:
        return None if record is None else replace(record, disabled="")

    await edit_record(log_record_path(container_id), enabled, metadata=opened.metadata)


async def set_log_aside(opened: OpenedCluster, container_id: int) -> str:
    """Where its record is then. Raises InvalidRequestError if there is no such log, MetadataChangedError."""
    path = log_record_path(container_id)
    found = await opened.metadata.get(path)
    if found is None or is_vacant(found):
        raise _no_such_log(opened, container_id)
    version = found.version
    # What is damaged can be set aside, too: no owner can change it.
    with suppress(LogCorruptedError):
        version = await take_record(
            path, found, metadata=opened.metadata, owner=_OWNER, random=system_random()
        )
    aside = f"{SET_ASIDE_PATH}/{container_id:04d}-{random_id(system_random()).hex()[:8]}"
    await opened.metadata.create(aside, found.value)
    await vacate_record(path, metadata=opened.metadata, version=version)
    # Behind that: the process that writes the log finds no record of it, and its container stays down. One that met the
    # fence before would be started again, and begin the log anew.
    with suppress(LogCorruptedError):
        await fence_ledgers(path, found, ledgers=opened.ledgers)
    return f"{opened.names.root}{aside}"


@dataclass(slots=True)
class _Content:
    """Of a ledger that was read."""

    entries: int = 0
    byte_count: int = 0
    damage: str = ""
    is_given_up: bool = False
    """By the owner of the log, since its record was read: it is gone, and that is no damage."""


async def _entries(
    opened: OpenedCluster, container_id: int, ledger: LedgerInLog, content: _Content
) -> AsyncGenerator[tuple[LogAddress, memoryview], None]:
    """Every entry up to damage, which `content` names, or until the ledger is given up."""
    try:
        reader = await opened.ledgers.open_unfenced(ledger.ledger_id)
    except LedgerNotFoundError:
        await _note_gone(opened, container_id, ledger, content)
        return
    try:
        if not ledger.is_open and reader.last_entry < ledger.last_entry:
            content.damage = (
                f"the ledger ends before what the record says ledger={ledger.ledger_id}"
                f" last_entry={reader.last_entry} recorded={ledger.last_entry}"
            )
        for first in range(0, reader.last_entry + 1, _READ_ENTRIES):
            last = min(first + _READ_ENTRIES - 1, reader.last_entry)
            for number, payload in enumerate(await reader.read(first, last), first):
                content.entries += 1
                content.byte_count += len(payload)
                yield address_of(ledger.sequence, number), payload
    except LedgerNotFoundError:
        await _note_gone(opened, container_id, ledger, content)
    except DurableDataLogError as error:
        if error.kind is not ErrorKind.CORRUPT:
            raise
        content.damage = str(error)
    finally:
        await reader.close()


async def _note_gone(
    opened: OpenedCluster, container_id: int, ledger: LedgerInLog, content: _Content
) -> None:
    record = await _record(opened, container_id)
    if any(each.ledger_id == ledger.ledger_id for each in record.ledgers):
        content.damage = f"the ledger is gone ledger={ledger.ledger_id}"
    else:
        content.is_given_up = True


def _ledger_row(
    container_id: int, record: LogRecord, ledger: LedgerInLog | None, content: _Content
) -> LogRow:
    quorum = None if ledger is None else ledger.quorum
    return {
        "log": _name(container_id),
        "epoch": record.epoch if ledger is None else ledger.epoch,
        "ledger": None if ledger is None else ledger.ledger_id,
        "state": "none" if ledger is None else "open" if ledger.is_open else "closed",
        "bookies": "" if quorum is None else f"{quorum.ensemble}/{quorum.write}/{quorum.ack}",
        "entries": content.entries,
        "body_bytes": content.byte_count,
        "last_address": 0
        if ledger is None or content.entries == 0
        else address_of(ledger.sequence, content.entries - 1),
        "truncated_up_to": record.truncated_up_to,
        "owner": record.owner,
        "disabled": record.disabled,
        "damage": content.damage,
    }


async def _record(opened: OpenedCluster, container_id: int) -> LogRecord:
    record = await read_record(log_record_path(container_id), metadata=opened.metadata)
    if record is None:
        raise _no_such_log(opened, container_id)
    return record


def _no_such_log(opened: OpenedCluster, container_id: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"there is no log of that container below the root container={container_id} {opened.names.facts}"
    )


async def _container_ids(opened: OpenedCluster) -> list[int]:
    names = await opened.metadata.children(CONTAINERS_PATH)
    numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
    return [
        number
        for number in numbers
        if not is_vacant(await opened.metadata.get(log_record_path(number)))
    ]


def _name(container_id: int) -> str:
    return f"container-{container_id:04d}"
