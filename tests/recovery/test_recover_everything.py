"""Everything but Tier 2 is lost, and everything that was flushed comes back: H7, H15, H78."""

import asyncio
import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client import StreamCut, connect
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.streams.repair import NUMBERS_SKIPPED
from tests.cli.command_line import CommandLine
from tests.cli.controller_commands import ControllerCommands, no_server_is_silent
from tests.client.real_server import controller_address
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url

__all__ = ["bucket", "credentials", "moto_url", "no_server_is_silent"]

pytestmark = pytest.mark.integration


@dataclass
class Client:
    """Both kinds of commands against one server."""

    segments: CommandLine
    streams: ControllerCommands

    def must(self, *arguments: str, lines: bytes | None = None) -> str:
        result = self.streams(*arguments, lines=lines)
        assert result.exit_code == ExitCode.OK, (arguments, result.errors)
        return result.text

    def segment(self, verb: str, *arguments: str) -> str:
        result = self.segments.segment(verb, *arguments)
        assert result.exit_code == ExitCode.OK, (verb, arguments, result.errors)
        return result.text

    def everything(self) -> dict[str, object]:
        """What a user can see, with the bytes as hashes."""
        rows = [json.loads(line) for line in self.segment("list", "-o", "json").splitlines()]
        seen: dict[str, object] = {}
        for row in rows:
            content = self.segments.segment("read", row["name"]).content
            facts = {key: row[key] for key in ("start_offset", "length", "sealed", "segment_id")}
            seen[row["name"]] = {**facts, "sha256": hashlib.sha256(content).hexdigest()}
        for name in json_names(self.must("stream", "list", "s", "-o", "json"), "stream"):
            read = self.must("stream", "read", name)
            seen[f"stream {name}"] = (sorted(read.splitlines()), self.must("stream", "info", name))
        seen["table"] = self.must("table", "entries", "s/table", "-o", "json")
        return seen


def json_names(text: str, field: str) -> list[str]:
    return [json.loads(line)[field] for line in text.splitlines()]


def client_of(server: ServerProcess, capture: pytest.CaptureFixture[bytes], folder: Path) -> Client:
    line = CommandLine(capture, server.address)
    return Client(line, ControllerCommands(line, controller_address(server), folder))


def work(client: Client, folder: Path) -> str:
    """Segments, streams that were scaled, truncated and sealed, transactions in every state, a table.

    Returns the transaction that is open still.
    """
    for number in range(6):
        (folder / "content").write_bytes(bytes([number]) * (7_000 * number + 1))
        client.segment("create", f"plain/{number}")
        for _ in range(3):
            client.segment("append", f"plain/{number}", str(folder / "content"))
    client.segment("seal", "plain/2")
    client.segment("truncate", "plain/5", "12345")
    client.must("scope", "create", "s")
    for name in ("grown", "sealed", "quiet"):
        client.must("stream", "create", f"s/{name}", "--segments", "2")
    lines = b"".join(b"%d:event %d\n" % (number % 17, number) for number in range(300))
    client.must("stream", "write", "s/grown", "--key-separator", ":", lines=lines)
    client.must("stream", "scale", "s/grown", "--segments", "3")
    client.must("stream", "write", "s/grown", "--key-separator", ":", lines=lines)
    client.must("stream", "write", "s/sealed", lines=b"one\ntwo\n")
    client.must("stream", "seal", "s/sealed")
    committed = begin(client)
    client.must("txn", "write", "s/grown", committed, lines=b"in a transaction\n" * 20)
    client.must("txn", "commit", "s/grown", committed)
    # It has ended, and the next one too, before the flush that follows.
    wait_until_gone(client, committed)
    aborted = begin(client)
    client.must("txn", "write", "s/grown", aborted, lines=b"never seen\n")
    client.must("txn", "abort", "s/grown", aborted)
    wait_until_gone(client, aborted)
    still_open = begin(client)
    client.must("txn", "write", "s/grown", still_open, lines=b"never seen either\n")
    client.must("table", "create", "s/table")
    for number in range(20):
        client.must("table", "put", "s/table", f"key{number:02d}", f"value {number}")
    client.must("table", "remove", "s/table", "key07")
    return still_open


def changed(seen: dict[str, object]) -> set[str]:
    """What a recovery adds to: the records of streams, and the streams that go on."""
    streams = ("s/grown", "s/quiet", "stream s/grown", "stream s/quiet", "_system/_tables/s")
    return {name for name in seen if name.startswith(streams)}


def contents(seen: object) -> object:
    """What was written to a segment or a stream, without what a recovery adds."""
    if isinstance(seen, dict):
        return (seen["sha256"], seen["start_offset"], seen["length"])
    assert isinstance(seen, tuple), seen
    return seen[0]


async def tail_of(address: str, stream: str) -> StreamCut:
    async with connect(address) as store:
        return await store.stream(stream).tail()


async def read_from(address: str, stream: str, start: StreamCut) -> list[bytes]:
    async with (
        asyncio.timeout(120),
        connect(address) as store,
        store.stream(stream).read(start) as events,
    ):
        return [event.data async for event in events]


def wait_until_gone(client: Client, part: str) -> None:
    for _ in range(600):
        if part not in client.segment("list", "-o", "json"):
            return
        time.sleep(0.1)
    raise AssertionError(f"segments with {part!r} in their names are still there")


def begin(client: Client) -> str:
    return str(
        json.loads(client.must("txn", "begin", "s/grown", "--lease", "600s", "-o", "json"))[
            "transaction"
        ]
    )


def recover_twice(cli: CommandLine, stores: Path) -> tuple[str, str]:
    """What was said to the first recovery from `old` to `new`, and to the same command again."""
    arguments = ["recover", "--from-tier2", str(stores / "old"), "--data", str(stores / "new")]
    said: list[str] = []
    for _ in range(2):
        done = cli(*arguments, "--quiet", "-o", "json")
        assert done.exit_code == ExitCode.OK, done.errors
        said.append(done.errors)
    return said[0], said[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "files"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("kind", "copy"),
    [("volumes", False), ("volumes", True), ("filesystem", False), ("s3", False), ("s3", True)],
)
def test_h7_h15_everything_that_was_flushed_comes_back_from_tier_2_alone(
    tmp_path: Path,
    folder: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    kind: str,
    copy: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, options = str(tmp_path / "old"), ["--tier2", kind]
    if kind == "s3":
        request.getfixturevalue("credentials")
        monkeypatch.setenv("SEGMENTSTORE_S3_ENDPOINT_URL", request.getfixturevalue("moto_url"))
        place = f"s3://{request.getfixturevalue('bucket')}/store"
        options = ["--tier2", place]
    # Nothing reaches Tier 2 but by the flush below, however long the rest takes.
    options += ["--set", "writer.flush_interval_seconds=1h"]
    with ServerProcess(tmp_path / "old", options) as old:
        client = client_of(old, capfdbinary, folder)
        still_open = work(client, folder)
        client.segment("flush")
        flushed = client.everything()
        # Aborted by the repair, and their segments deleted by the controller's start.
        flushed = {name: seen for name, seen in flushed.items() if "transaction" not in name}
        client.segment("append", "plain/0", str(folder / "content"))
        client.must("stream", "write", "s/quiet", lines=b"not flushed\n")
        old.kill()
    for name in ("tier1", "identity", "lock"):
        path = tmp_path / "old" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    cli = CommandLine(capfdbinary)
    arguments = ["recover", "--from-tier2", place, "--data", str(tmp_path / "new")]
    arguments += ["--quiet", "-o", "json", *(["--copy"] if copy else [])]
    preview = cli(*arguments, "--dry-run")
    assert preview.exit_code == ExitCode.OK, preview.errors
    assert not (tmp_path / "new").exists()
    done = cli(*arguments)
    assert done.exit_code == ExitCode.OK, done.errors
    assert [row["action"] for row in done.rows] == ["made"] * 4
    assert sum(row["segments"] for row in done.rows) >= len(flushed) - 4
    assert [row["segments"] for row in done.rows] == [row["segments"] for row in preview.rows]
    assert "start it with: segmentstore standalone --data" in done.errors
    assert f"committed if that was decided, and aborted if not: s/grown {still_open}" in done.errors
    assert f"were open and are aborted: their clients begin them anew: s/grown {still_open}" in (
        done.errors
    )
    assert "not repaired" not in done.errors
    if copy:
        shutil.rmtree(tmp_path / "old")
    restart = ["--tier2", place] if kind == "s3" and not copy else []
    with ServerProcess(tmp_path / "new", restart) as new:
        client = client_of(new, capfdbinary, folder)
        wait_until_gone(client, "#transaction.")
        found = client.everything()
        # Streams go on in other segments: what their last ones had beyond Tier 2 is lost.
        assert {name: found.get(name) for name in flushed if name not in changed(flushed)} == {
            name: seen for name, seen in flushed.items() if name not in changed(flushed)
        }
        for name in (name for name in changed(flushed) if not name.startswith("_system/")):
            assert contents(found[name]) == contents(flushed[name]), name
        assert {name.split(".#epoch.")[0] for name in set(found) - set(flushed)} == {
            "_system/_tables/transactions",
            *(f"s/grown/{number}" for number in range(NUMBERS_SKIPPED + 5, NUMBERS_SKIPPED + 8)),
            *(f"s/quiet/{number}" for number in range(NUMBERS_SKIPPED + 2, NUMBERS_SKIPPED + 4)),
        }
        assert "never seen" not in client.must("stream", "read", "s/grown")
        client.must("stream", "write", "s/quiet", lines=b"goes on\n")
        assert client.must("stream", "read", "s/quiet") == "goes on\n"
        transaction = begin(client)
        client.must("txn", "write", "s/grown", transaction, lines=b"committed later\n")
        client.must("txn", "commit", "s/grown", transaction)
        client.must("stream", "scale", "s/grown", "--segments", "2")
        assert "committed later" in client.must("stream", "read", "s/grown")
        client.must("table", "put", "s/table", "key07", "again")


def test_h78_a_stream_whose_segments_did_not_reach_tier_2_is_made_whole_and_nothing_is_deleted(
    tmp_path: Path, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with ServerProcess(tmp_path / "old", ["--set", "writer.flush_interval_seconds=1h"]) as old:
        client = client_of(old, capfdbinary, folder)
        client.must("scope", "create", "s")
        client.must("table", "create", "s/table")
        client.segment("flush")
        client.must("stream", "create", "s/late", "--segments", "8")
        client.must("stream", "write", "s/late", lines=b"lost with Tier 1\n" * 40)
        rows = json.loads(client.must("stream", "info", "s/late", "-o", "json"))
        assert rows["segments"] == 8
        # The container that knows of the stream reaches Tier 2, the others do not.
        for name in ("_system/_tables/scopes", "_system/_tables/s/1"):
            client.segment("flush", name)
        old.kill()
    first, second = recover_twice(CommandLine(capfdbinary), tmp_path)
    assert "created empty" in first
    assert "created empty" not in second
    with ServerProcess(tmp_path / "new") as new:
        client = client_of(new, capfdbinary, folder)
        assert json.loads(client.must("stream", "info", "s/late", "-o", "json"))["segments"] == 8
        client.must("stream", "write", "s/late", lines=b"goes on\n" * 40)
        assert client.must("stream", "read", "s/late").count("goes on\n") == 40


def test_h78_an_open_transaction_of_which_a_part_is_lost_is_aborted_and_holds_up_no_other(
    tmp_path: Path, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with ServerProcess(tmp_path / "old", ["--set", "writer.flush_interval_seconds=1h"]) as old:
        client = client_of(old, capfdbinary, folder)
        client.must("scope", "create", "s")
        client.must("stream", "create", "s/grown", "--segments", "8")
        client.must("table", "create", "s/table")
        client.must("stream", "write", "s/grown", lines=b"flushed\n")
        client.segment("flush")
        half_lost = begin(client)
        client.must("txn", "write", "s/grown", half_lost, lines=b"in a transaction\n" * 100)
        # The containers that know of the transaction reach Tier 2, with its segments there; the others do not.
        client.segment("flush", "_system/_tables/transactions")
        old.kill()
    cli = CommandLine(capfdbinary)
    arguments = ["recover", "--from-tier2", str(tmp_path / "old"), "--data", str(tmp_path / "new")]
    done = cli(*arguments, "--quiet", "-o", "json")
    assert done.exit_code == ExitCode.OK, done.errors
    assert f"are aborted: their clients begin them anew: s/grown {half_lost}" in done.errors
    again = cli(*arguments, "--quiet", "-o", "json")
    assert "are aborted: their clients" not in again.errors
    with ServerProcess(tmp_path / "new") as new:
        client = client_of(new, capfdbinary, folder)
        assert client.streams("txn", "commit", "s/grown", half_lost).exit_code != ExitCode.OK
        another = begin(client)
        client.must("txn", "write", "s/grown", another, lines=b"another\n")
        client.must("txn", "commit", "s/grown", another)
        wait_until_gone(client, "#transaction.")
        read = client.must("stream", "read", "s/grown").split()
        assert sorted(read) == ["another", "flushed"]


def test_h78_no_segment_has_two_histories_when_its_tail_went_with_tier_1(
    tmp_path: Path, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A position that was taken behind what Tier 2 has is loss, and never a place in the middle of newer events."""
    with ServerProcess(tmp_path / "old", ["--set", "writer.flush_interval_seconds=1h"]) as old:
        client = client_of(old, capfdbinary, folder)
        client.must("scope", "create", "s")
        client.must("table", "create", "s/table")
        client.must("stream", "create", "s/tail")
        client.must("stream", "write", "s/tail", lines=b"flushed\n")
        client.segment("flush")
        client.must("stream", "write", "s/tail", lines=b"acknowledged\n" * 3)
        positions = asyncio.run(tail_of(controller_address(old), "s/tail"))
        old.kill()
    first, second = recover_twice(CommandLine(capfdbinary), tmp_path)
    assert "position behind such an end is lost: s/tail/0.#epoch.0 at 15" in first
    assert "position behind" not in second
    with ServerProcess(tmp_path / "new") as new:
        client = client_of(new, capfdbinary, folder)
        client.must("stream", "write", "s/tail", lines=b"goes on, and longer\n" * 3)
        read = client.must("stream", "read", "s/tail")
        assert read == "flushed\n" + "goes on, and longer\n" * 3
        with pytest.raises(SegmentStoreError, match="past the end"):
            asyncio.run(read_from(controller_address(new), "s/tail", positions))
