"""Tier 2 itself has lost something: it is told by name, nothing is done unasked, nothing more is lost by going on."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.integration

PLAIN = ["--controller", "off", "--wire", "off", "--tier2", "filesystem"]
AT_ONCE = [*PLAIN, "--set", "tier2.garbage_grace_seconds=0s"]
CONTENT = {f"r/{number}": bytes([number + 1]) * (number * 1000 + 1) for number in range(12)}
LOST = 2
"""The container whose root is lost."""
OF_LOST = {"r/0", "r/3", "r/7", "r/10"}


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    return CommandLine(capfdbinary)


@pytest.fixture
def data(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Path:
    """Of a store in plain files that was stopped, with a backup; everything but Tier 2 is gone."""
    # Nothing reaches Tier 2 but by the flush below, however slow the machine is.
    options = [*PLAIN, "--set", "writer.flush_interval_seconds=1h"]
    with ServerProcess(tmp_path / "data", options) as server:
        online = CommandLine(capfdbinary, server.address)
        for name, content in CONTENT.items():
            (tmp_path / "content").write_bytes(content)
            assert online.segment("create", name).exit_code == ExitCode.OK
            appended = online.segment("append", name, str(tmp_path / "content"))
            assert appended.exit_code == ExitCode.OK
        assert online.segment("flush").exit_code == ExitCode.OK
        rows = online.segment("list", "-o", "json").rows
        assert {row["name"] for row in rows if row["container"] == LOST} == OF_LOST
        pinned = online("backup", "pin", "monday", "--server", server.address)
        assert pinned.exit_code == ExitCode.OK
        assert server.terminate() == 0
    shutil.rmtree(tmp_path / "data" / "tier1")
    for name in ("identity", "lock"):
        (tmp_path / "data" / name).unlink()
    return tmp_path / "data"


def objects_of(data: Path, container: int = LOST) -> Path:
    return data / "tier2" / "objects" / "containers" / f"{container:04d}"


def everything_below(folder: Path) -> Mapping[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def recover(place: Path, data: Path, *more: str) -> tuple[str, ...]:
    return (
        "recover",
        "--from-tier2",
        str(place),
        "--data",
        str(data),
        "--quiet",
        "-o",
        "json",
        *more,
    )


def lose_chunks(data: Path) -> None:
    for chunks in (objects_of(data) / "chunks").iterdir():
        chunks.unlink()


def lose_root(data: Path, how: str, container: int = LOST) -> bytes:
    root = objects_of(data, container) / "root"
    whole = root.read_bytes()
    if how == "missing":
        root.unlink()
    elif how == "damaged":
        root.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    else:
        root.write_bytes((objects_of(data, 1) / "root").read_bytes())
    return whole


@pytest.mark.parametrize("copy", [(), ("--copy",)], ids=["linked", "copied"])
def test_h8_a_recovery_names_the_ranges_whose_objects_are_gone_and_is_done_only_knowingly(
    data: Path, tmp_path: Path, cli: CommandLine, copy: tuple[str, ...]
) -> None:
    new = tmp_path / "new"
    lose_chunks(data)
    for command in (recover(data, new, *copy, "--dry-run"), recover(data, new, *copy)):
        refused = cli(*command)
        assert refused.exit_code == ExitCode.CORRUPT
        for name in OF_LOST:
            place = f"{name} [0, {len(CONTENT[name])}) in containers/0002/chunks/0"
            assert place in refused.errors
        assert "--with-damage" in refused.errors
        assert not new.exists()
        lost = [row["lost_bytes"] for row in refused.rows]
        assert lost == [0, 0, sum(len(CONTENT[name]) for name in OF_LOST), 0]
    done = cli(*recover(data, new, *copy, "--with-damage"))
    assert done.exit_code == ExitCode.OK, done.errors
    assert f"of {len(OF_LOST)} segments" in done.errors
    assert [row["action"] for row in done.rows] == ["made"] * 4
    with ServerProcess(new, PLAIN[:4]) as server:
        online = CommandLine(cli.capture, server.address)
        for name, content in CONTENT.items():
            read = online.segment("read", name)
            if name in OF_LOST:
                assert read.exit_code == ExitCode.CORRUPT, read.errors
                assert read.content == b""
                offline = cli("tier2", "cat", str(new), name)
                assert offline.exit_code == ExitCode.CORRUPT
                assert "is missing" in offline.errors
            else:
                assert read.content == content


@pytest.mark.parametrize("how", ["missing", "damaged", "that of another container"])
def test_h7_a_lost_root_blocks_nobody_else_and_nothing_of_its_container_is_touched_until_it_is_back(
    data: Path, tmp_path: Path, cli: CommandLine, how: str
) -> None:
    whole = lose_root(data, how)
    left = everything_below(objects_of(data))
    new = tmp_path / "new"
    for command in (recover(data, new, "--dry-run"), recover(data, new)):
        refused = cli(*command)
        assert refused.exit_code == ExitCode.CORRUPT, refused.errors
        assert "1 of 4 containers have no sound manifest: 2;" in refused.errors
        assert not new.exists()
    done = cli(*recover(data, new, "--with-damage"))
    assert done.exit_code == ExitCode.OK, done.errors
    assert [row["action"] for row in done.rows] == ["made", "made", "refused", "made"]
    assert "--begin-anew 2" in done.errors
    for whys in (("recover --from-tier2",), ("recover --from-tier2", "the log was disabled")):
        with ServerProcess(new, AT_ONCE, accept=("partial",)) as server:
            online = CommandLine(cli.capture, server.address)
            for name, content in CONTENT.items():
                read = online.segment("read", name)
                if name in OF_LOST:
                    assert read.exit_code == ExitCode.UNAVAILABLE
                    assert any(why in read.errors for why in whys), read.errors
                else:
                    assert read.content == content
            assert online.segment("create", "r/0").exit_code == ExitCode.UNAVAILABLE
            assert server.terminate() == 0
    assert everything_below(objects_of(data)) == left
    (objects_of(data) / "root").write_bytes(whole)
    again = cli(*recover(data, new))
    assert again.exit_code == ExitCode.OK, again.errors
    assert [row["action"] for row in again.rows] == ["kept", "kept", "made", "kept"]
    with ServerProcess(new, AT_ONCE) as server:
        online = CommandLine(cli.capture, server.address)
        for name, content in CONTENT.items():
            assert online.segment("read", name).content == content


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_h7_a_container_without_a_root_begins_anew_because_somebody_said_so(
    data: Path, tmp_path: Path, cli: CommandLine, how: str
) -> None:
    lose_root(data, how)
    left = everything_below(objects_of(data))
    new = tmp_path / "new"
    assert cli(*recover(data, new, "--begin-anew", "1")).exit_code == ExitCode.USAGE
    stranger = cli(*recover(data, new, "--begin-anew", "99"))
    assert stranger.exit_code == ExitCode.USAGE
    assert "containers 0 to 3" in stranger.errors
    dry = cli(*recover(data, new, "--begin-anew", "2", "--dry-run"))
    assert dry.exit_code == ExitCode.OK, dry.errors
    assert everything_below(objects_of(data)) == left
    done = cli(*recover(data, new, "--begin-anew", "2"))
    assert done.exit_code == ExitCode.OK, done.errors
    assert [row["action"] for row in done.rows] == ["made", "made", "begins anew", "made"]
    kept = [path.read_bytes() for path in objects_of(data).glob("lost-root-*")]
    assert [hashlib.sha256(each).hexdigest() for each in kept] == (
        [left["root"]] if how == "damaged" else []
    )
    assert cli(*recover(data, new, "--begin-anew", "2")).exit_code == ExitCode.USAGE
    with ServerProcess(new, PLAIN) as server:
        online = CommandLine(cli.capture, server.address)
        rows = online.segment("list", "-o", "json").rows
        assert {row["name"] for row in rows} == set(CONTENT) - OF_LOST
        (tmp_path / "content").write_bytes(b"anew")
        assert online.segment("create", "r/0").exit_code == ExitCode.OK
        appended = online.segment("append", "r/0", str(tmp_path / "content"))
        assert appended.exit_code == ExitCode.OK
        assert online.segment("flush").exit_code == ExitCode.OK
        server.kill()
    again = cli(*recover(data, new))
    assert again.exit_code == ExitCode.OK, again.errors
    with ServerProcess(new, PLAIN) as server:
        online = CommandLine(cli.capture, server.address)
        assert online.segment("read", "r/0").content == b"anew"


def test_h7_a_copy_leaves_a_container_without_a_root_where_it_is_and_begins_it_empty(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    lose_root(data, "missing")
    left = everything_below(data)
    new = tmp_path / "new"
    assert cli(*recover(data, new, "--copy")).exit_code == ExitCode.CORRUPT
    assert not new.exists()
    done = cli(*recover(data, new, "--copy", "--with-damage"))
    assert done.exit_code == ExitCode.OK, done.errors
    assert "begin empty in the copy: [2]" in done.errors
    with ServerProcess(new, PLAIN[:4]) as server:
        online = CommandLine(cli.capture, server.address)
        rows = online.segment("list", "-o", "json").rows
        assert {row["name"] for row in rows} == set(CONTENT) - OF_LOST
        assert online.segment("create", "r/0").exit_code == ExitCode.OK
    assert everything_below(data) == left


@pytest.mark.parametrize("copy", [(), ("--copy",)], ids=["linked", "copied"])
def test_a_container_whose_run_is_damaged_does_not_keep_the_others_from_coming_back(
    data: Path, tmp_path: Path, cli: CommandLine, copy: tuple[str, ...]
) -> None:
    for run in (objects_of(data) / "runs").iterdir():
        content = run.read_bytes()
        run.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    new = tmp_path / "new"
    refused = cli(*recover(data, new, *copy))
    assert refused.exit_code == ExitCode.CORRUPT
    assert "container 2: its segments cannot all be found" in refused.errors
    done = cli(*recover(data, new, *copy, "--with-damage"))
    assert done.exit_code == ExitCode.OK, done.errors
    with ServerProcess(new, PLAIN[:4], accept=("ready", "partial")) as server:
        online = CommandLine(cli.capture, server.address)
        for name, content in CONTENT.items():
            read = online.segment("read", name)
            if name not in OF_LOST:
                assert read.content == content
            else:
                assert read.exit_code != ExitCode.OK
        if not copy:
            assert online.segment("create", "r/0").exit_code == ExitCode.CORRUPT


@pytest.mark.parametrize("lost", [[LOST], range(4)], ids=["one root", "every root"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_h6_a_backup_outlives_the_roots_of_containers_and_is_offered(
    data: Path, tmp_path: Path, cli: CommandLine, how: str, lost: Sequence[int]
) -> None:
    for container in lost:
        lose_root(data, how, container)
    refused = cli(*recover(data, tmp_path / "new"))
    assert refused.exit_code == ExitCode.CORRUPT, refused.errors
    assert not (tmp_path / "new").exists()
    verified = cli("tier2", "verify", str(data))
    assert verified.exit_code == ExitCode.CORRUPT, verified.errors
    offer = f"segmentstore backup restore monday --from {data} --data NEWDIR"
    assert offer in refused.errors
    rows = cli("backup", "list", str(data), "-o", "json").rows
    assert [(row["backup"], row["complete"]) for row in rows] == [("monday", True)]
    command = ("backup", "restore", "monday", "--from", str(data), "--data", str(tmp_path / "new"))
    done = cli(*command, "--quiet", "-o", "json")
    assert done.exit_code == ExitCode.OK, done.errors
    with ServerProcess(tmp_path / "new", PLAIN[:4]) as server:
        online = CommandLine(cli.capture, server.address)
        for name, content in CONTENT.items():
            assert online.segment("read", name).content == content


def test_h6_a_backup_that_misses_objects_is_restored_only_knowingly(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    lose_chunks(data)
    new = tmp_path / "new"
    command = ("backup", "restore", "monday", "--from", str(data), "--data", str(new), "--quiet")
    refused = cli(*command)
    assert refused.exit_code == ExitCode.CORRUPT
    assert "r/0 [0, 1) in containers/0002/chunks/0" in refused.errors
    assert not new.exists()
    done = cli(*command, "--with-damage", "-o", "json")
    assert done.exit_code == ExitCode.OK, done.errors
    missing = [row["missing_objects"] for row in done.rows]
    assert missing[LOST] > 0
    assert sum(missing) == missing[LOST]


def test_h7_a_root_older_than_its_objects_is_recovered_only_knowingly_and_above_their_epochs(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    new = tmp_path / "new"
    old = (objects_of(data) / "root").read_bytes()
    assert cli(*recover(data, new)).exit_code == ExitCode.OK
    # What the old root names stays, however long three starts take.
    options = [*PLAIN, "--set", "tier2.garbage_grace_seconds=1h"]
    for _ in range(3):
        with ServerProcess(new, options) as server:
            online = CommandLine(cli.capture, server.address)
            (tmp_path / "content").write_bytes(b"more")
            assert (
                online.segment("append", "r/0", str(tmp_path / "content")).exit_code == ExitCode.OK
            )
            assert online.segment("flush").exit_code == ExitCode.OK
            assert server.terminate() == 0
    shutil.rmtree(new)
    (objects_of(data) / "root").write_bytes(old)
    refused = cli(*recover(data, new))
    assert refused.exit_code == ExitCode.CORRUPT
    assert "container 2: its manifest is an old one" in refused.errors
    assert not new.exists()
    done = cli(*recover(data, new, "--with-damage"))
    assert done.exit_code == ExitCode.OK, done.errors
    epochs = [row["epoch"] for row in done.rows]
    assert epochs[LOST] == max(epochs), "one above the objects, as the others above their roots"
    with ServerProcess(new, PLAIN) as server:
        online = CommandLine(cli.capture, server.address)
        assert online.segment("read", "r/0").content == CONTENT["r/0"]


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--with-damage",)])
def test_a_copy_of_which_no_run_can_be_read_is_refused_with_what_is_lost(
    data: Path, tmp_path: Path, cli: CommandLine, more: tuple[str, ...]
) -> None:
    for container in range(4):
        for run in (objects_of(data, container) / "runs").iterdir():
            run.write_bytes(b"")
    refused = cli(*recover(data, tmp_path / "new", "--copy", *more))
    assert refused.exit_code == ExitCode.CORRUPT, refused.errors
    for container in range(4):
        assert f"container {container}: its segments cannot all be found" in refused.errors
    assert not (tmp_path / "new").exists()
