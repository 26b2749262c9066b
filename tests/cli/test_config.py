import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from segmentstore.cli.exit_codes import ExitCode, exit_code_of
from segmentstore.cli.main import cli
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from tests.cli.command_line import CommandLine


def test_config_show_names_each_value_and_where_it_came_from(
    offline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = tmp_path / "store.toml"
    toml.write_text("[cache]\nbytes_max = '32MiB'\n")
    monkeypatch.setenv("SEGMENTSTORE_TIER2_CODEC", "zstd")
    arguments = ["--config", str(toml), "--set", "log.level=debug", "--containers", "8"]
    result = offline("config", "show", "--sources", "-o", "json", *arguments)
    assert result.exit_code == ExitCode.OK
    rows = {row["setting"]: (row["value"], row["source"]) for row in result.rows}
    assert rows["cache.bytes_max"] == ("32MiB", str(toml))
    assert rows["tier2.codec"] == ("zstd", "environment SEGMENTSTORE_TIER2_CODEC")
    assert rows["log.level"] == ("debug", "flag for log.level")
    assert rows["store.container_count"] == ("8", "flag for store.container_count")
    assert rows["tier1.kind"] == ("file", "default")


def test_config_check_is_silent_about_sound_settings(offline: CommandLine) -> None:
    result = offline("config", "check", "--set", "cache.bytes_max=64MiB")
    assert (result.exit_code, result.content, result.errors) == (ExitCode.OK, b"", "")


def test_config_check_tells_every_problem_on_a_line_of_its_own(offline: CommandLine) -> None:
    result = offline("config", "check", "--set", "cache.bytes=1", "--set", "log.level=loud")
    assert result.exit_code == ExitCode.USAGE
    lines = result.errors.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("the nearest is cache.bytes_max")


def test_a_server_with_unsound_settings_does_not_start(offline: CommandLine) -> None:
    result = offline("standalone", "--set", "log.level=loud")
    assert result.exit_code == ExitCode.USAGE
    assert result.errors.startswith("error: ")


def test_a_server_without_a_data_directory_says_what_is_missing(offline: CommandLine) -> None:
    result = offline("standalone", "--http", "127.0.0.1:0")
    assert result.exit_code == ExitCode.USAGE
    assert "--data" in result.errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "a cluster is named with --cluster"),
        ("--cluster bookkeeper://127.0.0.1:1 --listen off", "--listen is to be an IP address"),
    ],
)
def test_a_controller_that_cannot_be_one_says_why_in_one_sentence(
    offline: CommandLine, flags: str, words: str
) -> None:
    result = offline("controller", *flags.split())
    assert result.exit_code == ExitCode.USAGE
    assert words in result.errors
    assert len(result.errors.splitlines()) == 1


def test_a_name_of_several_addresses_without_a_server_is_told_at_once_as_well(
    offline: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost` is one, with an address of IPv6 that the machine may not have."""
    places = [("127.0.0.1", 1), ("127.0.0.2", 1), ("192.0.2.1", 1)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    connect = asyncio.open_connection

    async def without_a_way(host: str, port: int) -> Any:
        if host == "192.0.2.1":
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return await connect(host, port)

    monkeypatch.setattr("asyncio.open_connection", without_a_way)
    result = offline("scope", "list", "--controller", "tcp://server.example:1")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "no controller answers at tcp://server.example:1: start one" in result.errors


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_error_has_an_exit_code_above_one(kind: ErrorKind) -> None:
    error = SegmentStoreError("x")
    error.kind = kind
    assert exit_code_of(error) > ExitCode.ERROR


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ("segment info a --server http://127.0.0.1:1", "segmentstore standalone'"),
        ("scope list --controller tcp://127.0.0.1:1", "segmentstore standalone'"),
        ("scope create a --controller tcp://127.0.0.1:1,127.0.0.1:2", "segmentstore standalone'"),
        ("topic list --kafka 127.0.0.1:1", "segmentstore standalone --kafka HOST:PORT'"),
    ],
)
def test_a_command_without_a_server_says_at_once_how_to_start_one(
    offline: CommandLine, arguments: str, start: str
) -> None:
    result = offline(*arguments.split())
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert len(result.errors.splitlines()) == 1
    option, _, address = arguments.partition(" --")[2].partition(" ")
    assert f"answers at {address}: start one with '{start}" in result.errors
    assert result.errors.endswith(f", or name another with --{option}\n")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:1",
        "ftp://127.0.0.1:1",
        "http://",
        "http://127.0.0.1:many",
        "http://127.0.0.1:99999",
        "http://[::1",
    ],
)
def test_an_address_that_no_server_can_have_is_a_usage_error_in_one_sentence(
    offline: CommandLine, address: str
) -> None:
    result = offline("segment", "info", "a", "--server", address)
    assert result.exit_code == ExitCode.USAGE
    assert result.errors.startswith("error: an address looks like ")
    assert len(result.errors.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("segment", "info", "\udcff", "--server", "http://127.0.0.1:1"),
        ("segment", "list", "\udcff", "--server", "http://127.0.0.1:1"),
        ("scope", "create", "\udcff", "--controller", "tcp://127.0.0.1:1"),
        ("topic", "info", "a", "--kafka", "\udcff:1"),
        ("topic", "info", "a", "--kafka", "127.0.0.1:99999"),
    ],
)
def test_what_can_be_no_name_or_port_is_a_usage_error_in_one_sentence(
    offline: CommandLine, arguments: tuple[str, ...]
) -> None:
    # Python reads a byte of the command line that is not UTF-8 so.
    result = offline(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert len(result.errors.splitlines()) == 1


def test_a_file_of_settings_that_is_no_text_is_named(offline: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "store.toml"
    file.write_bytes(b"[log]\nlevel = 'inf\xf6'\n")
    result = offline("config", "check", "--config", str(file))
    assert result.exit_code == ExitCode.USAGE
    assert result.errors == f"error: {file}: not text in UTF-8: byte 0xf6 at 18\n"


@pytest.mark.parametrize("address", ["9000", ":9000", "127.0.0.1:99999", "http://127.0.0.1:9000"])
def test_an_s3_endpoint_listens_where_it_was_told_or_not_at_all(
    offline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr("segmentstore.s3.endpoint.run_endpoint", lambda *_, **__: None)
    data = tmp_path / "data"
    result = offline("s3", "--data", str(data), "--listen", address)
    assert result.exit_code == ExitCode.USAGE
    assert "HOST:PORT" in result.errors
    assert not data.exists()


def test_a_letter_that_the_terminal_does_not_have_is_shown_as_an_escape() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "segmentstore.cli", "config", "show", "--data", "/\u65e5"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (ExitCode.OK, b"")
    assert rb"/\u65e5" in shown.stdout


@pytest.mark.parametrize(
    "arguments", [("segment", "read"), ("segment", "truncate", "a", "many"), ("nonsense",)]
)
def test_wrong_arguments_end_with_usage(offline: CommandLine, arguments: tuple[str, ...]) -> None:
    assert offline(*arguments).exit_code == ExitCode.USAGE


def test_help_shows_the_first_sentence_that_each_command_says_of_itself() -> None:
    listed = {name: each.get_short_help_str(limit=1000) for name, each in cli.commands.items()}
    assert listed == {
        str(each.name): each.get_short_help_str(limit=1000) for each in commands_of(cli)
    }


@pytest.mark.integration
def test_help_does_not_load_what_only_commands_need() -> None:
    script = (
        "import sys, json; from segmentstore.cli.main import run; run(['--help']); "
        "print(json.dumps([m for m in ('aiohttp', 'tqdm', 'lz4', 'uvloop') if m in sys.modules]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(output.splitlines()[-1]) == []


@pytest.mark.integration
def test_a_server_refuses_to_run_without_its_assertions(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-O",
        "-m",
        "segmentstore.cli",
        "standalone",
        "--data",
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == ExitCode.USAGE
    assert "python -O" in result.stderr


def commands_of(group: click.Command) -> list[click.Command]:
    if not isinstance(group, click.Group):
        return []
    context = click.Context(group)
    found = [group.get_command(context, name) for name in group.list_commands(context)]
    return [each for each in found if each is not None]


def variables_of(command: click.Command) -> set[str]:
    found = {
        str(parameter.envvar)
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.envvar
    }
    return found.union(*(variables_of(each) for each in commands_of(command)))


def test_a_variable_that_any_command_reads_keeps_no_server_from_starting(
    offline: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = variables_of(cli) | {"SEGMENTSTORE_NATIVE", "SEGMENTSTORE_S3_ACCESS_KEY"}
    assert {"SEGMENTSTORE_SERVER", "SEGMENTSTORE_CONTROLLER"} <= variables
    for variable in variables:
        monkeypatch.setenv(variable, "off" if variable == "SEGMENTSTORE_NATIVE" else "x:1")
    monkeypatch.delenv("SEGMENTSTORE_CONFIG", raising=False)
    assert offline("config", "check").exit_code == ExitCode.OK
