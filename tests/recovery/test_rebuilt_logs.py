"""What becomes of a log in a directory while a store is rebuilt."""

from pathlib import Path

import pytest

from segmentstore.host.data_directory import log_path_in
from segmentstore.recovery.rebuilt_logs import FileLogsRebuilt
from segmentstore.runtime.files import SystemFileSystem


async def test_a_log_that_is_set_aside_stays_aside_when_the_power_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new name is durable when it is told. Else the log that a person gave up comes back."""
    place = Path(log_path_in(str(tmp_path), 2))
    place.mkdir(parents=True)
    names_at_sync: list[list[str]] = []
    honest = SystemFileSystem.sync_directory

    def sync_directory(self: SystemFileSystem, path: str) -> None:
        if Path(path) == place.parent:
            names_at_sync.append([each.name for each in place.parent.iterdir()])
        honest(self, path)

    monkeypatch.setattr(SystemFileSystem, "sync_directory", sync_directory)
    logs = FileLogsRebuilt(tmp_path)
    found = await logs.find(2)
    assert found is not None
    aside = Path(await logs.set_aside(found))
    assert aside.is_dir()
    assert not place.exists()
    assert names_at_sync[-1:] == [[aside.name]]
