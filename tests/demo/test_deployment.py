"""What compose/ says is what `make cluster` runs: a value that changes in one of them alone is found."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from segmentstore.demo import local_cluster
from segmentstore.demo.cluster_roles import CLUSTER_ROLES, EXTRAS, ClusterRoles
from segmentstore.demo.deployment import deployment, differing, main, write
from segmentstore.demo.local_cluster import LocalCluster
from tier1.bookkeeper import jars, local_ensemble
from tier1.bookkeeper.jars import Part

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
_SERVERS = ("zookeeper", "shell", "s3", "bookie", "node", "controller")
_ALONE = ("zookeeper", "shell", "s3")


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Each way to change one value inside, with its path."""
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            for path, other in changed(getattr(value, each.name)):
                yield f"{each.name}.{path}", replace(value, **{each.name: other})
    elif isinstance(value, Mapping):
        for key in value:
            yield f"-{key}", {name: value[name] for name in value if name != key}
            for path, other in changed(value[key]):
                yield f"{key}.{path}", {**value, key: other}
    elif isinstance(value, str):
        # A number stays one.
        yield "+", f"{value}1"
    elif isinstance(value, int):
        yield "+", value + 1
    else:
        for place in range(len(value)):
            yield f"-{place}", (*value[:place], *value[place + 1 :])
            for path, other in changed(value[place]):
                yield f"{place}.{path}", (*value[:place], other, *value[place + 1 :])


def is_a_value(path: str) -> bool:
    """Of what `make cluster` starts; names of roles, and how many there are of which there is one, are no values."""
    role, _, rest = path.partition(".")
    if role == "gateway_package":
        return True
    if role not in _SERVERS or rest.startswith("name."):
        return False
    return not (rest.startswith("count.") and role in _ALONE)


VALUES = [(path, roles) for path, roles in changed(CLUSTER_ROLES) if is_a_value(path)]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are made, not run: what they name need not be built."""
    monkeypatch.setattr(local_cluster, "built_gateway", lambda package: Path(f"/go/{package}"))
    monkeypatch.setattr(local_ensemble, "class_path", lambda _part: ["/jars/*"])


def started(directory: Path, roles: ClusterRoles) -> str:
    """All that `make cluster` hands to its processes."""
    for each in directory.glob("*/"):
        shutil.rmtree(each)
    cluster = LocalCluster(directory, roles=roles)
    said: list[object] = []
    for name in cluster.processes():
        said += [name, cluster.command(name), dict(cluster.variables(name))]
    ensemble = cluster._ensemble()
    said.append(ensemble.roles.shell.command_at(ensemble._bookie_place(0)))
    said += [path.read_text() for path in sorted(directory.glob("bookkeeper/*.c*"))]
    said += sorted(str(path) for path in directory.rglob("*") if path.is_dir())
    return json.dumps(said)


def planned(directory: Path, roles: ClusterRoles) -> str:
    LocalCluster(directory, roles=roles)
    return (directory / "plan.json").read_text()


def test_what_is_checked_in_is_what_is_generated() -> None:
    assert differing(COMPOSE) == []


def test_every_generated_file_is_there_and_no_other_is_in_its_folders() -> None:
    there = {
        str(path.relative_to(COMPOSE))
        for folder in ("start", "systemd")
        for path in (COMPOSE / folder).iterdir()
    }
    assert there == {name for name in deployment() if name.startswith(("start/", "systemd/"))}


def test_there_are_values_of_every_kind() -> None:
    paths = {path for path, _ in VALUES}
    assert {
        "node.ports.http.+",
        "node.sizes.containers.+",
        "controller.environment.AWS_DEFAULT_REGION.+",
        "bookie.settings.journalSyncData.+",
        "bookie.sizes.heap.+",
        "zookeeper.command.3.+",
        "node.count.+",
        "gateway_package.+",
    } <= paths
    assert len(paths) > 200


@pytest.mark.parametrize(("path", "roles"), VALUES, ids=[path for path, _ in VALUES])
def test_one_value_that_changes_is_found_in_compose(path: str, roles: ClusterRoles) -> None:
    try:
        found = differing(COMPOSE, roles)
    except KeyError as gone:
        found = [f"nothing can be generated without {gone}"]
    assert found, path


@pytest.mark.usefixtures("tools")
def test_every_value_is_one_that_the_cluster_on_this_machine_is_started_with(
    tmp_path: Path,
) -> None:
    unused = []
    kept = tmp_path / "kept"
    before = started(kept, CLUSTER_ROLES)
    plan = planned(tmp_path / "plan", CLUSTER_ROLES)
    for number, (path, roles) in enumerate(VALUES):
        if ".ports." in path:
            continue  # where all processes share an address the system chooses the numbers
        try:
            if re.search(r"\.count\.|(node|bookie)\.sizes\.", path):
                differs = planned(tmp_path / str(number), roles) != plan
            else:
                differs = started(kept, roles) != before
        except (KeyError, IndexError, ValueError):
            differs = True
        if not differs:
            unused.append(path)
    assert unused == []


@pytest.mark.parametrize(
    ("old", "new"), [("4.17.3", "4.17.4"), (">17</maven.compiler", ">21</maven.compiler")]
)
def test_a_version_that_changes_in_the_poms_is_found(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poms = {}
    for part, path in jars._POMS.items():
        text = path.read_text()
        assert part is not Part.CLIENT or old in text
        poms[part] = tmp_path / f"{part.value}.xml"
        poms[part].write_text(text.replace(old, new))
    monkeypatch.setattr(jars, "_POMS", poms)
    assert differing(COMPOSE) == ["Dockerfile"]


def test_a_file_that_is_changed_or_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    assert main(["check", str(tmp_path)]) == 0
    text = (tmp_path / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("12345", "12346").replace("9091", "9092"))
    (tmp_path / "start" / "node.sh").unlink()
    assert differing(tmp_path) == ["start/node.sh", "compose.yaml"]
    assert main(["check", str(tmp_path)]) == 1


def test_the_image_has_what_the_makefile_installs_for_a_cluster() -> None:
    makefile = (ROOT / "Makefile").read_text()
    served, *_ = re.findall(r"\$\(PIP\) '\.\[(\w+)\]' > ", makefile)
    bridged, clustered = re.findall(
        r"^\$\((?:BRIDGED|CLUSTERED)\).*\n.*'\.\[(\w+)\]'", makefile, re.MULTILINE
    )
    assert (served, bridged, clustered) == EXTRAS


def test_zookeeper_deletes_its_old_snapshots() -> None:
    """Its other main class serves as well, and heeds neither of the two settings."""
    script = deployment()["start/zookeeper.sh"]
    assert "org.apache.zookeeper.server.quorum.QuorumPeerMain" in script
    assert {"autopurge.purgeInterval=1", "autopurge.snapRetainCount=3"} <= set(script.splitlines())


def test_the_store_in_one_process_is_served_as_make_run_serves_it() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name, port in (("HTTP", "http"), ("WIRE", "wire"), ("CONTROLLER", "grpc")):
        (number,) = re.findall(rf"^{name} \?= 127\.0\.0\.1:(\d+)$", makefile, re.MULTILINE)
        assert int(number) == CLUSTER_ROLES.standalone.ports[port]
    words = re.findall(r"segmentstore standalone (.*)$", makefile, re.MULTILINE)[0].split()
    flags = [word for word in CLUSTER_ROLES.standalone.command if word.startswith("--")]
    assert [word for word in words if word.startswith("--")] == flags


def test_what_docker_leaves_out_is_not_copied() -> None:
    """Every folder that the Dockerfile copies from the sources is let in."""
    let_in = {
        line[1:]
        for line in (COMPOSE / "Dockerfile.dockerignore").read_text().split()
        if line[0] == "!"
    }
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (COMPOSE / "Dockerfile").read_text(), re.MULTILINE
    )
    assert {word for line in copied for word in line.split()} == let_in
    assert all((ROOT / each).exists() for each in let_in)


@pytest.mark.parametrize("name", sorted(n for n in deployment() if n.startswith("start/")))
def test_a_shell_takes_every_start_script(name: str) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    subprocess.run([shell, "-n", str(COMPOSE / name)], check=True)
    assert (COMPOSE / name).stat().st_mode & 0o111


def test_a_start_script_runs_the_command_with_what_its_container_says(tmp_path: Path) -> None:
    program = tmp_path / "segmentstore"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", str(COMPOSE / "start" / "node.sh"), "--log-level", "debug"],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "HOST": "10.0.0.1",
            "NAME": "node7",
            "ZOOKEEPER": "zk:2181",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    place: Mapping[str, str | Sequence[str]] = {
        "segmentstore": [],
        "host": "10.0.0.1",
        "http": "9091",
        "wire": "12345",
        "kafka": "9092",
        "name": "node7",
        "zookeeper": "zk:2181",
        "data": "/data",
    }
    assert words == [*CLUSTER_ROLES.node.command_at(place), "--log-level", "debug"]
