"""Points in time that are kept, and a store as it was then."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from segmentstore.host.data_directory import DataDirectoryError
from segmentstore.host.service_builder import open_service
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.recovery.offline_store import drop_backups, make_backup, open_offline
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.integration

CONTENT = {f"b/{number}": bytes([number + 1]) * (9_000 * number + 7) for number in range(8)}


def fill(cli: CommandLine, folder: Path) -> None:
    for name, content in CONTENT.items():
        (folder / "content").write_bytes(content)
        assert cli.segment("create", name).exit_code == ExitCode.OK
        assert cli.segment("append", name, str(folder / "content")).exit_code == ExitCode.OK


def users_of(cli: CommandLine) -> list[str]:
    """Names of segments that are not the controller's own."""
    rows = cli.segment("list", "-o", "json").rows
    return [row["name"] for row in rows if not row["name"].startswith("_system/")]


def test_h6_a_store_comes_back_as_it_was_when_it_was_pinned(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    server = ServerProcess(data, ["--set", "tier2.garbage_grace_seconds=0s"])
    cli = CommandLine(capfdbinary)
    with server:
        fill(CommandLine(capfdbinary, server.address), tmp_path)
        while_it_runs = cli("backup", "pin", "monday", "--data", str(data))
        assert while_it_runs.exit_code == ExitCode.CONFLICT
        server.kill()
        pinned = cli("backup", "pin", "monday", "--data", str(data), "-o", "json")
        assert pinned.exit_code == ExitCode.OK, pinned.errors
        assert len(pinned.rows) == 4
        server.start()
        later = CommandLine(capfdbinary, server.address)
        for name in CONTENT:
            assert later.segment("delete", name).exit_code == ExitCode.OK
        assert later.segment("create", "later").exit_code == ExitCode.OK
        assert later.segment("flush").exit_code == ExitCode.OK
        assert server.terminate() == 0
    assert cli("backup", "pin", "tuesday", "--data", str(data)).exit_code == ExitCode.OK
    rows = cli("backup", "list", str(data), "-o", "json").rows
    assert [(row["backup"], row["complete"]) for row in rows] == [
        ("monday", True),
        ("tuesday", True),
    ]
    arguments = ("--from", str(data), "--data", str(restored), "--quiet", "-o", "json")
    done = cli("backup", "restore", "monday", *arguments)
    assert done.exit_code == ExitCode.OK, done.errors
    assert all(row["missing_objects"] == 0 for row in done.rows)
    assert cli("backup", "restore", "monday", *arguments).exit_code != ExitCode.OK
    assert cli("tier2", "verify", str(restored), "--deep", "--quiet").exit_code == ExitCode.OK
    with ServerProcess(restored) as copy:
        found = CommandLine(capfdbinary, copy.address)
        assert users_of(found) == sorted(CONTENT)
        for name, content in CONTENT.items():
            read = found.segment("read", name).content
            assert hashlib.sha256(read).digest() == hashlib.sha256(content).digest()
        assert found.segment("append", "b/1", str(tmp_path / "content")).exit_code == ExitCode.OK
    with ServerProcess(data) as original:
        assert users_of(CommandLine(capfdbinary, original.address)) == ["later"]


def test_h6_a_running_store_is_pinned_while_it_serves_and_comes_back_as_it_was(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    cli = CommandLine(capfdbinary)
    with ServerProcess(data, ["--set", "tier2.garbage_grace_seconds=0s"]) as server:
        online, at = CommandLine(capfdbinary, server.address), ("--server", server.address)
        fill(online, tmp_path)
        pinned = cli("backup", "pin", "monday", *at, "-o", "json")
        assert pinned.exit_code == ExitCode.OK, pinned.errors
        assert len(pinned.rows) == 4
        again = cli("backup", "pin", "monday", *at, "-o", "json")
        assert again.rows == pinned.rows
        for name in CONTENT:
            assert online.segment("delete", name).exit_code == ExitCode.OK
        assert online.segment("flush").exit_code == ExitCode.OK
        assert cli("backup", "pin", "tuesday", *at).exit_code == ExitCode.OK
        rows = cli("backup", "list", *at, "-o", "json").rows
        assert [(row["backup"], row["complete"]) for row in rows] == [
            ("monday", True),
            ("tuesday", True),
        ]
        assert cli("backup", "drop", "tuesday", *at).exit_code == ExitCode.OK
        assert cli("backup", "drop", "tuesday", *at).exit_code == ExitCode.NOT_FOUND
        assert cli("backup", "pin", "bad%2Fname", *at).exit_code == ExitCode.USAGE
        assert cli("backup", "pin", "both", *at, "--data", str(data)).exit_code == ExitCode.USAGE
        assert cli("backup", "list").exit_code == ExitCode.USAGE
        assert server.terminate() == 0
    arguments = ("--from", str(data), "--data", str(restored), "--quiet", "-o", "json")
    done = cli("backup", "restore", "monday", *arguments)
    assert done.exit_code == ExitCode.OK, done.errors
    with ServerProcess(restored) as copy:
        found = CommandLine(capfdbinary, copy.address)
        assert users_of(found) == sorted(CONTENT)
        for name, content in CONTENT.items():
            assert found.segment("read", name).content == content


def test_a_backup_whose_maker_died_before_the_proof_is_not_restored_and_can_be_made_anew_or_dropped(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    cli = CommandLine(capfdbinary)
    with ServerProcess(data) as server:
        fill(CommandLine(capfdbinary, server.address), tmp_path)
        assert server.terminate() == 0
    restore = ("--from", str(data), "--data", str(restored), "--quiet", "-o", "json")
    names = ["monday", "tuesday"]
    asyncio.run(pin_without_proof(data, names))
    rows = cli("backup", "list", str(data), "-o", "json").rows
    found = [(row["backup"], row["containers"], row["proved"], row["complete"]) for row in rows]
    assert found == [(name, 4, False, False) for name in names]
    refused = cli("backup", "restore", "monday", *restore)
    assert refused.exit_code == ExitCode.USAGE
    assert "was not made to its end" in refused.errors
    assert not restored.exists()
    assert cli("tier2", "verify", str(data), "--deep", "--quiet").exit_code == ExitCode.OK
    assert cli("backup", "pin", "monday", "--data", str(data)).exit_code == ExitCode.OK
    assert cli("backup", "drop", "tuesday", "--data", str(data)).exit_code == ExitCode.OK
    (row,) = cli("backup", "list", str(data), "-o", "json").rows
    assert (row["backup"], row["proved"], row["complete"]) == ("monday", True, True)
    assert cli("backup", "restore", "monday", *restore).exit_code == ExitCode.OK


async def pin_without_proof(data: Path, names: list[str]) -> None:
    """As a maker that ends behind its last pin leaves them."""
    async with open_offline(data) as service:
        for name in names:
            owners = [each.backups for each in service.registry.all_running()]
            for owner in owners:
                await owner.hold(name, [])
            for owner in owners:
                await owner.make(name, hold_id=name)
            for owner in owners:
                owner.let_go(name)


def test_a_directory_that_has_logs_is_refused_before_anything_is_done(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Those of the very store: its Tier 2 is in a bucket, or was moved away to make room for the backup."""
    data, moved = tmp_path / "data", tmp_path / "moved"
    cli = CommandLine(capfdbinary)
    server = ServerProcess(data)
    with server:
        online = CommandLine(capfdbinary, server.address)
        fill(online, tmp_path)
        assert cli("backup", "pin", "monday", "--server", server.address).exit_code == ExitCode.OK
        assert online.segment("delete", "b/1").exit_code == ExitCode.OK
        server.kill()
        (data / "tier2").rename(moved)
        there = sorted(each.name for each in data.iterdir())
        arguments = ("--from", str(moved), "--data", str(data), "--quiet")
        refused = cli("backup", "restore", "monday", *arguments)
        assert refused.exit_code == ExitCode.USAGE, refused.errors
        assert "has logs already" in refused.errors
        assert sorted(each.name for each in data.iterdir()) == there
        moved.rename(data / "tier2")
        server.start()
        found = users_of(CommandLine(capfdbinary, server.address))
        assert found == sorted(set(CONTENT) - {"b/1"})


def test_a_backup_is_dropped_once_and_a_missing_one_is_said_to_be_missing(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = tmp_path / "data"
    cli = CommandLine(capfdbinary)
    with ServerProcess(data) as server:
        fill(CommandLine(capfdbinary, server.address), tmp_path)
        assert server.terminate() == 0
        server.start()
        assert server.terminate() == 0
    assert cli("backup", "pin", "bad/name", "--data", str(data)).exit_code == ExitCode.USAGE
    assert cli("backup", "pin", "a", "--data", str(data)).exit_code == ExitCode.OK
    assert cli("backup", "drop", "b", "--data", str(data)).exit_code == ExitCode.NOT_FOUND
    assert cli("backup", "drop", "a", "--data", str(data)).exit_code == ExitCode.OK
    assert cli("backup", "list", str(data), "-o", "json").rows == []
    arguments = ("--from", str(data), "--data", str(tmp_path / "new"))
    assert cli("backup", "restore", "a", *arguments).exit_code == ExitCode.USAGE


async def test_a_backup_that_was_broken_off_is_made_anew_also_of_a_store_that_does_not_run(
    tmp_path: Path,
) -> None:
    """What it has is of another moment than what would be added to it."""
    await begin_store(tmp_path / "data")
    async with open_offline(tmp_path / "data") as service:
        first = service.registry.all_running()[0]
        left = await first.backups.make("monday")
        for number in range(20):
            await service.store.create(f"later/{number}")
    made = await make_backup("monday", tmp_path / "data")
    assert len(made) == 4
    assert made[first.container_id].version > left.version
    again = await make_backup("monday", tmp_path / "data")
    assert again == made


async def test_no_store_is_begun_for_a_backup_of_a_directory_without_one(tmp_path: Path) -> None:
    """A disk that is not mounted leaves such a directory: a backup of nothing would look like one of the store."""
    for left in (None, "lost+found"):
        data = tmp_path / f"data-{left}"
        data.mkdir()
        if left is not None:
            (data / left).mkdir()
        before = sorted(data.iterdir())
        with pytest.raises(DataDirectoryError, match="there is no store in the directory"):
            await make_backup("monday", data)
        with pytest.raises(DataDirectoryError, match="there is no store in the directory"):
            await drop_backups(["monday"], data)
        assert sorted(data.iterdir()) == before


async def begin_store(data: Path) -> None:
    resolved = resolve_settings(flags={"store.data_directory": str(data)}, environment={})
    async with open_service(resolved):
        pass
