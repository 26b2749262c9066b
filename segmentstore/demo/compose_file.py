"""compose.yaml, what Prometheus scrapes, and the values of the chart.

Each process of compose.yaml has a fixed address: nodes are known by theirs, and a bookie is for as long as it has data.
"""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

from segmentstore.demo.cluster_roles import ClusterRoles
from segmentstore.demo.container_image import DATA, GENERATED, USER_ID
from segmentstore.demo.yaml_text import Node, yaml_text
from segmentstore.runtime.process_role import ProcessRole

PROMETHEUS_IMAGE: Final = "prom/prometheus:v3.5.0"
PROMETHEUS_PORT: Final = 9090
_SUBNET: Final = "172.30.91"
_FIRST_ADDRESS: Final = 10
_PUBLISHED: Final = {"node0": "http", "controller0": "grpc", "spark-master": "web"}
_PROMETHEUS_PUBLISHED: Final = 9099
_SCRAPE_SECONDS: Final = 5


def compose_yaml(roles: ClusterRoles) -> str:
    """The whole cluster on one machine."""
    addresses = _addresses(roles)
    services: dict[str, Node] = {}
    for role, name in _processes(roles):
        services[name] = _service(roles, role, name, addresses[name])
    init = {**_service(roles, roles.bookie, roles.shell.name, addresses[roles.shell.name])}
    init["command"] = [f"/start/{roles.shell.name}.sh"]
    init["restart"] = "on-failure"
    init["healthcheck"] = {"disable": True}
    init["depends_on"] = {roles.zookeeper.name: {"condition": "service_healthy"}}
    services[roles.shell.name] = init
    services["prometheus"] = {
        "image": PROMETHEUS_IMAGE,
        "ports": [f"127.0.0.1:{_PROMETHEUS_PUBLISHED}:{PROMETHEUS_PORT}"],
        "volumes": ["./prometheus.yml:/etc/prometheus/prometheus.yml:ro"],
        "networks": {"cluster": {"ipv4_address": addresses["prometheus"]}},
    }
    volumes: dict[str, Node] = {name: {} for name in services if name != "prometheus"}
    document: dict[str, Node] = {
        "name": "segmentstore",
        "services": services,
        "networks": {"cluster": {"ipam": {"config": [{"subnet": f"{_SUBNET}.0/24"}]}}},
        "volumes": volumes,
    }
    return f"# {GENERATED}\n{yaml_text(document)}"


def prometheus_yml(roles: ClusterRoles) -> str:
    """Nodes and controllers, by their addresses."""
    addresses = _addresses(roles)
    jobs: list[Node] = [
        {
            "job_name": role.name,
            "static_configs": [
                {
                    "targets": [
                        f"{addresses[name]}:{role.ports['http']}"
                        for each, name in _processes(roles)
                        if each is role
                    ]
                }
            ],
        }
        for role in (roles.node, roles.controller)
    ]
    document: dict[str, Node] = {
        "global": {"scrape_interval": f"{_SCRAPE_SECONDS}s"},
        "scrape_configs": jobs,
    }
    return f"# {GENERATED}\n{yaml_text(document)}"


def chart_values(roles: ClusterRoles) -> str:
    """What the templates of the chart are filled with."""
    document: dict[str, Node] = {
        "tag": version("segmentstore"),
        "userId": USER_ID,
        "data": DATA,
        "zookeeper": {"name": roles.zookeeper.name, "port": roles.zookeeper.ports["port"]},
        "s3": {"name": roles.s3.name, "port": roles.s3.ports["port"]},
        "init": {"image": _image(roles, roles.bookie), "script": f"/start/{roles.shell.name}.sh"},
        "roles": [_chart_role(roles, role) for role in roles.servers()],
    }
    return f"# {GENERATED}\n{yaml_text(document)}"


def _processes(roles: ClusterRoles) -> Iterator[tuple[ProcessRole, str]]:
    for role in (*roles.servers(), roles.spark_master, roles.spark_worker):
        alone = role in (roles.zookeeper, roles.s3, roles.spark_master)
        for number in range(role.count):
            yield role, role.name if alone else f"{role.name}{number}"


def _addresses(roles: ClusterRoles) -> dict[str, str]:
    names = [name for _, name in _processes(roles)]
    names += [roles.shell.name, "prometheus"]
    return {name: f"{_SUBNET}.{_FIRST_ADDRESS + place}" for place, name in enumerate(names)}


def _service(roles: ClusterRoles, role: ProcessRole, name: str, address: str) -> dict[str, Node]:
    zookeeper = f"{roles.zookeeper.name}:{roles.zookeeper.ports['port']}"
    s3 = f"{roles.s3.name}:{roles.s3.ports['port']}"
    master = f"{roles.spark_master.name}:{roles.spark_master.ports['spark']}"
    image = _image(roles, role)
    service: dict[str, Node] = {
        "image": f"segmentstore-{image}:{version('segmentstore')}",
        "build": {"context": "..", "dockerfile": "compose/Dockerfile", "target": image},
        "command": [f"/start/{role.name}.sh"],
        "environment": {
            "ROLE": role.name,
            "HOST": address,
            "NAME": name,
            "ZOOKEEPER": zookeeper,
            "SPARK": master,
            **role.environment_at({"s3": s3}),
            **({"SEGMENTSTORE_HTTP_HOSTS": f"{name},localhost"} if role is roles.node else {}),
        },
        "networks": {"cluster": {"ipv4_address": address}},
        "volumes": [f"{name}:{DATA}"],
        "restart": "unless-stopped",
        "read_only": True,
        # Java unpacks libraries there.
        "tmpfs": ["/tmp:exec,mode=1777"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "stop_grace_period": "60s",
    }
    waits = _waits_for(roles, role)
    if waits:
        service["depends_on"] = waits
    if name in _PUBLISHED:
        port = role.ports[_PUBLISHED[name]]
        service["ports"] = [f"127.0.0.1:{port}:{port}"]
    return service


def _waits_for(roles: ClusterRoles, role: ProcessRole) -> dict[str, Node]:
    made: dict[str, Node] = {roles.shell.name: {"condition": "service_completed_successfully"}}
    if role is roles.bookie:
        return made
    if role in (roles.node, roles.controller):
        bookies: dict[str, Node] = {
            name: {"condition": "service_healthy"}
            for each, name in _processes(roles)
            if each is roles.bookie or each is roles.s3
        }
        return {**made, **bookies}
    return {}


def _image(roles: ClusterRoles, role: ProcessRole) -> str:
    if role in (roles.zookeeper, roles.bookie):
        return "bookkeeper"
    if role is roles.s3:
        return "s3"
    return "spark" if role in (roles.spark_master, roles.spark_worker) else "store"


def _chart_role(roles: ClusterRoles, role: ProcessRole) -> dict[str, Node]:
    # A bookie is known by a name that lasts; others by the address of the moment.
    variables = {**role.environment_at({"s3": "$(S3)"})}
    if role is roles.node:
        variables["SEGMENTSTORE_HTTP_HOSTS"] = "*"
    return {
        "name": role.name,
        "image": _image(roles, role),
        "script": f"/start/{role.name}.sh",
        "replicas": role.count,
        "ports": [{"name": name, "number": number} for name, number in role.ports.items()],
        "isNamed": role is roles.bookie,
        "storage": "10Gi" if role in (roles.zookeeper, roles.bookie, roles.s3) else "",
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
    }
