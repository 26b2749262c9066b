"""Marks in a data directory of what a recovery or a restore has begun and not finished.

    DATA/restore.unfinished    a JSON object: the backup, and the manifest version that was copied of each container
    DATA/recovery.unfinished   a JSON object: the containers whose logs were lost, and whose segments are not ended yet

- The first is of a `backup restore`, or of a `recover --copy`: without it a copied Tier 2 could be that of any store.
  It is durable before the first byte is copied, and goes when nothing is left to do. Backups that are not newer than
  the copied manifest name objects that were not copied: the mark says which those are.
- The second is durable before the first new log is made, which afterwards looks like one that was always there. It goes
  when the streams agree with their segments, and that is flushed. Marking again adds to it.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.files import SystemFileSystem

_RESTORE_NAME = "restore.unfinished"
_RECOVERY_NAME = "recovery.unfinished"


@dataclass(frozen=True, slots=True)
class UnfinishedRestore:
    """Which backup, and the copied manifest versions by container id."""

    backup: str
    """Empty: the newest manifests."""
    root_versions: Mapping[int, int]


def mark_restore(data_directory: Path, restore: UnfinishedRestore) -> None:
    """Durable when it returns."""
    _mark(
        data_directory,
        _RESTORE_NAME,
        {
            "backup": restore.backup,
            "root_versions": {str(key): value for key, value in restore.root_versions.items()},
        },
    )


def unfinished_restore(data_directory: Path) -> UnfinishedRestore | None:
    """None if there is none. Raises CorruptedDataError."""
    path = data_directory / _RESTORE_NAME
    try:
        content = json.loads(path.read_bytes())
        versions = {int(key): int(value) for key, value in content["root_versions"].items()}
        return UnfinishedRestore(str(content["backup"]), versions)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(
            f"the mark of an unfinished restore is damaged: remove the directory and restore again path={path}"
        ) from error


def unmark_restore(data_directory: Path) -> None:
    """Nothing is left to do."""
    _unmark(data_directory, _RESTORE_NAME)


def mark_lost_logs(data_directory: Path, container_ids: Collection[int]) -> None:
    """Durable when it returns. Raises CorruptedDataError if there is a damaged mark."""
    together = sorted({*container_ids, *lost_logs(data_directory)})
    if together:
        _mark(data_directory, _RECOVERY_NAME, {"lost_logs": together})


def lost_logs(data_directory: Path) -> frozenset[int]:
    """Containers whose newest bytes may be gone, and whose segments still go on. Raises CorruptedDataError."""
    path = data_directory / _RECOVERY_NAME
    try:
        return frozenset(int(each) for each in json.loads(path.read_bytes())["lost_logs"])
    except FileNotFoundError:
        return frozenset()
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptedDataError(
            f"the mark of an unfinished recovery is damaged: remove it, and recover again path={path}"
        ) from error


def unmark_lost_logs(data_directory: Path) -> None:
    """Every segment of theirs is ended."""
    _unmark(data_directory, _RECOVERY_NAME)


def _mark(data_directory: Path, name: str, content: Mapping[str, object]) -> None:
    data_directory.mkdir(parents=True, exist_ok=True)
    aside = data_directory / f"{name}.new"
    files = SystemFileSystem()
    aside.unlink(missing_ok=True)
    file = files.open(str(aside), create=True)
    try:
        file.write_at(0, [json.dumps(content).encode()])
        file.sync_data()
    finally:
        file.close()
    files.rename(str(aside), str(data_directory / name))
    files.sync_directory(str(data_directory))


def _unmark(data_directory: Path, name: str) -> None:
    path = data_directory / name
    if path.exists():
        path.unlink()
        SystemFileSystem().sync_directory(str(data_directory))
