"""Numbers of the command line that no command can mean: each is refused in one sentence, and nothing is asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from segmentstore.cli import cluster as cluster_command
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.options import BYTES, SECONDS
from segmentstore.client.controller_channel import ControllerChannel
from tests.cli.command_line import CommandLine

HUGE = "9" * 30
NOWHERE = ("--controller", "tcp://127.0.0.1:1")


@pytest.fixture(autouse=True)
def _nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a server is asked")

    monkeypatch.setattr(asyncio.AbstractEventLoop, "create_connection", refused)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", refused)
    monkeypatch.setattr(ControllerChannel, "_call", refused)


@pytest.mark.parametrize(
    "arguments",
    [
        ("segment", "append", "a", "FILE", "--piece", "0"),
        ("segment", "append", "a", "FILE", "--piece", "1TiB"),
        ("segment", "append", "a", "FILE", "--piece", HUGE),
        ("segment", "append", "a", "FILE", "--piece", "-1"),
        ("segment", "append", "a", "FILE", "--offset", "-1"),
        ("segment", "tail", "a", "--offset", "-1"),
        ("segment", "truncate", "a", "--", "-1"),
        ("load", "FILE", "--piece", "0"),
        ("load", "FILE", "--piece", "1TiB"),
        ("bench", "--size", "0", "--server", "http://127.0.0.1:1"),
        ("bench", "--size", "1TiB", "--server", "http://127.0.0.1:1"),
        ("bench", "--seconds", "9" * 400, "--server", "http://127.0.0.1:1"),
        ("tier2", "cat", "FILE", "a", "--offset", "-1"),
        ("tier2", "cat", "FILE", "a", "--length", "-1"),
        ("stream", "create", "s/t", "--segments", HUGE, *NOWHERE),
        ("stream", "create", "s/t", "--events-per-second", HUGE, *NOWHERE),
        ("stream", "create", "s/t", "--kilobytes-per-second", "2147483648", *NOWHERE),
        (
            *("stream", "create", "s/t", "--events-per-second", "1"),
            *("--scale-factor", HUGE, *NOWHERE),
        ),
        ("stream", "create", "s/t", "--retain", f"{HUGE}d", *NOWHERE),
        ("stream", "create", "s/t", "--retain", f"{'9' * 400}d", *NOWHERE),
        ("stream", "update", "s/t", "--retain-size", f"{HUGE}TiB", *NOWHERE),
        ("stream", "scale", "s/t", "--segments", HUGE, *NOWHERE),
        ("stream", "read", "s/t", "--from", f"s/t:0={HUGE}", *NOWHERE),
        ("stream", "truncate", "s/t", f"s/t:{HUGE}=0", *NOWHERE),
        ("txn", "begin", "s/t", "--lease", f"{HUGE}d", *NOWHERE),
        ("table", "create", "s/t", "--partitions", HUGE, *NOWHERE),
        ("table", "put", "s/t", "k", "v", "--version", "-2", *NOWHERE),
        ("table", "put", "s/t", "k", "v", "--version", str(-(1 << 63)), *NOWHERE),
        ("table", "remove", "s/t", "k", "--version", "-1", *NOWHERE),
        ("stream", "write", "s/t", "FILE", "--key-separator", "", *NOWHERE),
        ("topic", "produce", "t", "FILE", "--key-separator", ""),
        ("spark", "submit", "verify", "--tier2", "FILE", "--task-bytes", "0"),
        ("spark", "submit", "compact", "--tier2", "FILE", "--chunk-bytes", "0"),
        ("spark", "submit", "export", "OUT", "--stream", "s/t", "--batch-bytes", "0"),
    ],
    ids=lambda arguments: " ".join(each[:20] for each in arguments),
)
def test_a_number_that_cannot_be_meant_is_refused(
    offline: CommandLine, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_bytes(b"content")
    given = [str(tmp_path / "file") if each == "FILE" else each for each in arguments]
    refused = offline(*given)
    assert (refused.exit_code, refused.content) == (ExitCode.USAGE, b""), refused.errors
    *_, told = refused.errors.splitlines()
    assert told.lower().startswith("error: ")


@pytest.mark.parametrize("words", [("retry", "4"), ("move", "4", "any")])
def test_a_container_that_the_store_has_not_is_refused(
    offline: CommandLine, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(identity=SimpleNamespace(container_count=4), store=None)

    monkeypatch.setattr(cluster_command, "open_cluster_access", opened)
    refused = offline("cluster", *words, "--cluster", "bookkeeper://127.0.0.1:1/ledgers")
    assert refused.exit_code == ExitCode.USAGE, refused.errors
    assert refused.errors == "error: there is no such container container=4 count=4\n"


def test_sizes_and_times_that_are_meant_are_taken() -> None:
    assert BYTES.convert("0", None, None) == 0
    assert BYTES.convert("1TiB", None, None) == 1 << 40
    assert SECONDS.convert("0", None, None) == 0
