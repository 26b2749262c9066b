"""What others say of the files in compose/: the schema of Compose, systemd, and what Kubernetes needs."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from segmentstore.demo.cluster_roles import CLUSTER_ROLES
from tests.demo.chart import rendered
from tests.integration.java_libraries import missing

pytestmark = pytest.mark.integration

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
_COMPOSE_MODULE = "github.com/compose-spec/compose-go/v2@v2.4.9"
"""The library that Docker reads compose.yaml with; the schema of the specification is in it."""
_FETCH_SECONDS_MAX = 300


def compose_yaml() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("go") is None:
        missing(
            "go fetches the schema of Compose; without it compose.yaml was not compared with it"
        )
    done = subprocess.run(
        ["go", "mod", "download", "-json", _COMPOSE_MODULE],
        cwd=tmp_path_factory.mktemp("go"),
        capture_output=True,
        text=True,
        timeout=_FETCH_SECONDS_MAX,
        check=True,
    )
    directory = Path(json.loads(done.stdout)["Dir"])
    return json.loads((directory / "schema" / "compose-spec.json").read_text())


def test_compose_yaml_is_what_its_specification_asks_for(schema: Any) -> None:
    jsonschema.Draft7Validator(schema).validate(compose_yaml())


def test_the_schema_refuses_a_word_that_it_does_not_know(schema: Any) -> None:
    document = compose_yaml()
    document["services"]["node0"]["comand"] = ["/start/node.sh"]
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.Draft7Validator(schema).validate(document)


def test_what_services_name_is_there() -> None:
    document = compose_yaml()
    services = document["services"]
    targets = re.findall(r"^FROM \S+ AS (\S+)$", (COMPOSE / "Dockerfile").read_text(), re.MULTILINE)
    addresses = [each["networks"]["cluster"]["ipv4_address"] for each in services.values()]
    assert len(set(addresses)) == len(addresses)
    for name, each in services.items():
        assert set(each.get("depends_on", {})) <= set(services), name
        if "build" not in each:
            continue
        assert each["build"]["target"] in targets
        (script,) = each["command"]
        assert (COMPOSE / script.lstrip("/")).exists()
        (volume,) = each["volumes"]
        assert volume.partition(":")[0] in document["volumes"]


def test_prometheus_asks_every_node_and_every_controller() -> None:
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    targets = {
        target
        for job in scraped["scrape_configs"]
        for each in job["static_configs"]
        for target in each["targets"]
    }
    port = CLUSTER_ROLES.node.ports["http"]
    services = compose_yaml()["services"]
    assert targets == {
        f"{each['environment']['HOST']}:{port}"
        for each in services.values()
        if each.get("environment", {}).get("ROLE") in ("node", "controller")
    }


@pytest.mark.parametrize("name", sorted(path.name for path in (COMPOSE / "systemd").iterdir()))
def test_systemd_takes_every_unit(name: str, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        missing("systemd-analyze is missing (apt install systemd): no unit was verified")
    assert verify is not None
    unit = tmp_path / name
    text = (COMPOSE / "systemd" / name).read_text()
    # It looks whether the program is there.
    unit.write_text(text.replace("/opt/segmentstore/bin/segmentstore", "/bin/true"))
    done = subprocess.run(
        [verify, "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("NoNewPrivileges", "NoNewPriviledges"))
    refused = subprocess.run(
        [verify, "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "NoNewPriviledges" in refused.stderr


def test_the_chart_gives_what_kubernetes_asks_for() -> None:
    found = rendered(COMPOSE / "chart", release="trial")
    kinds = [(each["kind"], each["metadata"]["name"]) for each in found]
    roles = [role.name for role in CLUSTER_ROLES.servers()]
    assert sorted(kinds) == sorted(
        [
            ("Job", "trial-bookkeeper-init"),
            *(("Service", f"trial-{name}") for name in roles),
            *(("StatefulSet", f"trial-{name}") for name in roles),
        ]
    )
    for each in found:
        if each["kind"] == "StatefulSet":
            _check_stateful_set(each, found)


def _check_stateful_set(found: Any, others: list[Any]) -> None:
    spec = found["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    (service,) = (
        each
        for each in others
        if each["kind"] == "Service" and each["metadata"]["name"] == spec["serviceName"]
    )
    assert service["spec"]["selector"] == labels
    (container,) = spec["template"]["spec"]["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    assert ports == {each["port"] for each in service["spec"]["ports"]}
    (role,) = (each for each in CLUSTER_ROLES.servers() if each.name == labels["role"])
    assert (spec["replicas"], ports) == (role.count, set(role.ports.values()))
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert len(variables) == len(container["env"])
    assert role.environment_at({"s3": "$(S3)"}).items() <= variables.items()
    volumes = {each["name"] for each in spec["template"]["spec"]["volumes"]}
    claimed = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}
    assert not volumes & claimed
    assert {each["name"] for each in container["volumeMounts"]} == volumes | claimed
