import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from tests.cli.command_line import CommandLine

NO_STREAMS = ["--controller", "off", "--wire", "off"]
"""The controller's own tables would be found as well."""

pytestmark = pytest.mark.integration

CONTENT = {f"r/{number}": bytes([number]) * (number * 1000 + 1) for number in range(10)}


@pytest.fixture
def flushed(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[ServerProcess]:
    """A running server whose segments are in Tier 2."""
    with ServerProcess(tmp_path / "data", NO_STREAMS) as server:
        cli = CommandLine(capfdbinary, server.address)
        for name, content in CONTENT.items():
            (tmp_path / "content").write_bytes(content)
            assert cli.segment("create", name).exit_code == ExitCode.OK
            assert cli.segment("append", name, str(tmp_path / "content")).exit_code == ExitCode.OK
        assert cli.segment("seal", "r/3").exit_code == ExitCode.OK
        assert cli.segment("flush").exit_code == ExitCode.OK
        yield server


@pytest.mark.parametrize("lost", [["tier1"], ["tier1", "identity", "lock"]], ids=["logs", "all"])
def test_h7_a_store_comes_back_from_tier_2_alone(
    flushed: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes], lost: list[str]
) -> None:
    flushed.kill()
    data = flushed.data_directory
    for name in lost:
        path = data / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    cli = CommandLine(capfdbinary)
    recovered = cli("recover", "--from-tier2", "--data", str(data), "-o", "json")
    assert recovered.exit_code == ExitCode.OK, recovered.errors
    assert [row["action"] for row in recovered.rows] == ["made"] * 4
    flushed.start()
    cli = CommandLine(capfdbinary, flushed.address)
    rows = cli.segment("list", "-o", "json").rows
    assert [row["name"] for row in rows] == sorted(CONTENT)
    old_ids = {(row["container"], row["segment_id"]) for row in rows}
    for name, content in CONTENT.items():
        assert cli.segment("read", name).content == content
    assert cli.segment("info", "r/3", "-o", "json").row["sealed"]
    (data / "more").write_bytes(b"more")
    assert cli.segment("append", "r/5", str(data / "more")).exit_code == ExitCode.OK
    assert cli.segment("read", "r/5").content == CONTENT["r/5"] + b"more"
    for number in range(8):
        row = cli.segment("create", f"new/{number}", "-o", "json").row
        assert (row["container"], row["segment_id"]) not in old_ids
    flushed.kill()
    flushed.start()
    cli = CommandLine(capfdbinary, flushed.address)
    assert cli.segment("read", "r/5").content == CONTENT["r/5"] + b"more"


def test_h7_logs_that_were_begun_anew_are_set_aside_and_logs_that_belong_are_kept(
    flushed: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert flushed.terminate() == 0
    data = flushed.data_directory
    shutil.rmtree(data / "tier1" / "container-0002")
    partial = ServerProcess(data, NO_STREAMS, accept=("partial",))
    with partial:
        assert "containers=3/4" in partial.ready_line
    cli = CommandLine(capfdbinary)
    rows = cli("recover", "--from-tier2", "--data", str(data), "-o", "json").rows
    assert [row["action"] for row in rows] == ["kept", "kept", "made", "kept"]
    assert Path(rows[2]["set_aside"]).is_dir()
    flushed.start()
    cli = CommandLine(capfdbinary, flushed.address)
    for name, content in CONTENT.items():
        assert cli.segment("read", name).content == content


def test_h7_a_log_whose_journals_are_lost_is_kept_until_a_person_sets_it_aside(
    flushed: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What the store says, and what `recover` says in the same directory, leads to a store that works."""
    data, cli = flushed.data_directory, CommandLine(capfdbinary)
    set_aside = ("log", "set-aside", str(data), "--container", "2")
    running = cli(*set_aside)
    assert running.exit_code == ExitCode.CONFLICT, running.errors
    flushed.kill()
    for journal in (data / "tier1" / "container-0002").glob("journal-*"):
        journal.unlink()
    partial = ServerProcess(data, NO_STREAMS, accept=("partial",))
    with partial:
        assert "containers=3/4" in partial.ready_line
        for complaint in ("the log is empty", "log set-aside", "recover --from-tier2"):
            assert complaint in partial.log_path.read_text()
    recover = ("recover", "--from-tier2", "--data", str(data), "--quiet", "-o", "json")
    for _ in range(2):
        kept = cli(*recover)
        assert [row["action"] for row in kept.rows] == ["kept"] * 4
        assert f"segmentstore {' '.join(set_aside)}" in kept.errors
    aside = cli(*set_aside)
    assert aside.exit_code == ExitCode.OK, aside.errors
    assert (Path(aside.text.strip()) / "identity").is_file()
    assert cli(*set_aside).exit_code == ExitCode.USAGE
    made = cli(*recover)
    assert [row["action"] for row in made.rows] == ["kept", "kept", "made", "kept"]
    assert "log set-aside" not in made.errors
    flushed.start()
    online = CommandLine(capfdbinary, flushed.address)
    for name, content in CONTENT.items():
        assert online.segment("read", name).content == content


def test_recovery_is_refused_while_the_store_runs_or_where_there_is_no_tier_2(
    flushed: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    cli = CommandLine(capfdbinary)
    running = cli("recover", "--from-tier2", "--data", str(flushed.data_directory))
    assert running.exit_code == ExitCode.CONFLICT
    (tmp_path / "empty").mkdir()
    nothing = cli("recover", "--from-tier2", "--data", str(tmp_path / "empty"))
    assert nothing.exit_code == ExitCode.USAGE


def test_h7_a_deletion_that_was_flushed_stays_one_though_it_was_the_last_segment_of_its_container(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    never = ["--set", "writer.flush_interval_seconds=1h"]
    with ServerProcess(tmp_path / "data", [*NO_STREAMS, *never]) as server:
        cli = CommandLine(capfdbinary, server.address)
        assert cli.segment("create", "alone").exit_code == ExitCode.OK
        assert cli.segment("flush").exit_code == ExitCode.OK
        assert cli.segment("delete", "alone").exit_code == ExitCode.OK
        assert cli.segment("flush").exit_code == ExitCode.OK
        server.kill()
        shutil.rmtree(tmp_path / "data" / "tier1")
        recovered = CommandLine(capfdbinary)(
            "recover", "--from-tier2", "--data", str(tmp_path / "data"), "-o", "json"
        )
        assert sum(int(row["segments"]) for row in recovered.rows) == 0
