"""Copies read every byte: damaged ones are told and do not come along unasked; a look that reads less says so."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.recovery import recover, tier2_copy
from tests.cli.command_line import CommandLine
from tier2.container_objects import ObjectKind
from tier2.manifest.manifest import Manifest
from tier2.offline.container_copy import CopyReport, copy_container
from tier2.read.components import Components

pytestmark = pytest.mark.integration

NO_STREAMS = ["--controller", "off", "--wire", "off"]
DAMAGED, SOUND, DELETED = (Random(seed).randbytes(60_000) for seed in (1, 2, 3))
"""Incompressible: so they lie in Tier 2 as they are."""
# All in one container, so that they share an object.
KEPT = {"r/0": DAMAGED, "r/3": SOUND}


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    return CommandLine(capfdbinary)


@pytest.fixture(params=["volumes", "filesystem"])
def data(request: pytest.FixtureRequest, tmp_path: Path, cli: CommandLine) -> Path:
    """Of a stopped store with a backup, and with bytes in its Tier 2 that are garbage."""
    # Nothing reaches Tier 2 but by the flushes below: what they bring is one object, however slow the machine is.
    options = [*NO_STREAMS, "--tier2", request.param, "--set", "writer.flush_interval_seconds=1h"]
    with ServerProcess(tmp_path / "data", options) as server:
        online = CommandLine(cli.capture, server.address)
        for name, content in {**KEPT, "r/7": DELETED}.items():
            (tmp_path / "content").write_bytes(content)
            assert online.segment("create", name).exit_code == ExitCode.OK
            done = online.segment("append", name, str(tmp_path / "content"))
            assert done.exit_code == ExitCode.OK
        assert online.segment("flush").exit_code == ExitCode.OK
        assert online.segment("delete", "r/7").exit_code == ExitCode.OK
        assert online.segment("flush").exit_code == ExitCode.OK
        pinned = online("backup", "pin", "monday", "--server", server.address)
        assert pinned.exit_code == ExitCode.OK, pinned.errors
        assert server.terminate() == 0
    return tmp_path / "data"


def flip(data: Path, content: bytes) -> None:
    """One bit in the middle of these bytes, where Tier 2 has them."""
    piece = content[30_000:31_000]
    [path] = [
        path
        for path in (data / "tier2").rglob("*")
        if path.is_file() and path.suffix != ".mdb" and piece in path.read_bytes()
    ]
    whole = bytearray(path.read_bytes())
    whole[whole.index(piece)] ^= 1
    path.write_bytes(whole)


COMMANDS = {
    "recover": ("recover", "--copy", "--from-tier2"),
    "restore": ("backup", "restore", "monday", "--from"),
}
both = pytest.mark.parametrize("command", list(COMMANDS.values()), ids=list(COMMANDS))


def copying(command: Sequence[str], data: Path, new: Path) -> tuple[str, ...]:
    return (*command, str(data), "--data", str(new), "--quiet", "-o", "json")


@both
def test_a_copy_carries_no_damaged_byte_along_unless_somebody_wants_it(
    data: Path, tmp_path: Path, cli: CommandLine, command: tuple[str, ...]
) -> None:
    flip(data, DAMAGED)
    new = tmp_path / "new"
    for _ in range(2):
        refused = cli(*copying(command, data, new))
        assert refused.exit_code == ExitCode.CORRUPT, refused.errors
        assert "r/0 [0, 60000) in containers/0002" in refused.errors
        assert "r/3" not in refused.errors
        assert "--with-damage" in refused.errors
        # The lock was held while it was copied; a new store or another restore may use the directory as it is.
        assert [path.name for path in new.iterdir()] == ["lock"]
    done = cli(*copying(command, data, new), "--with-damage")
    assert done.exit_code == ExitCode.OK, done.errors
    assert "r/0 [0, 60000) in containers/0002" in done.errors
    with ServerProcess(new, NO_STREAMS) as server:
        online = CommandLine(cli.capture, server.address)
        assert online.segment("read", "r/3").content == SOUND
        damaged = online.segment("read", "r/0")
        assert damaged.exit_code == ExitCode.CORRUPT


@both
def test_damaged_garbage_alarms_nobody(
    data: Path, tmp_path: Path, cli: CommandLine, command: tuple[str, ...]
) -> None:
    flip(data, DELETED)
    new = tmp_path / "new"
    done = cli(*copying(command, data, new))
    assert done.exit_code == ExitCode.OK, done.errors
    assert "damaged:" not in done.errors
    with ServerProcess(new, NO_STREAMS) as server:
        online = CommandLine(cli.capture, server.address)
        for name, content in KEPT.items():
            assert online.segment("read", name).content == content


def test_a_recovery_that_reads_no_contents_says_so_and_which_command_does(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    flip(data, DAMAGED)
    looked = ("recover", "--from-tier2", str(data), "--data", str(tmp_path / "new"), "--quiet")
    for more in (("--dry-run",), ("--dry-run", "--copy"), ()):
        seen = cli(*looked, *more)
        assert seen.exit_code == ExitCode.OK, seen.errors
        assert f"segmentstore tier2 verify --deep {data}" in seen.errors
    named = cli("tier2", "verify", "--deep", str(data), "--quiet")
    assert named.exit_code == ExitCode.CORRUPT
    assert "r/0" in named.errors


def test_h6_a_copy_forgets_backups_whose_objects_stay_behind_and_says_where_they_are(
    data: Path, tmp_path: Path, cli: CommandLine
) -> None:
    options = [*NO_STREAMS, "--set", "tier2.garbage_grace_seconds=0s"]
    with ServerProcess(data, options) as server:
        online = CommandLine(cli.capture, server.address)
        assert online.segment("create", "r/7").exit_code == ExitCode.OK
        for name in KEPT:
            assert online.segment("delete", name).exit_code == ExitCode.OK
        assert online.segment("flush").exit_code == ExitCode.OK
        assert server.terminate() == 0
    new = tmp_path / "new"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recover, "finish_restore", lambda *_: [].pop())
        with pytest.raises(IndexError):
            cli(*copying(COMMANDS["recover"], data, new))
    done = cli("recover", "--from-tier2", "--data", str(new), "--quiet")
    assert done.exit_code == ExitCode.OK, done.errors
    told = cli(*copying(COMMANDS["recover"], data, tmp_path / "another"))
    assert told.exit_code == ExitCode.OK, told.errors
    assert "NEWDIR: monday" in told.errors
    for copy in (new, tmp_path / "another"):
        assert cli("backup", "list", str(copy), "-o", "json").rows == []
        verified = cli("tier2", "verify", "--deep", str(copy), "--quiet")
        assert verified.exit_code == ExitCode.OK, verified.errors
    assert [row["backup"] for row in cli("backup", "list", str(data), "-o", "json").rows] == [
        "monday"
    ]


@both
@pytest.mark.parametrize("lost", [ObjectKind.CHUNKS, ObjectKind.SST])
def test_h8_a_copy_of_what_goes_while_it_is_copied_is_no_success(
    data: Path,
    tmp_path: Path,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    lost: ObjectKind,
) -> None:
    """As behind the compaction of a store that runs, or the drop of the backup, once their grace is over."""

    async def goes_first(
        manifest: Manifest, components: Components, *target: Any, **how: Any
    ) -> CopyReport:
        reading = components.objects.get_range

        async def gone(kind: ObjectKind, *where: Any) -> bytes:
            if kind is lost and manifest.container_id == ContainerId(2):
                raise ObjectNotFoundError("went meanwhile")
            return await reading(kind, *where)

        monkeypatch.setattr(components.objects, "get_range", gone)
        return await copy_container(manifest, components, *target, **how)

    monkeypatch.setattr(tier2_copy, "copy_container", goes_first)
    new = tmp_path / "new"
    failed = cli(*copying(command, data, new))
    assert failed.exit_code == ExitCode.UNAVAILABLE, failed.errors
    assert "while it was copied" in failed.errors
    assert not (new / "tier2").exists()
    monkeypatch.undo()
    done = cli(*copying(command, data, new))
    assert done.exit_code == ExitCode.OK, done.errors
