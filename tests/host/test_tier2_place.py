"""The kind of store that Tier 2 of a data directory is, also when its first start was cut off at any step."""

from pathlib import Path
from random import Random

import pytest
from typing_extensions import override

from segmentstore.host.data_directory import DataDirectory, DataDirectoryError
from segmentstore.host.object_stores import tier2_place
from segmentstore.host.service_builder import open_service
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFile, SystemFileSystem
from tests.tier2.volumes.engines import SMALL
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.volumes import LateVolumes


class KilledError(Exception):
    """The process has ended here."""


class FilesUntilKill(SystemFileSystem):
    """Ends the process in front of the change of a name with that number, and of all behind it."""

    def __init__(self, changes: int) -> None:
        self.changes_left = changes

    @override
    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        if create:
            self._change()
        return super().open(path, create=create, exclusive=exclusive)

    @override
    def make_directories(self, path: str) -> None:
        if not Path(path).is_dir():
            self.make_directories(str(Path(path).parent))
            self._change()
            super().make_directories(path)

    @override
    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def _change(self) -> None:
        if self.changes_left == 0:
            raise KilledError
        self.changes_left -= 1


def place_in(path: Path, flags: dict[str, str] | None = None) -> str:
    """What a start with these settings takes."""
    resolved = resolve_settings(
        flags=flags or {}, environment={}, toml_text=None, toml_name="a.toml"
    )
    files = SystemFileSystem()
    directory = DataDirectory(
        str(path),
        files=files,
        executor=None,
        random=Random(1),
        wall_clock=SystemWallClock(),
        process_id=1,
    )
    return tier2_place(resolved, directory, files)


def store_in(
    path: Path, place: str, files: SystemFileSystem
) -> LateVolumes | FilesystemObjectStore:
    tier2 = str(path / "tier2")
    if place == "filesystem":
        return FilesystemObjectStore(tier2, files=files, executor=None, random=Random(1))
    return LateVolumes(
        tier2,
        files=files,
        executor=None,
        wall_clock=SystemWallClock(),
        random=Random(1),
        settings=SMALL,
    )


async def start_until_kill(path: Path, place: str, changes: int) -> bool:
    """Whether it came to its end before."""
    store = store_in(path, place, FilesUntilKill(changes))
    try:
        await store.start()
    except KilledError:
        return False
    await store.close()
    return True


@pytest.mark.parametrize("place", ["volumes", "filesystem"])
async def test_a_first_start_that_is_killed_at_any_step_goes_on_as_it_meant(
    tmp_path: Path, place: str
) -> None:
    steps, done = 0, False
    while not done:
        path = tmp_path / str(steps)
        path.mkdir()
        done = await start_until_kill(path, place, steps)
        assert place_in(path, {"tier2.place": place}) == place, f"{steps=}"
        tier2 = path / "tier2"
        if tier2.is_dir() and any(tier2.iterdir()):
            assert place_in(path) == place, f"without the setting {steps=}"
        store = store_in(path, place, SystemFileSystem())
        await store.start()
        await store.put("a", [b"1"])
        assert (await store.get("a")).content == b"1"
        await store.close()
        assert place_in(path) == place, f"behind the next start {steps=}"
        steps += 1
    assert steps > 4


async def test_files_in_a_directory_where_volumes_were_only_begun_stay_in_sight(
    tmp_path: Path,
) -> None:
    """As a start that took what was half made for files has left it."""
    (tmp_path / "tier2" / "volumes").mkdir(parents=True)
    store = store_in(tmp_path, "filesystem", SystemFileSystem())
    await store.start()
    assert place_in(tmp_path) == "volumes", "nothing is in it yet"
    await store.put("a", [b"1"])
    await store.close()
    assert place_in(tmp_path) == "filesystem"
    with pytest.raises(DataDirectoryError, match="kept as filesystem"):
        place_in(tmp_path, {"tier2.place": "volumes"})


async def test_a_store_that_has_its_tiers_in_files_is_not_opened_with_one_in_memory(
    tmp_path: Path,
) -> None:
    """What is only in the log would be flushed to memory, taken from the log, and gone with the process."""
    begun = {"store.data_directory": str(tmp_path / "data")}
    async with open_service(resolve_settings(flags=begun, environment={})):
        pass
    (tmp_path / "data" / "tier1" / "container-0000").mkdir(parents=True)
    store = store_in(tmp_path / "data", "volumes", SystemFileSystem())
    await store.start()
    await store.close()
    for name, words in (
        ("tier1.kind", "logs of this store are files"),
        ("tier2.place", "as volumes"),
    ):
        with pytest.raises(DataDirectoryError, match=words):
            async with open_service(
                resolve_settings(flags={**begun, name: "memory"}, environment={})
            ):
                pass
