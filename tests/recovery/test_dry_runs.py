"""A dry run refuses what the run refuses, with the same words, and shows the same numbers."""

import shutil
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.integration

NO_STREAMS = ["--controller", "off", "--wire", "off"]


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    return CommandLine(capfdbinary)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of a store that was started twice and stopped; in plain files, so that a root can be lost."""
    for _ in range(2):
        with ServerProcess(tmp_path / "data", [*NO_STREAMS, "--tier2", "filesystem"]) as server:
            assert server.terminate() == 0
    return tmp_path / "data"


def recover(place: Path, target: Path, *more: str) -> tuple[str, ...]:
    command = ("recover", "--from-tier2", str(place), "--data", str(target), "--quiet")
    return (*command, "-o", "json", *more)


@pytest.mark.parametrize("copy", [(), ("--copy",)], ids=["linked", "copied"])
@pytest.mark.parametrize("there", ["of another store", "empty", "a link to nowhere"])
def test_a_dry_run_refuses_a_directory_that_has_a_tier_2_as_the_run_does(
    data: Path, tmp_path: Path, cli: CommandLine, there: str, copy: tuple[str, ...]
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    if there == "of another store":
        with ServerProcess(tmp_path / "other", NO_STREAMS) as server:
            assert server.terminate() == 0
        shutil.copytree(tmp_path / "other" / "tier2", target / "tier2")
    elif there == "empty":
        (target / "tier2").mkdir()
    else:
        (target / "tier2").symlink_to(tmp_path / "nowhere")
    dry = cli(*recover(data, target, *copy, "--dry-run"))
    done = cli(*recover(data, target, *copy))
    assert (dry.exit_code, dry.errors) == (done.exit_code, done.errors)
    assert done.exit_code == ExitCode.USAGE
    assert "has a Tier 2 already" in done.errors
    assert [path.name for path in target.iterdir()] == ["tier2"]


def test_a_dry_run_refuses_directories_of_a_running_store_as_the_run_does(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    with ServerProcess(data, NO_STREAMS):
        for place, target in ((data, data), (data, tmp_path / "new")):
            dry = cli(*recover(place, target, "--dry-run"))
            done = cli(*recover(place, target))
            assert (dry.exit_code, dry.errors) == (done.exit_code, done.errors)
            assert done.exit_code == ExitCode.CONFLICT
    assert not (tmp_path / "new").exists()


def test_a_store_that_links_its_tier_2_itself_is_not_disturbed_by_a_link_to_that(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    """One that a recovery made: its lock and its logs are in another directory than its Tier 2."""
    new, newer = tmp_path / "new", tmp_path / "newer"
    assert cli(*recover(data, new)).exit_code == ExitCode.OK
    with ServerProcess(new, NO_STREAMS) as server:
        for place in (new, new / "tier2"):
            for more in (("--dry-run",), ()):
                refused = cli(*recover(place, newer, *more))
                assert refused.exit_code == ExitCode.CONFLICT, refused.errors
        assert server.terminate() == 0
    assert not newer.exists()
    for more in (("--dry-run",), ()):
        told = cli(*recover(new, newer, *more))
        assert told.exit_code == ExitCode.OK, told.errors
        assert f"{new} has logs of its own for 4 of these containers" in told.errors


def test_a_link_away_from_logs_that_are_there_is_told_to_be_one(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    new = tmp_path / "new"
    for more in (("--dry-run",), ()):
        told = cli(*recover(data, new, *more))
        assert told.exit_code == ExitCode.OK, told.errors
        assert f"{data} has logs of its own for 4 of these containers" in told.errors
    assert "logs of its own" not in cli(*recover(data, tmp_path / "copy", "--copy")).errors
    shutil.rmtree(data / "tier1")
    assert "logs of its own" not in cli(*recover(data, new)).errors


def test_h7_a_store_whose_tier_2_a_recovery_gave_away_is_refused_and_disturbs_nobody(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    new = tmp_path / "new"
    (tmp_path / "content").write_bytes(b"content")

    def append(name: str, address: str) -> None:
        online = CommandLine(cli.capture, address)
        assert online.segment("create", name).exit_code == ExitCode.OK
        done = online.segment("append", name, str(tmp_path / "content"))
        assert done.exit_code == ExitCode.OK

    with ServerProcess(data, [*NO_STREAMS, "--set", "writer.flush_interval_seconds=1h"]) as server:
        append("acknowledged", server.address)
        server.kill()
    assert cli(*recover(data, new)).exit_code == ExitCode.OK
    with ServerProcess(new, NO_STREAMS) as server:
        append("since", server.address)
        assert CommandLine(cli.capture, server.address).segment("flush").exit_code == ExitCode.OK
        server.kill()
    roots = {
        path: path.read_bytes() for path in (data / "tier2" / "objects").glob("containers/*/root")
    }
    assert len(roots) == 4
    for _ in range(3):
        with ServerProcess(data, NO_STREAMS, accept=("partial",)) as server:
            refused = CommandLine(cli.capture, server.address).segment("info", "since")
            assert refused.exit_code == ExitCode.UNAVAILABLE
            assert "a recovery gave it to another data directory" in refused.errors
            server.kill()
    assert {path: path.read_bytes() for path in roots} == roots
    with ServerProcess(new, NO_STREAMS) as server:
        online = CommandLine(cli.capture, server.address)
        assert online.segment("read", "since").content == b"content"


@pytest.mark.parametrize("log", ["lost", "old", "kept", "another container begins anew"])
def test_a_dry_run_shows_the_epochs_that_the_run_gives(
    data: Path, cli: CommandLine, log: str
) -> None:
    more: tuple[str, ...] = ()
    if log == "lost":
        shutil.rmtree(data / "tier1")
    elif log == "old":
        for epoch in (data / "tier1" / "container-0001").glob("epoch-*"):
            epoch.unlink()
        for journal in (data / "tier1" / "container-0001").glob("journal-*"):
            journal.unlink()
    elif log == "another container begins anew":
        (data / "tier2/objects/containers/0002/root").unlink()
        more = ("--begin-anew", "2")
    dry = cli(*recover(data, data, *more, "--dry-run"))
    done = cli(*recover(data, data, *more))
    assert (dry.exit_code, done.exit_code) == (ExitCode.OK, ExitCode.OK), done.errors
    shown = [(row["container"], row["action"], row["root_epoch"], row["epoch"]) for row in dry.rows]
    assert shown == [
        (row["container"], row["action"], row["root_epoch"], row["epoch"]) for row in done.rows
    ]
    for _, action, root_epoch, epoch in shown:
        assert epoch is not None
        if root_epoch is not None:
            assert epoch > root_epoch if action == "made" else epoch >= root_epoch
