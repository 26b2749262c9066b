"""Brings the Tier 2 of some place into a data directory: by a link, or by a copy of what its roots name.

- A link (the default) moves no byte: DATA/tier2 is a symbolic link to the directory that has the objects, and the two
  belong together from then on. A bucket is not linked: the store is started with its URL.
- A copy stands for itself: the objects that the roots name are stored anew, in volumes, and nothing else. It is made
  under another name and gets its own when it is whole, so a copy that was cut off is never taken for one.
- A directory whose store is running is not linked.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.host.data_directory import LOCK_NAME, DataDirectoryInUseError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.volumes.late_volumes import LateVolumes
from tier2.places import object_directory
from tier2.storage.components import Components
from tier2.storage.copying import CopyReport, copy_container
from tier2.storage.root import Root
from tier2.volumes.settings import VolumeSettings

_UNFINISHED = "tier2.unfinished-copy"


def link_tier2(place: str, data_directory: Path) -> None:
    """Raises InvalidRequestError if DATA has another Tier 2 already, DataDirectoryInUseError."""
    objects = Path(object_directory(place)).resolve()
    require_unused(objects.parent)
    target = data_directory / "tier2"
    if target.exists():
        if target.resolve() == objects:
            return
        raise _tier2_is_there(data_directory)
    data_directory.mkdir(parents=True, exist_ok=True)
    target.symlink_to(objects, target_is_directory=True)
    SystemFileSystem().sync_directory(str(data_directory))


def _tier2_is_there(data_directory: Path) -> InvalidRequestError:
    return InvalidRequestError(
        "the data directory has a Tier 2 already; name another one, or, if a recovery brought that and was cut off, "
        f"finish it with: segmentstore recover --from-tier2 --data {data_directory}"
    )


def require_unused(directory: Path) -> None:
    """Raises DataDirectoryInUseError if the data directory is that of a running store."""
    path = directory / LOCK_NAME
    if not path.exists():
        return
    file = SystemFileSystem().open(str(path))
    try:
        if not file.lock_exclusive():
            raise DataDirectoryInUseError(
                f"a process uses the store there: stop it, or copy with --copy path={directory}"
            )
    finally:
        file.close()


async def copy_tier2(
    roots: Sequence[tuple[Root, Components]],
    data_directory: Path,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> list[CopyReport]:
    """Copy what each root names, from where its components read, into new volumes in the data directory.

    Raises InvalidRequestError if there is a Tier 2 already, CorruptedDataError, StorageError.
    """
    unfinished = _begin_copy(data_directory)
    volumes = LateVolumes(
        str(unfinished),
        files=SystemFileSystem(),
        executor=None,
        wall_clock=SystemWallClock(),
        random=system_random(),
        settings=VolumeSettings(),
    )
    await volumes.start()
    try:
        reports = [
            await copy_container(root, components, volumes, progress=progress)
            for root, components in roots
        ]
    finally:
        await volumes.close()
    _finish_copy(data_directory, unfinished)
    return reports


def require_no_tier2(data_directory: Path) -> None:
    """Raises InvalidRequestError if there is a Tier 2 already."""
    if (data_directory / "tier2").exists():
        raise _tier2_is_there(data_directory)


def _begin_copy(data_directory: Path) -> Path:
    unfinished = data_directory / _UNFINISHED
    require_no_tier2(data_directory)
    data_directory.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        shutil.rmtree(unfinished)
    return unfinished


def _finish_copy(data_directory: Path, unfinished: Path) -> None:
    unfinished.rename(data_directory / "tier2")
    SystemFileSystem().sync_directory(str(data_directory))
