"""Recoveries that were cut off, or refused: they can be run again, and a refused one leaves nothing behind."""

import shutil
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from segmentstore.contracts.identifiers import Epoch
from segmentstore.recovery import rebuild, rebuilt_logs, restore, tier2_copy
from tests.cli.command_line import CommandLine
from tier1.file_log.log import FileDurableDataLog

pytestmark = pytest.mark.integration

NO_STREAMS = ["--controller", "off", "--wire", "off"]
LIVES = 3
"""Roots have this epoch: a log that begins anew begins below."""


class Cut(Exception):  # noqa: N818 - stands for the end of the process
    """The recovery ends here."""


@pytest.fixture
def data(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Path:
    """Of a stopped store with a segment in Tier 2."""
    (tmp_path / "content").write_bytes(b"content")
    for life in range(LIVES):
        with ServerProcess(tmp_path / "data", NO_STREAMS) as server:
            cli = CommandLine(capfdbinary, server.address)
            if not life:
                assert cli.segment("create", "r/1").exit_code == ExitCode.OK
                done = cli.segment("append", "r/1", str(tmp_path / "content"))
                assert done.exit_code == ExitCode.OK
                assert cli.segment("flush").exit_code == ExitCode.OK
            assert server.terminate() == 0
    return tmp_path / "data"


@pytest.mark.parametrize("cut_at", ["directory", "identity", "epoch"])
def test_h7_a_recovery_that_was_cut_off_is_run_again(
    data: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    cut_at: str,
) -> None:
    shutil.rmtree(data / "tier1")
    cli = CommandLine(capfdbinary)
    command = ("recover", "--from-tier2", "--data", str(data), "--quiet", "-o", "json")

    class CutLog(FileDurableDataLog):
        async def initialize(self) -> Epoch:
            if cut_at == "epoch":
                await super().initialize()
                await self.close()
            raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(rebuilt_logs, "FileDurableDataLog", CutLog)
        if cut_at == "directory":
            (data / "tier1" / "container-0000").mkdir(parents=True)
            (data / "tier1" / "container-0000" / "identity").write_bytes(b"")
        else:
            with pytest.raises(Cut):
                cli(*command)
    seen = cli(*command, "--dry-run")
    done = cli(*command)
    assert done.exit_code == ExitCode.OK, done.errors
    first = "kept" if cut_at == "epoch" else "made"
    assert [row["action"] for row in done.rows] == [first, "made", "made", "made"]
    assert [row["action"] for row in seen.rows] == [row["action"] for row in done.rows]
    with ServerProcess(data, NO_STREAMS) as server:
        online = CommandLine(capfdbinary, server.address)
        assert online.segment("read", "r/1").content == b"content"
    again = cli(*command)
    assert [row["action"] for row in again.rows] == ["kept"] * 4


@pytest.mark.parametrize("copy", [(), ("--copy",)], ids=["linked", "copied"])
def test_a_directory_of_another_store_is_refused_before_anything_is_brought_there(
    data: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], copy: tuple[str, ...]
) -> None:
    other = tmp_path / "other"
    with ServerProcess(other, [*NO_STREAMS, "--tier2", "memory"]) as server:
        assert server.terminate() == 0
    shutil.rmtree(other / "tier2", ignore_errors=True)
    before = sorted(path.name for path in other.iterdir())
    cli = CommandLine(capfdbinary)
    refused = cli("recover", "--from-tier2", str(data), "--data", str(other), "--quiet", *copy)
    assert refused.exit_code == ExitCode.USAGE
    assert "belongs to another store" in refused.errors
    assert sorted(path.name for path in other.iterdir()) == before
    dry = cli("recover", "--from-tier2", str(data), "--data", str(other), "--dry-run")
    assert dry.exit_code == ExitCode.USAGE


def test_a_copy_whose_logs_were_not_begun_says_how_it_is_finished(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = tmp_path / "new"
    cli = CommandLine(capfdbinary)
    command = ("recover", "--from-tier2", str(data), "--copy", "--data", str(new), "--quiet")

    async def cut(_: object) -> list[object]:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(rebuild.DataDirectoryRebuild, "run", cut)
        with pytest.raises(Cut):
            cli(*command)
    again = cli(*command)
    assert again.exit_code == ExitCode.USAGE
    assert f"recover --from-tier2 --data {new}" in again.errors
    assert cli("recover", "--from-tier2", "--data", str(new), "--quiet").exit_code == ExitCode.OK
    with ServerProcess(new, NO_STREAMS) as server:
        online = CommandLine(capfdbinary, server.address)
        assert online.segment("read", "r/1").content == b"content"


@pytest.mark.parametrize("cut_at", ["copy", "logs", "forgetting"])
def test_h7_a_restore_that_was_cut_off_is_run_again_also_without_the_place_it_came_from(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    cut_at: str,
) -> None:
    new = tmp_path / "new"
    cli = CommandLine(capfdbinary)
    for name in ("sunday", "monday", "tuesday"):
        assert cli("backup", "pin", name, "--data", str(data)).exit_code == ExitCode.OK
    command = ("--from", str(data), "--data", str(new), "--quiet", "-o", "json")

    async def cut(*_: object, **__: object) -> list[object]:
        raise Cut

    with monkeypatch.context() as patched:
        if cut_at == "copy":
            patched.setattr(tier2_copy, "_finish_copy", lambda *_: [].pop())
        elif cut_at == "logs":
            patched.setattr(rebuild.DataDirectoryRebuild, "run", cut)
        else:
            patched.setattr(restore, "finish_restore", cut)
        with pytest.raises((Cut, IndexError)):
            cli("backup", "restore", "monday", *command)
    other = cli("backup", "restore", "tuesday", *command)
    assert other.exit_code == ExitCode.USAGE
    assert "backup='monday'" in other.errors
    if cut_at != "copy":
        data.rename(tmp_path / "gone")
    done = cli("backup", "restore", "monday", *command)
    assert done.exit_code == ExitCode.OK, done.errors
    assert "start it with" in done.errors
    assert cli("backup", "restore", "monday", *command).exit_code == ExitCode.USAGE
    assert cli("backup", "list", str(new), "-o", "json").rows == []
    with ServerProcess(new, NO_STREAMS) as server:
        online = CommandLine(capfdbinary, server.address)
        assert online.segment("read", "r/1").content == b"content"


def test_h6_finishing_a_restore_keeps_the_backups_that_were_made_since(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = tmp_path / "new"
    cli = CommandLine(capfdbinary)
    for name in ("sunday", "monday"):
        assert cli("backup", "pin", name, "--data", str(data)).exit_code == ExitCode.OK

    async def cut(*_: object) -> None:
        raise Cut

    command = ("backup", "restore", "monday", "--from", str(data), "--data", str(new), "--quiet")
    with monkeypatch.context() as patched:
        patched.setattr(restore, "finish_restore", cut)
        with pytest.raises(Cut):
            cli(*command)
    assert cli("backup", "pin", "since", "--data", str(new)).exit_code == ExitCode.OK
    finished = cli("recover", "--from-tier2", "--data", str(new), "--quiet")
    assert finished.exit_code == ExitCode.OK, finished.errors
    rows = cli("backup", "list", str(new), "-o", "json").rows
    assert [(row["backup"], row["complete"]) for row in rows] == [("since", True)]
    assert cli(*command).exit_code == ExitCode.USAGE


def test_h6_a_copy_that_was_cut_off_takes_no_backups_from_the_tier_2_that_is_linked_instead(
    data: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy is finished by forgetting the backups that it cannot have; the store that has them is not the copy."""
    cli = CommandLine(capfdbinary)
    names = ["monday", "sunday"]
    for name in names:
        assert cli("backup", "pin", name, "--data", str(data)).exit_code == ExitCode.OK
    for copy in (
        ("recover", "--copy", "--from-tier2", str(data)),
        ("backup", "restore", "monday", "--from", str(data)),
    ):
        new = tmp_path / copy[0]
        target = ("--data", str(new), "--quiet")
        with monkeypatch.context() as patched:
            patched.setattr(tier2_copy, "_finish_copy", lambda *_: [].pop())
            with pytest.raises(IndexError):
                cli(*copy, *target)
        for more in ((), ("--dry-run",)):
            linked = cli("recover", "--from-tier2", str(data), *target, *more)
            rows = cli("backup", "list", str(data), "-o", "json").rows
            assert [row["backup"] for row in rows] == names
            assert linked.exit_code == ExitCode.USAGE, linked.errors
            assert "run again what was cut off, or name another directory" in linked.errors
        assert not (new / "tier2").is_symlink()
        assert cli(*copy, *target).exit_code == ExitCode.OK
