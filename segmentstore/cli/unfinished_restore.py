"""The mark of a `backup restore`, or of a `recover --copy`, that is not through: without it a copied Tier 2 could be
anybody's.

    DATA/restore.unfinished   a JSON object: the backup, and the root version that was copied of each container

- The mark is durable before the first byte is copied, and goes when nothing is left to do.
- Backups that are not newer than the copied root name objects that were not copied: the mark says which those are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.files import SystemFileSystem

_NAME = "restore.unfinished"


@dataclass(frozen=True, slots=True)
class UnfinishedRestore:
    """Which backup, and the copied root versions by container id."""

    backup: str
    """Empty: the newest roots."""
    root_versions: Mapping[int, int]


def mark_restore(data_directory: Path, restore: UnfinishedRestore) -> None:
    """Durable when it returns."""
    data_directory.mkdir(parents=True, exist_ok=True)
    aside = data_directory / f"{_NAME}.new"
    content = {
        "backup": restore.backup,
        "root_versions": {str(key): value for key, value in restore.root_versions.items()},
    }
    files = SystemFileSystem()
    aside.unlink(missing_ok=True)
    file = files.open(str(aside), create=True)
    try:
        file.write_at(0, [json.dumps(content).encode()])
        file.sync_data()
    finally:
        file.close()
    files.rename(str(aside), str(data_directory / _NAME))
    files.sync_directory(str(data_directory))


def unfinished_restore(data_directory: Path) -> UnfinishedRestore | None:
    """None if there is none. Raises CorruptedDataError."""
    path = data_directory / _NAME
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
    (data_directory / _NAME).unlink(missing_ok=True)
    SystemFileSystem().sync_directory(str(data_directory))
