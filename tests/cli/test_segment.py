import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from segmentstore.cli.bench import BenchRun
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.server_process import ServerProcess
from segmentstore.contracts.errors import ErrorKind
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.integration


@pytest.fixture
def three(tmp_path: Path) -> str:
    path = tmp_path / "three"
    path.write_bytes(b"one two three")
    return str(path)


def test_what_is_appended_is_read(cli: CommandLine, three: str) -> None:
    assert cli.segment("create", "r", "-o", "json").row["length"] == 0
    assert cli.segment("append", "r", three, "-o", "json").row == {"name": "r", "length": 13}
    assert cli.segment("read", "r").content == b"one two three"
    assert cli.segment("read", "r", "--offset", "4", "--length", "3").content == b"two"
    assert cli.segment("read", "r", "--offset", "8", "--length", "100").content == b"three"


def test_a_long_input_becomes_several_appends(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(range(256)) * 100)
    cli.segment("create", "long")
    result = cli.segment("append", "long", str(path), "--piece", "1KB", "--offset", "0")
    assert result.exit_code == ExitCode.OK
    assert cli.segment("read", "long").content == path.read_bytes()


def test_names_may_hold_slashes_spaces_and_letters_of_all_kinds(
    cli: CommandLine, three: str
) -> None:
    name = "a b/\u00fc\u4e2d\U0001f600/100%/#?&=+"
    assert cli.segment("create", name).exit_code == ExitCode.OK
    assert cli.segment("append", name, three).exit_code == ExitCode.OK
    assert cli.segment("read", name).content == b"one two three"
    assert [row["name"] for row in cli.segment("list", "a b/", "-o", "json").rows] == [name]


def test_a_read_behind_the_end_is_refused_and_one_at_the_end_is_empty(
    cli: CommandLine, three: str
) -> None:
    cli.segment("create", "end")
    cli.segment("append", "end", three)
    at_the_end = cli.segment("read", "end", "--offset", "13")
    assert (at_the_end.exit_code, at_the_end.content) == (ExitCode.OK, b"")
    behind = cli.segment("read", "end", "--offset", "14")
    assert behind.exit_code == ExitCode.CONFLICT
    assert "expected=13 given=14" in behind.errors


def test_an_empty_name_is_refused_as_such(cli: CommandLine) -> None:
    for verb in ("create", "info", "delete"):
        refused = cli.segment(verb, "")
        assert refused.exit_code == ExitCode.USAGE
        assert refused.errors == "error: a name is not empty\n"


def test_a_conditional_append_at_another_offset_is_a_conflict(cli: CommandLine, three: str) -> None:
    cli.segment("create", "c")
    assert cli.segment("append", "c", three, "--offset", "0").exit_code == ExitCode.OK
    result = cli.segment("append", "c", three, "--offset", "0")
    assert result.exit_code == ExitCode.CONFLICT
    assert result.errors.startswith("error: offset does not match")
    assert cli.segment("info", "c", "-o", "json").row["length"] == 13


def test_a_conditional_append_of_nothing_is_held_to_its_condition(
    cli: CommandLine, three: str, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing"
    nothing.write_bytes(b"")
    missing = cli.segment("append", "n", str(nothing), "--offset", "13")
    assert missing.exit_code == ExitCode.NOT_FOUND
    cli.segment("create", "n")
    cli.segment("append", "n", three)
    elsewhere = cli.segment("append", "n", str(nothing), "--offset", "5")
    assert elsewhere.exit_code == ExitCode.CONFLICT
    assert "expected=13 given=5" in elsewhere.errors
    there = cli.segment("append", "n", str(nothing), "--offset", "13", "-o", "json")
    assert there.row == {"name": "n", "length": 13}


def test_create_says_when_the_segment_exists(cli: CommandLine) -> None:
    assert cli.segment("create", "twice").exit_code == ExitCode.OK
    assert cli.segment("create", "twice").exit_code == ExitCode.CONFLICT
    assert cli.segment("create", "twice", "--exists-ok").exit_code == ExitCode.OK


def test_a_missing_segment_is_not_found(cli: CommandLine, three: str) -> None:
    for arguments in (("info", "no"), ("read", "no"), ("append", "no", three), ("delete", "no")):
        assert cli.segment(*arguments).exit_code == ExitCode.NOT_FOUND


def test_seal_truncate_flush_and_delete(cli: CommandLine, three: str) -> None:
    cli.segment("create", "life")
    cli.segment("append", "life", three)
    assert cli.segment("truncate", "life", "4", "-o", "json").row["start_offset"] == 4
    assert cli.segment("seal", "life", "-o", "json").row["length"] == 13
    assert cli.segment("append", "life", three).exit_code == ExitCode.CONFLICT
    assert cli.segment("read", "life").content == b"two three"
    assert cli.segment("read", "life", "--offset", "0").exit_code == ExitCode.CONFLICT
    assert cli.segment("flush", "life").exit_code == ExitCode.OK
    assert cli.segment("info", "life", "-o", "json").row["storage_length"] == 13
    assert cli.segment("delete", "life").exit_code == ExitCode.OK
    assert cli.segment("info", "life").exit_code == ExitCode.NOT_FOUND


def test_flush_without_a_name_moves_everything_to_tier_2(cli: CommandLine, three: str) -> None:
    for number in range(20):
        cli.segment("create", f"flush/{number}")
        cli.segment("append", f"flush/{number}", three)
    assert cli.segment("flush").exit_code == ExitCode.OK
    rows = cli.segment("list", "flush/", "-o", "json").rows
    assert {row["storage_length"] for row in rows} == {13}
    assert len({row["container"] for row in rows}) == 4


def test_h61_a_merge_across_containers_is_refused_with_the_way_out(
    cli: CommandLine, three: str
) -> None:
    for number in range(8):
        cli.segment("create", f"merge/{number}")
        cli.segment("seal", f"merge/{number}")
    rows = cli.segment("list", "merge/", "-o", "json").rows
    other = next(row["name"] for row in rows if row["container"] != rows[0]["container"])
    refused = cli.segment("merge", "target", other)
    assert refused.exit_code in (ExitCode.CONFLICT, ExitCode.NOT_FOUND)
    cli.segment("create", "target")
    container = cli.segment("info", "target", "-o", "json").row["container"]
    stranger = next(row["name"] for row in rows if row["container"] != container)
    refused = cli.segment("merge", "target", stranger)
    assert refused.exit_code == ExitCode.CONFLICT
    assert "target#transaction.<32 hex digits>" in refused.errors
    source = f"target#transaction.{'0' * 31}a"
    cli.segment("create", source)
    cli.segment("append", source, three)
    cli.segment("seal", source)
    assert cli.segment("merge", "target", source, "-o", "json").row["length"] == 13
    assert cli.segment("read", "target").content == b"one two three"
    assert cli.segment("info", source).exit_code == ExitCode.NOT_FOUND


def test_a_listing_has_a_limit_and_is_in_order(cli: CommandLine) -> None:
    for number in (3, 1, 2):
        cli.segment("create", f"order/{number}")
    rows = cli.segment("list", "order/", "-o", "json", "--limit", "2").rows
    assert [row["name"] for row in rows] == ["order/1", "order/2"]
    assert cli.segment("list", "no such prefix").content == b""


def test_tail_follows_until_the_segment_is_sealed(server: ServerProcess) -> None:
    base = [sys.executable, "-m", "segmentstore.cli", "segment"]
    here = ["--server", server.address]
    subprocess.run([*base, "create", "tail", *here], check=True, capture_output=True)
    with (
        subprocess.Popen(
            [*base, "tail", "tail", "--from-start", *here], stdout=subprocess.PIPE
        ) as follower,
        subprocess.Popen(
            [*base, "append", "tail", *here], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as appender,
    ):
        assert follower.stdout is not None
        assert appender.stdin is not None
        for line in (b"first\n", b"second\n", b"third\n"):
            appender.stdin.write(line)
            appender.stdin.flush()
            # The line comes out of the follower before the next one goes in: nothing is held back.
            assert follower.stdout.readline() == line
        appender.stdin.close()
        assert appender.wait(180) == ExitCode.OK
        subprocess.run([*base, "seal", "tail", *here], check=True, capture_output=True)
        assert follower.stdout.read() == b""
        assert follower.wait(180) == ExitCode.OK


def test_a_pipe_goes_in_and_comes_out(server: ServerProcess) -> None:
    base = [sys.executable, "-m", "segmentstore.cli", "segment"]
    here = ["--server", server.address]
    content = bytes(range(256)) * 20_000
    subprocess.run([*base, "create", "pipe", *here], check=True, capture_output=True)
    subprocess.run([*base, "append", "pipe", *here], input=content, check=True, capture_output=True)
    read = subprocess.run([*base, "read", "pipe", *here], check=True, capture_output=True)
    assert read.stdout == content


def test_a_reader_that_has_seen_enough_ends_a_command_quietly(server: ServerProcess) -> None:
    base = [sys.executable, "-m", "segmentstore.cli", "segment"]
    here = ["--server", server.address]
    subprocess.run([*base, "create", "head", *here], check=True, capture_output=True)
    content = bytes(5_000_000)
    subprocess.run([*base, "append", "head", *here], input=content, check=True, capture_output=True)
    with subprocess.Popen(
        [*base, "read", "head", *here], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.read(5) == bytes(5)
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait(180) == ExitCode.OK


@pytest.mark.parametrize("verb", ["tail", "append"])
def test_an_interrupt_ends_a_waiting_command_at_once(server: ServerProcess, verb: str) -> None:
    base = [sys.executable, "-m", "segmentstore.cli", "segment"]
    here = ["--server", server.address]
    name = f"interrupted/{verb}"
    subprocess.run([*base, "create", name, *here], check=True, capture_output=True)
    more = ["--from-start"] if verb == "tail" else []
    with subprocess.Popen(
        [*base, verb, name, *more, *here],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        # It is at work, and waits: one that is interrupted while it begins ends by the signal, as any program.
        if verb == "tail":
            asyncio.run(append_line(server, name))
            assert command.stdout.readline() == b"line\n"
        else:
            command.stdin.write(b"line\n")
            command.stdin.flush()
            while asyncio.run(length_of(server, name)) == 0:
                assert command.poll() is None, "it ended by itself"
        command.send_signal(signal.SIGINT)
        assert command.wait(180) == ExitCode.INTERRUPTED


async def append_line(server: ServerProcess, name: str) -> None:
    async with HttpClient(server.address) as client:
        await client.append(name, b"line\n")


async def length_of(server: ServerProcess, name: str) -> int:
    async with HttpClient(server.address) as client:
        return (await client.info(name)).length


async def test_bench_fails_with_the_error_of_an_append() -> None:
    class FullStore:
        async def create(self, name: str) -> None: ...

        async def delete(self, name: str) -> None: ...

        async def append(self, name: str, content: bytes) -> None:
            raise ServerError("no space", ErrorKind.FULL, 507)

    full = cast("HttpClient", FullStore())
    with pytest.raises(ServerError, match="no space"):
        await BenchRun(full, size=1, writers=2, seconds=1).run()


@pytest.mark.parametrize("option", ["--offset", "--length"])
def test_a_read_of_less_than_nothing_is_refused(cli: CommandLine, option: str) -> None:
    assert cli.segment("create", f"less/{option}").exit_code == ExitCode.OK
    assert cli.segment("read", f"less/{option}", option, "-5").exit_code == ExitCode.USAGE


def test_bench_prints_a_row_for_each_verb_and_size_and_leaves_nothing_behind(
    cli: CommandLine, server: ServerProcess
) -> None:
    arguments = ["--seconds", "200ms", "--writers", "2", "--size", "1KB", "-o", "json"]
    rows = cli("bench", "--server", server.address, *arguments).rows
    assert [(row["verb"], row["at_once"]) for row in rows] == [("append", 2), ("read", 2)]
    assert all(row["per_second"] > 0 for row in rows)
    assert cli.segment("list", "bench-").content == b""
