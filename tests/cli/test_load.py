import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.load import LoadConflictError, Loader, SegmentPlan, plan_load
from segmentstore.cli.server_process import ServerProcess
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError
from tests.cli.command_line import CommandLine


def names(plans: Sequence[SegmentPlan]) -> list[str]:
    return [plan.name for plan in plans]


def test_a_file_goes_into_a_segment_of_its_own_name(tree: Path) -> None:
    assert names(plan_load([tree / "a.txt"])) == ["a.txt"]
    assert names(plan_load([tree / "a.txt"], prefix="x/")) == ["x/a.txt"]


def test_the_files_of_a_tree_are_named_by_their_path_without_hidden_and_cached_ones(
    tree: Path,
) -> None:
    inside = ["a.txt", "empty.txt", "pack/deep/three.py", "pack/one.py", "pack/two.py"]
    assert names(plan_load([tree])) == [f"tree/{name}" for name in inside]
    assert names(plan_load([tree], prefix="")) == inside


def test_by_package_joins_the_files_below_each_top_name_in_order(tree: Path) -> None:
    plans = plan_load([tree], prefix="", by_package=True)
    assert names(plans) == ["a", "empty", "pack"]
    whole = (
        (tree / "pack/deep/three.py").read_bytes()
        + (tree / "pack/one.py").read_bytes()
        + (tree / "pack/two.py").read_bytes()
    )
    assert plans[2].length == len(whole)
    assert plans[2].read(0, len(whole)) == whole
    for offset, length in ((0, 1), (9, 5), (10, 8), (15, 100), (len(whole) - 3, 3)):
        assert plans[2].read(offset, length) == whole[offset : offset + length]


def test_include_takes_only_matching_file_names(tree: Path) -> None:
    assert names(plan_load([tree], prefix="", include=["*.txt"])) == ["a.txt", "empty.txt"]


def test_two_paths_that_claim_one_name_are_refused(tree: Path) -> None:
    with pytest.raises(InvalidRequestError, match="two paths claim one segment"):
        plan_load([tree / "a.txt", tree], prefix="")


def test_a_file_that_shrinks_during_the_load_is_noticed(tree: Path) -> None:
    (plan,) = plan_load([tree / "a.txt"])
    (tree / "a.txt").write_bytes(b"al")
    with pytest.raises(InvalidRequestError, match="became shorter"):
        plan.read(0, plan.length)


@pytest.mark.integration
def test_a_tree_is_loaded_and_a_second_load_adds_nothing(cli: CommandLine, tree: Path) -> None:
    first = cli.load(str(tree), "--prefix", "t1/")
    assert first.exit_code == ExitCode.OK
    assert {row["found_bytes"] for row in first.rows} == {0}
    second = cli.load(str(tree), "--prefix", "t1/", "--seal")
    assert all(row["found_bytes"] == row["length"] for row in second.rows)
    for row in second.rows:
        content = (tree / row["name"].removeprefix("t1/")).read_bytes()
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
        assert cli.segment("read", row["name"]).content == content
        assert cli.segment("info", row["name"], "-o", "json").row["sealed"]
    third = cli.load(str(tree), "--prefix", "t1/", "--seal")
    assert third.exit_code == ExitCode.OK


@pytest.mark.integration
def test_a_load_takes_up_a_segment_that_is_half_there(cli: CommandLine, tree: Path) -> None:
    half = tree.parent / "half"
    half.write_bytes((tree / "pack/two.py").read_bytes()[:300_001])
    cli.segment("create", "t2/two.py")
    cli.segment("append", "t2/two.py", str(half))
    (row,) = cli.load(str(tree / "pack/two.py"), "--prefix", "t2/", "--piece", "64KiB").rows
    assert row["found_bytes"] == 300_001
    assert cli.segment("read", "t2/two.py").content == (tree / "pack/two.py").read_bytes()


@pytest.mark.integration
def test_a_segment_with_other_bytes_is_left_alone(cli: CommandLine, tree: Path) -> None:
    cli.segment("create", "t3/a.txt")
    cli.segment("append", "t3/a.txt", str(tree / "pack/one.py"))
    longer = cli.load(str(tree / "a.txt"), "--prefix", "t3/")
    assert longer.exit_code == ExitCode.CONFLICT
    (tree / "a.txt").write_bytes(b"alphabet and more")
    other = cli.load(str(tree / "a.txt"), "--prefix", "t3/")
    assert other.exit_code == ExitCode.CONFLICT
    assert "other bytes" in other.errors
    assert cli.segment("read", "t3/a.txt").content == b"one = 1\n"


@pytest.mark.integration
def test_a_sealed_segment_that_is_too_short_is_said_to_be_sealed(
    cli: CommandLine, tree: Path
) -> None:
    cli.segment("create", "t4/a.txt")
    cli.segment("seal", "t4/a.txt")
    result = cli.load(str(tree / "a.txt"), "--prefix", "t4/")
    assert result.exit_code == ExitCode.CONFLICT
    assert "sealed" in result.errors


@pytest.mark.integration
@pytest.mark.slow
def test_a_load_that_is_cut_off_by_kill_9_goes_on_without_loss_or_repeat(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(6):
        (files / f"{number}").write_bytes(bytes([number]) * 700_000 + b"end")
    plans = plan_load([files], prefix="")
    kills_at = [300_000, 900_000, 2_000_000, 3_500_000]

    async def load(server: ServerProcess, kill_at: int | None) -> int:
        sent = 0

        def progress(count: int) -> None:
            nonlocal sent
            sent += count
            if kill_at is not None and sent >= kill_at and server.is_running:
                server.kill()

        async with HttpClient(server.address) as client:
            loader = Loader(
                client=client,
                piece_bytes=50_000,
                segments_at_once=3,
                seal=False,
                retry_seconds=0,
                progress=progress,
            )
            results = await loader.load(plans)
            for plan in plans:
                content = (await client.read(plan.name, 0, 2 * plan.length)).content
                assert content == plan.read(0, plan.length)
            return sum(result.found_bytes for result in results)

    with ServerProcess(tmp_path / "data") as server:
        for kill_at in kills_at:
            with pytest.raises(ServerError):
                asyncio.run(load(server, kill_at))
            server.start()
        found = asyncio.run(load(server, None))
    assert found >= kills_at[-1]


class ForgetfulClient(HttpClient):
    """Every third append is stored, but its answer is lost; every fifth never arrives."""

    appends = 0

    async def append(self, name: str, content: bytes, *, offset: int | None = None) -> int:
        self.appends += 1
        lost = ServerError("the answer was lost", ErrorKind.UNAVAILABLE)
        if self.appends % 5 == 0:
            raise lost
        length = await super().append(name, content, offset=offset)
        if self.appends % 3 == 0:
            raise lost
        return length


@pytest.mark.integration
def test_an_append_whose_answer_is_lost_is_stored_once(server: ServerProcess, tree: Path) -> None:
    plans = plan_load([tree / "pack" / "two.py"], prefix="forgetful/")

    async def load() -> bytes:
        async with ForgetfulClient(server.address) as client:
            loader = Loader(
                client=client, piece_bytes=50_000, segments_at_once=1, seal=True, retry_seconds=30
            )
            await loader.load(plans)
            assert client.appends > 20
            return (await client.read(plans[0].name, 0, 10_000_000)).content

    assert asyncio.run(load()) == (tree / "pack" / "two.py").read_bytes()


class CrowdedClient(HttpClient):
    """Another one appends to the same segment behind the first piece."""

    appends = 0

    async def append(self, name: str, content: bytes, *, offset: int | None = None) -> int:
        self.appends += 1
        if self.appends == 2:
            await super().append(name, b"intruder")
        return await super().append(name, content, offset=offset)


@pytest.mark.integration
def test_somebody_else_who_appends_during_the_load_is_noticed(
    server: ServerProcess, tree: Path
) -> None:
    (plan,) = plan_load([tree / "pack" / "two.py"], prefix="crowded/")

    async def load() -> None:
        async with CrowdedClient(server.address) as client:
            loader = Loader(
                client=client,
                piece_bytes=50_000,
                segments_at_once=1,
                seal=False,
                retry_seconds=0,
            )
            with pytest.raises(LoadConflictError):
                await loader.load([plan])
            assert client.appends == 2

    asyncio.run(load())
