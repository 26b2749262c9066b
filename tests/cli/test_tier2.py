import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.server_process import ServerProcess
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.identifiers import ContainerId
from tests.cli.command_line import CommandLine
from tests.s3.conftest import Process, client_of

pytestmark = pytest.mark.integration

CONTENT = {f"t/{number}": bytes([number]) * (number * 10_000 + 1) for number in range(12)}
NO_STREAMS = ["--controller", "off", "--wire", "off"]
"""The controller's own tables would be listed as well."""
INCOMPRESSIBLE = Random(1).randbytes(60_000)
CONTENT["random"] = INCOMPRESSIBLE


@pytest.fixture(scope="module")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with some segments, flushed and stopped."""
    directory = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context(), ServerProcess(directory / "data", NO_STREAMS) as server:
        for name, content in CONTENT.items():
            (directory / "content").write_bytes(content)
            for command in (["create", name], ["append", name, str(directory / "content")]):
                run_quietly("segment", *command, "--server", server.address)
        run_quietly("segment", "flush", "--server", server.address)
        assert server.terminate() == 0
        yield directory / "data"
        server.start()


def run_quietly(*arguments: str) -> None:
    from segmentstore.cli.main import run

    assert run([*arguments]) == ExitCode.OK, arguments


@pytest.mark.parametrize("place", ["{}", "{}/tier2", "file://{}", "file://{}/tier2"])
def test_tier2_is_listed_with_the_service_off(
    offline: CommandLine, data_directory: Path, place: str
) -> None:
    rows = offline("tier2", "ls", place.format(data_directory), "-o", "json").rows
    assert {row["name"]: row["length"] for row in rows} == {
        name: len(content) for name, content in CONTENT.items()
    }
    assert [row["name"] for row in rows] == sorted(CONTENT)


def test_tier2_ls_takes_a_prefix(offline: CommandLine, data_directory: Path) -> None:
    rows = offline("tier2", "ls", str(data_directory), "t/1", "-o", "json").rows
    assert [row["name"] for row in rows] == ["t/1", "t/10", "t/11"]


def test_tier2_cat_gives_the_bytes_or_a_stretch_of_them(
    offline: CommandLine, data_directory: Path
) -> None:
    for name, content in CONTENT.items():
        found = offline("tier2", "cat", str(data_directory), name).content
        assert hashlib.sha256(found).digest() == hashlib.sha256(content).digest()
    cat = ("tier2", "cat", str(data_directory), "t/3")
    assert offline(*cat, "--offset", "30000").content == b"\3"
    assert offline(*cat, "--length", "5").content == b"\3" * 5
    assert offline(*cat, "--offset", "29999", "--length", "9").content == b"\3\3"


def test_what_is_not_there_is_not_found(offline: CommandLine, data_directory: Path) -> None:
    assert offline("tier2", "cat", str(data_directory), "no").exit_code == ExitCode.NOT_FOUND
    assert offline("tier2", "ls", str(data_directory / "tier1")).exit_code == ExitCode.USAGE
    assert offline("tier2", "ls", "gs://bucket").exit_code == ExitCode.USAGE
    missing = str(data_directory / "missing")
    for command in (["tier2", "ls"], ["tier2", "verify"], ["backup", "list"]):
        refused = offline(*command, missing)
        assert refused.exit_code == ExitCode.USAGE
        assert refused.errors == f"error: there is no such directory place={missing}\n"


def test_the_logs_are_shown_frame_by_frame_and_operation_by_operation(
    offline: CommandLine, data_directory: Path
) -> None:
    frames = offline("log", "inspect", str(data_directory), "-o", "json")
    assert {row["log"] for row in frames.rows} == {f"container-000{n}" for n in range(4)}
    one_log = data_directory / "tier1" / "container-0000"
    operations = offline("log", "inspect", str(one_log), "--operations", "-o", "json").rows
    assert {row["log"] for row in operations} == {"container-0000"}
    sequences = [row["sequence"] for row in operations]
    assert sequences == sorted(set(sequences))
    assert "metadata_checkpoint" in {row["operation"] for row in operations}
    assert offline("log", "inspect", str(data_directory / "tier2")).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("operations", [False, True])
def test_a_damaged_log_is_named_and_hides_no_other(
    offline: CommandLine, data_directory: Path, tmp_path: Path, *, operations: bool
) -> None:
    shutil.copytree(data_directory / "tier1", tmp_path / "tier1")
    rows = offline("log", "inspect", str(tmp_path), "-o", "json").rows
    frames = [row for row in rows if row["log"] == "container-0001" and row["entries"]]
    # The header of one that others follow, or the entries of the last one, which a mark behind it calls synced.
    frame, place = (frames[-1], 200) if operations else (frames[0], 0)
    journal = tmp_path / "tier1" / "container-0001" / frame["journal"]
    content = bytearray(journal.read_bytes())
    content[frame["offset"] + place] ^= 1
    journal.write_bytes(content)
    flags = ["--operations"] if operations else []
    shown = offline("log", "inspect", str(tmp_path), "-o", "json", *flags)
    assert shown.exit_code == ExitCode.CORRUPT
    [error] = shown.errors.splitlines()
    assert error.startswith("error: ")
    assert "container-0001" in error
    others = {f"container-000{number}" for number in (0, 2, 3)}
    assert {row["log"] for row in shown.rows} - {"container-0001"} == others


def test_verify_finds_nothing_in_a_sound_tier_2_and_names_what_is_damaged(
    offline: CommandLine, data_directory: Path
) -> None:
    sound = offline("tier2", "verify", str(data_directory), "--deep", "--quiet", "-o", "json")
    assert sound.exit_code == ExitCode.OK, sound.errors
    assert " 0 problems" in sound.errors
    quick = offline("tier2", "verify", str(data_directory), "--quiet", "-o", "json")
    assert [row["chunks"] for row in quick.rows] == [row["chunks"] for row in sound.rows]
    assert sum(row["segments"] for row in sound.rows) == len(CONTENT)
    assert sum(row["damages"] for row in sound.rows) == 0
    [(volume, place)] = [
        (path, path.read_bytes().index(INCOMPRESSIBLE[30_000:31_000]))
        for path in data_directory.glob("tier2/volumes/*.dat")
        if INCOMPRESSIBLE[30_000:31_000] in path.read_bytes()
    ]
    whole = volume.read_bytes()
    volume.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    damaged = offline("tier2", "verify", str(data_directory), "--deep", "--quiet", "-o", "json")
    volume.write_bytes(whole)
    assert damaged.exit_code == ExitCode.CORRUPT
    assert "error: " in damaged.errors
    assert " 0 problems" not in damaged.errors
    assert sum(row["damages"] for row in damaged.rows) > 0


@pytest.fixture
def plain_tier2(tmp_path: Path) -> Path:
    """A Tier 2 in plain files, of a store that was stopped; its roots can be reached."""
    options = [*NO_STREAMS, "--tier2", "filesystem"]
    with ServerProcess(tmp_path / "plain", options) as server:
        assert server.terminate() == 0
    return tmp_path / "plain" / "tier2"


def test_verify_misses_a_container_whose_root_is_gone(
    offline: CommandLine, plain_tier2: Path
) -> None:
    assert offline("tier2", "verify", str(plain_tier2), "--quiet").exit_code == ExitCode.OK
    (plain_tier2 / "objects/containers/0002/root").unlink()
    found = offline("tier2", "verify", str(plain_tier2), "--quiet", "-o", "json")
    assert found.exit_code == ExitCode.CORRUPT
    assert [row["container"] for row in found.rows] == [0, 1, 3]
    assert "no manifest container=2 of=4" in found.errors


@pytest.mark.parametrize("root", ["gone", "damaged"])
def test_a_listing_without_a_container_is_none_of_the_whole_and_its_segments_are_not_absent(
    offline: CommandLine, tmp_path: Path, root: str
) -> None:
    data = tmp_path / "plain"
    names = {container_of(f"t/{number}", 4): f"t/{number}" for number in range(30)}
    assert len(names) == 4
    (tmp_path / "content").write_bytes(b"content")
    with ServerProcess(data, [*NO_STREAMS, "--tier2", "filesystem"]) as server:
        for name in names.values():
            for command in (["create", name], ["append", name, str(tmp_path / "content")]):
                run_quietly("segment", *command, "--server", server.address)
        run_quietly("segment", "flush", "--server", server.address)
        assert server.terminate() == 0
    manifest = data / "tier2/objects/containers/0002/root"
    if root == "gone":
        manifest.unlink()
    else:
        manifest.write_bytes(b"")
    listed = offline("tier2", "ls", str(data), "-o", "json")
    assert listed.exit_code == ExitCode.CORRUPT
    assert "container=2" in listed.errors
    others = sorted(name for container_id, name in names.items() if container_id != 2)
    assert [row["name"] for row in listed.rows] == others
    for name in others:
        assert offline("tier2", "cat", str(data), name).content == b"content"
    lost = offline("tier2", "cat", str(data), names[ContainerId(2)])
    assert lost.exit_code == ExitCode.CORRUPT
    assert "container=2" in lost.errors
    never = next(name for number in range(99) if container_of(name := f"no/{number}", 4) != 2)
    assert offline("tier2", "cat", str(data), never).exit_code == ExitCode.NOT_FOUND


def test_verify_says_which_root_is_damaged_and_looks_at_the_others(
    offline: CommandLine, plain_tier2: Path
) -> None:
    root = plain_tier2 / "objects/containers/0001/root"
    whole = root.read_bytes()
    for damaged in (whole[:30] + bytes([whole[30] ^ 1]) + whole[31:], whole[:-1], b""):
        root.write_bytes(damaged)
        found = offline("tier2", "verify", str(plain_tier2), "--quiet", "-o", "json")
        assert found.exit_code == ExitCode.CORRUPT
        assert [row["container"] for row in found.rows] == [0, 2, 3]
        assert "container=1" in found.errors
        listed = offline("tier2", "ls", str(plain_tier2))
        assert listed.exit_code == ExitCode.CORRUPT
        assert "container=1" in listed.errors


def test_verify_looks_at_volumes_that_hold_no_segments_and_changes_nothing(
    offline: CommandLine, tmp_path: Path
) -> None:
    data = tmp_path / "buckets"
    process = Process(data)
    client = client_of(process.start())
    client.create_bucket(Bucket="objects")
    client.put_object(Bucket="objects", Key="k", Body=INCOMPRESSIBLE)
    client.close()
    assert process.stop() == 0
    for reserve in ("reserve", "compaction_reserve"):
        (data / "tier2" / reserve).unlink()
    before = sorted(path.relative_to(data) for path in data.rglob("*"))
    sound = offline("tier2", "verify", str(data), "--deep", "--quiet")
    assert sound.exit_code == ExitCode.OK, sound.errors
    assert " 0 problems" in sound.errors
    [volume] = [
        path
        for path in data.glob("tier2/volumes/*.dat")
        if INCOMPRESSIBLE[30_000:31_000] in path.read_bytes()
    ]
    content = volume.read_bytes()
    place = content.index(INCOMPRESSIBLE[30_000:31_000])
    volume.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert offline("tier2", "verify", str(data), "--deep", "--quiet").exit_code == ExitCode.CORRUPT
    assert sorted(path.relative_to(data) for path in data.rglob("*")) == before
    assert offline("tier2", "ls", str(data)).exit_code == ExitCode.USAGE
