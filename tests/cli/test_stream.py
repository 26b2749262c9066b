import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from tests.cli.command_line import CommandLine
from tests.cli.controller_commands import ControllerCommands, no_server_is_silent
from tests.client.real_server import controller_address

__all__ = ["no_server_is_silent"]

pytestmark = pytest.mark.integration


@pytest.fixture
def run(
    server: ServerProcess,
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
) -> Iterator[ControllerCommands]:
    """Commands, with the scope `s` made and unmade around the test."""
    commands = ControllerCommands(CommandLine(capfdbinary), controller_address(server), tmp_path)
    assert commands("scope", "create", "s").exit_code == ExitCode.OK
    yield commands
    for row in commands("reader-group", "list", "s", "-o", "json").rows:
        assert commands("reader-group", "delete", row["reader_group"]).exit_code == ExitCode.OK
    for row in commands("table", "list", "s", "-o", "json").rows:
        assert commands("table", "delete", row["table"]).exit_code == ExitCode.OK
    for row in commands("stream", "list", "s", "-o", "json").rows:
        assert commands("stream", "delete", "--seal", row["stream"]).exit_code == ExitCode.OK
    assert commands("scope", "delete", "s").exit_code == ExitCode.OK


def test_scopes_are_made_listed_and_removed(run: ControllerCommands) -> None:
    assert run("scope", "create", "a", "-o", "json").row == {"scope": "a"}
    assert run("scope", "create", "a").exit_code == ExitCode.CONFLICT
    assert [row["scope"] for row in run("scope", "list", "-o", "json").rows] == ["a", "s"]
    assert run("scope", "delete", "a").exit_code == ExitCode.OK
    assert run("scope", "delete", "a").exit_code == ExitCode.NOT_FOUND
    assert run("scope", "create", "a_b").exit_code == ExitCode.USAGE


def test_a_stream_is_what_it_was_asked_to_be(run: ControllerCommands) -> None:
    options = ["--segments", "2", "--events-per-second", "100", "--retain", "60s", "--tag", "x"]
    row = run("stream", "create", "s/t", *options, "-o", "json").row
    assert (row["segments"], row["scaling"], row["target_rate"]) == (2, "events_per_second", 100)
    assert (row["retention"], row["retention_limit"], row["tags"]) == ("time", 60_000, "x")
    assert run("stream", "list", "s", "--tag", "x", "-o", "json").row == {"stream": "s/t"}
    assert run("stream", "list", "s", "--tag", "y", "-o", "json").rows == []
    row = run("stream", "update", "s/t", "--retain-size", "1MiB", "-o", "json").row
    assert (row["scaling"], row["retention_limit"], row["tags"]) == ("fixed", 1 << 20, "")
    assert (row["segments"], row["segments_min"]) == (2, 2)
    row = run("stream", "update", "s/t", "--segments", "3", "-o", "json").row
    assert (row["segments"], row["retention"]) == (3, "none")
    assert run("stream", "create", "s/t").exit_code == ExitCode.CONFLICT
    assert run("stream", "info", "s/none").exit_code == ExitCode.NOT_FOUND
    assert run("stream", "info", "none").exit_code == ExitCode.USAGE
    both = run("stream", "create", "s/u", "--retain", "1s", "--retain-size", "1KB")
    assert both.exit_code == ExitCode.USAGE


def test_lines_become_events_and_lines_again(run: ControllerCommands) -> None:
    run("stream", "create", "s/t")
    written = run("stream", "write", "s/t", "-o", "json", lines=b"one\n\nthree")
    assert written.row == {"stream": "s/t", "events": 3}
    assert run("stream", "read", "s/t").content == b"one\n\nthree\n"
    assert run("stream", "read", "s/t", "--limit", "1").content == b"one\n"
    rows = run("stream", "read", "s/t", "-o", "json").rows
    assert [row["data"] for row in rows] == ["one", "", "three"]
    cut = f"s/t:{rows[0]['segment']}={rows[0]['next_offset']}"
    later = run("stream", "read", "s/t", "--from", cut)
    assert (later.content, later.errors) == (b"\nthree\n", "")


def test_what_stands_before_the_separator_is_the_key(run: ControllerCommands) -> None:
    run("stream", "create", "s/t", "--segments", "4")
    lines = b"".join(b"key:%d\n" % number for number in range(50))
    run("stream", "write", "s/t", "--key-separator", ":", lines=lines)
    rows = run("stream", "read", "s/t", "-o", "json").rows
    assert [row["data"] for row in rows] == [str(number) for number in range(50)]
    assert len({row["segment"] for row in rows}) == 1
    refused = run("stream", "write", "s/t", "--key-separator", "|", lines=b"a|b\nnone\n")
    assert refused.exit_code == ExitCode.USAGE
    assert "line 2 has no '|'" in refused.errors


def test_a_tail_ends_with_the_stream(run: ControllerCommands) -> None:
    run("stream", "create", "s/t")
    run("stream", "write", "s/t", lines=b"one\ntwo\n")
    assert run("stream", "tail", "s/t", "--from-head", "--limit", "2").content == b"one\ntwo\n"
    assert run("stream", "seal", "s/t", "-o", "json").row["sealed"] is True
    assert run("stream", "update", "s/t").exit_code == ExitCode.CONFLICT
    assert run("stream", "tail", "s/t", "--from-head").content == b"one\ntwo\n"
    assert run("stream", "read", "s/t").content == b"one\ntwo\n"
    assert run("stream", "write", "s/t", lines=b"x\n").exit_code == ExitCode.CONFLICT


def test_a_tail_shows_a_line_as_soon_as_it_is_written(run: ControllerCommands) -> None:
    run("stream", "create", "s/t")
    command = [sys.executable, "-m", "segmentstore.cli", "stream", "tail", "s/t", "--from-head"]
    writing = [*command[:4], "write", "s/t", "--controller", run.address]
    pipe = subprocess.PIPE
    following = subprocess.Popen([*command, "--controller", run.address], stdout=pipe)
    writer = subprocess.Popen(writing, stdin=pipe, stdout=subprocess.DEVNULL)
    try:
        assert following.stdout is not None
        assert writer.stdin is not None
        writer.stdin.write(b"now\n")
        writer.stdin.flush()
        assert select.select([following.stdout], [], [], 180)[0], "the line is held back"
        assert following.stdout.readline() == b"now\n"
        writer.stdin.close()
        assert writer.wait(180) == ExitCode.OK
        run("stream", "seal", "s/t")
        assert following.wait(180) == ExitCode.OK
    finally:
        for process in (following, writer):
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()


def test_a_stream_is_scaled_and_truncated(run: ControllerCommands) -> None:
    run("stream", "create", "s/t")
    run("stream", "write", "s/t", lines=b"old\n")
    assert run("stream", "scale", "s/t", "--segments", "3", "-o", "json").row["segments"] == 3
    run("stream", "write", "s/t", lines=b"newer\n")
    row = run("stream", "truncate", "s/t", "tail", "-o", "json").row
    assert row["head"] == row["tail"]
    run("stream", "write", "s/t", lines=b"newest\n")
    assert run("stream", "read", "s/t").content == b"newest\n"
    assert run("stream", "truncate", "s/t", "nonsense").exit_code == ExitCode.USAGE


def test_a_stream_is_deleted_when_it_is_sealed(run: ControllerCommands) -> None:
    run("stream", "create", "s/t")
    refused = run("stream", "delete", "s/t")
    assert refused.exit_code == ExitCode.CONFLICT
    assert refused.errors.startswith("error: ")
    assert len(refused.errors.splitlines()) == 1
    assert run("stream", "delete", "s/t", "--seal").exit_code == ExitCode.OK
    assert run("stream", "info", "s/t").exit_code == ExitCode.NOT_FOUND


def test_reader_groups_are_made_shown_and_removed(run: ControllerCommands) -> None:
    run("stream", "create", "s/t", "--segments", "2")
    run("stream", "write", "s/t", lines=b"one\n")
    assert run("reader-group", "create", "s/g", "t", "--from-tail").exit_code == ExitCode.OK
    assert run("reader-group", "create", "s/g", "t").exit_code == ExitCode.CONFLICT
    assert run("reader-group", "list", "s", "-o", "json").row == {"reader_group": "s/g"}
    rows = run("reader-group", "info", "s/g", "-o", "json").rows
    assert [row["kind"] for row in rows] == ["unassigned", "position"]
    tail = run("stream", "info", "s/t", "-o", "json").row["tail"]
    assert rows[1]["value"] == tail
    assert run("reader-group", "delete", "s/g").exit_code == ExitCode.OK
    assert run("reader-group", "info", "s/g").exit_code == ExitCode.NOT_FOUND


def test_a_transaction_goes_step_by_step(run: ControllerCommands) -> None:
    run("stream", "create", "s/t")
    begun = run("txn", "begin", "s/t", "-o", "json").row["transaction"]
    written = run("txn", "write", "s/t", begun, "-o", "json", lines=b"one\ntwo\n").row
    assert written["events"] == 2
    assert run("stream", "read", "s/t").content == b""
    state = run("txn", "commit", "s/t", begun, "-o", "json").row["state"]
    assert state in {"committing", "committed"}
    assert run("stream", "tail", "s/t", "--from-head", "--limit", "2").content == b"one\ntwo\n"
    assert run("txn", "write", "s/t", begun, lines=b"x\n").exit_code == ExitCode.CONFLICT
    other = run("txn", "begin", "s/t", "-o", "json").row["transaction"]
    state = run("txn", "abort", "s/t", other, "-o", "json").row["state"]
    assert state in {"aborting", "aborted"}
    assert run("txn", "commit", "s/t", other).exit_code == ExitCode.CONFLICT
    assert run("txn", "abort", "s/t", begun).exit_code == ExitCode.CONFLICT
    ended = {row["transaction"] for row in run("txn", "list", "s/t", "-o", "json").rows}
    assert begun in ended
    assert run("txn", "commit", "s/t", "nonsense").exit_code == ExitCode.USAGE


def test_tables_hold_text(run: ControllerCommands) -> None:
    assert run("table", "create", "s/p", "--key-length", "8").exit_code == ExitCode.OK
    assert run("table", "list", "s", "-o", "json").row == {"table": "s/p"}
    version = run("table", "put", "s/p", "apple", "1", "-o", "json").row["version"]
    got = run("table", "get", "s/p", "apple", "-o", "json").row
    assert got == {"key": "apple", "value": "1", "version": version}
    stale = run("table", "put", "s/p", "apple", "2", "--version", str(version + 1))
    assert stale.exit_code == ExitCode.CONFLICT
    again = run("table", "put", "s/p", "apple", "2", "--version", "-1")
    assert again.exit_code == ExitCode.CONFLICT
    run("table", "put", "s/p", "pear", "3", "--version", "-1")
    rows = run("table", "entries", "s/p", "-o", "json").rows
    assert [(row["key"], row["value"]) for row in rows] == [("apple", "1"), ("pear", "3")]
    assert len(run("table", "entries", "s/p", "--first", "b", "-o", "json").rows) == 1
    assert run("table", "remove", "s/p", "apple").exit_code == ExitCode.OK
    assert run("table", "get", "s/p", "apple").exit_code == ExitCode.NOT_FOUND
    assert run("table", "get", "s/p", "much too long").exit_code == ExitCode.USAGE


def test_without_a_controller_the_command_says_so(offline: CommandLine) -> None:
    result = offline("scope", "create", "x", "--controller", "tcp://127.0.0.1:1")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert result.errors.startswith("error: ")
    wrong = offline("scope", "list", "--controller", "http://127.0.0.1:1")
    assert wrong.exit_code == ExitCode.USAGE
