"""A store as it was at a backup, copied into a new data directory.

    compare what the backup's manifests name with a listing -> mark -> copy, read the copy -> logs -> streams agree
    -> forget older backups -> unmark

- Running it again goes on where it was cut off; what was copied is a whole store from then on, and its origin is not
  needed any more.
- Of two that are run at once in one directory one is refused: it is held while the copy is made, and the steps behind
  that hold it themselves, each of which may have been done already.
- A copy counts as whole if every container that the mark names has at least the version that the mark names. Nothing is
  made of another one, and beside the mark no Tier 2 that is elsewhere is used: no backup of that is forgotten.
- The copy has its logs in its directory, also if its origin is in BookKeeper: below the origin's root they would be
  taken for its own.
- Logs that are in the directory before the copy are refused: those of the same store would count as belonging to the
  manifests, and hold what came behind the backup. The store would disable them, and serve nothing.
- Nothing is written before the backup is known to be there as a whole, unless a person wants it with its damage.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from segmentstore.contracts.errors import CorruptedDataError, ErrorKind, InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.recovery.offline_store import drop_backups
from segmentstore.recovery.rebuild import DataDirectoryRebuild
from segmentstore.recovery.rebuilt_logs import FileLogsRebuilt
from segmentstore.recovery.record_files_verification import find_lost_record_files
from segmentstore.recovery.report import RecoveryResult, how_to_start, repair
from segmentstore.recovery.survey import contents_of, lost_files, lost_ranges, progress_bar
from segmentstore.recovery.tier2_access import container_count_in, find_snapshots, open_tier2
from segmentstore.recovery.tier2_copy import (
    copy_tier2,
    held_directory,
    require_no_logs,
    require_no_tier2,
    require_unused,
)
from segmentstore.recovery.unfinished_work import (
    UnfinishedRestore,
    mark_restore,
    unfinished_restore,
    unmark_lost_logs,
    unmark_restore,
)
from tier2.manifest.manifest import Manifest
from tier2.object_stores.places import is_remote, object_directory
from tier2.offline.lost_data import find_lost_chunks_of_snapshot


async def restore_backup(
    name: str, place: str, data: Path, *, with_damage: bool, quiet: bool
) -> RecoveryResult:
    """`place`: the Tier 2 that has the backup; not needed to finish what was cut off behind the copy.

    Raises InvalidRequestError, StorageError, CorruptedDataError, DataDirectoryInUseError.
    """
    result = RecoveryResult()
    require_unused(data)
    unfinished = _unfinished_of(name, data)
    if unfinished is None or not (data / "tier2").exists():
        unfinished = await _copy_backup(
            result, name, place, data, with_damage=with_damage, quiet=quiet
        )
        if unfinished is None:
            return result
    else:
        require_own_copy(data, "", unfinished)
        result.remarks.append("the copy is there already, and what was cut off is finished")
    await _start_again(result, data, unfinished)
    return result


def _unfinished_of(name: str, data: Path) -> UnfinishedRestore | None:
    """The mark of this restore; None if there is none. Raises InvalidRequestError if there is that of another one."""
    unfinished = unfinished_restore(data)
    if unfinished is not None and unfinished.backup != name:
        raise InvalidRequestError(
            f"another copy into this directory was cut off: finish it first, or name another directory"
            f" backup={unfinished.backup!r} path={data}"
        )
    return unfinished


def require_own_copy(data: Path, place: str, restore: UnfinishedRestore) -> None:
    """Raises InvalidRequestError if what is to be used is not what a copy brought into the directory.

    `place`: empty for what is in the directory. A copy is finished by forgetting the backups that it cannot have;
    another Tier 2, which has them, would lose them for good.
    """
    own = data / "tier2"
    is_own = not own.is_symlink() and (
        not place
        or (not is_remote(place) and Path(object_directory(place)).resolve() == own.resolve())
    )
    if not is_own:
        raise InvalidRequestError(
            "a copy into this directory was cut off, and what is to be used is not that copy: run again what was cut"
            f" off, or name another directory backup={restore.backup!r} path={data}"
        )


def require_whole_copy(
    data: Path, restore: UnfinishedRestore, manifests: Sequence[Manifest]
) -> None:
    """Raises CorruptedDataError if the Tier 2 in the directory is not the copy that the mark tells of."""
    found = {each.container_id: each.version for each in manifests}
    partial_ids = [
        container_id
        for container_id, version in sorted(restore.root_versions.items())
        if found.get(ContainerId(container_id), 0) < version
    ]
    if partial_ids:
        raise CorruptedDataError(
            "the copy in the directory is not whole, and nothing was made of it: remove the directory, and copy again"
            f" containers={partial_ids} of={sorted(restore.root_versions)} path={data}"
        )


async def _copy_backup(
    result: RecoveryResult, name: str, place: str, data: Path, *, with_damage: bool, quiet: bool
) -> UnfinishedRestore | None:
    """None if that is refused, because of damage; the result says so."""
    bar = partial(progress_bar, quiet=quiet)
    async with open_tier2(place, go_on=True) as tier2:
        snapshots = await find_snapshots(tier2)
        pinned = [each for each in snapshots if each.snapshot.name == name]
        count = container_count_in(tier2, snapshots)
        if len(pinned) != count:
            raise InvalidRequestError(
                f"the backup is not there or not complete name={name!r} containers={len(pinned)} of={count}"
            )
        unproved = [each.reader.container_id for each in pinned if not each.snapshot.is_proved]
        if unproved:
            raise InvalidRequestError(
                "the backup was not made to its end: what its containers have may be of different moments, with a part"
                " of a transaction. Restore another one; this one can be made again, or dropped (segmentstore backup"
                f" pin, drop) name={name!r} containers={unproved}"
            )
        logs = FileLogsRebuilt(data)
        await DataDirectoryRebuild(
            data, [each.snapshot.manifest for each in pinned], logs=logs
        ).check_target()
        require_no_tier2(data)
        await require_no_logs(data)
        with bar("comparing with a listing") as update:
            for each in pinned:
                components = each.reader.components
                lost = await find_lost_chunks_of_snapshot(
                    each.snapshot.manifest, components, progress=update
                )
                result.remarks += lost_ranges(lost, each.reader.container_id)
        files = await find_lost_record_files(
            [(each.reader, each.snapshot.manifest) for each in pinned]
        )
        result.remarks += lost_files(files, len(files))
        if result.remarks and not with_damage:
            result.remarks.append(
                "error: what is named above is lost of the backup, and nothing was done: to restore the rest, say"
                " --with-damage"
            )
            result.failure = ErrorKind.CORRUPT
            return None
        restore = UnfinishedRestore(
            name,
            {
                each.snapshot.manifest.container_id: each.snapshot.manifest.version
                for each in pinned
            },
        )
        async with held_directory(data):
            # Once more: another one may have been at work until now.
            require_no_tier2(data)
            _unfinished_of(name, data)
            mark_restore(data, restore)
            copy = await copy_tier2(
                [(each.snapshot.manifest, each.reader.components) for each in pinned],
                data,
                with_damage=with_damage,
                bar=partial(progress_bar, quiet=quiet, unit="B", scaled=True),
            )
            if not copy.is_there:
                unmark_restore(data)
    result.remarks += copy.damage
    if not copy.is_there:
        result.remarks.append(
            "error: what is named above is damaged in the backup, and nothing is kept of the copy: to restore the rest,"
            " say --with-damage"
        )
        result.failure = ErrorKind.CORRUPT
        return None
    for each, copied in zip(pinned, copy.reports, strict=True):
        result.rows.append(
            {
                "container": each.snapshot.manifest.container_id,
                "root_version": each.snapshot.manifest.version,
                "objects": copied.objects,
                "bytes": copied.bytes_copied,
                "missing_objects": len(copied.missing),
            }
        )
    return restore


async def _start_again(result: RecoveryResult, data: Path, restore: UnfinishedRestore) -> None:
    """From a whole copy to a store: every step may have been done already."""
    async with open_tier2(str(data)) as copy:
        manifests = [each.manifest for each in copy.containers]
        require_whole_copy(data, restore, manifests)
        contents = [await contents_of(each) for each in copy.containers]
    await DataDirectoryRebuild(data, manifests, logs=FileLogsRebuilt(data)).run()
    if not any(each.has_streams for each in contents):
        unmark_lost_logs(data)
    elif not await repair(result, data, ""):
        return
    await finish_restore(data, restore)
    result.remarks.append(how_to_start(data, ""))


async def finish_restore(data: Path, restore: UnfinishedRestore) -> None:
    """Forget backups that are not newer than the restored one: they name objects that were not copied."""
    async with open_tier2(str(data), go_on=True) as tier2:
        older = {
            each.snapshot.name
            for each in await find_snapshots(tier2)
            if each.snapshot.manifest.version
            <= restore.root_versions.get(each.snapshot.manifest.container_id, 0)
        }
    if older:
        await drop_backups(sorted(older), data)
    unmark_restore(data)
