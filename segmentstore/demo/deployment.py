"""compose/ is written from what `make cluster` runs: no command, flag, variable, port or version is there by hand.

    Dockerfile               images: of the store, BookKeeper, the S3 server, the store with Spark
    start/<role>.sh          what a container of that role runs, in Docker and in Kubernetes
    compose.yaml             the cluster, Prometheus and Spark on one machine
    prometheus.yml           what Prometheus scrapes
    chart/values.yaml        roles, for the chart's templates, which are written by hand
    systemd/<role>.service    the store in one process; a node and a controller of a cluster

Invariants:

- The same roles give the same bytes, and `check` names every file that differs.

    python -m segmentstore.demo.deployment write|check DIR
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from segmentstore.demo.cluster_roles import CLUSTER_ROLES, ClusterRoles
from segmentstore.demo.compose_file import chart_values, compose_yaml, prometheus_yml
from segmentstore.demo.container_image import dockerfile, start_scripts
from segmentstore.demo.systemd_units import systemd_units

_USAGE: Final = "usage: python -m segmentstore.demo.deployment write|check DIR"
_PROGRAM_MODE: Final = 0o755


def deployment(roles: ClusterRoles = CLUSTER_ROLES) -> Mapping[str, str]:
    """Contents of the generated files, by their paths."""
    return {
        "Dockerfile": dockerfile(roles),
        **{f"start/{name}": text for name, text in start_scripts(roles).items()},
        "compose.yaml": compose_yaml(roles),
        "prometheus.yml": prometheus_yml(roles),
        "chart/values.yaml": chart_values(roles),
        **{f"systemd/{name}": text for name, text in systemd_units(roles).items()},
    }


def differing(directory: Path, roles: ClusterRoles = CLUSTER_ROLES) -> list[str]:
    """Generated files of a directory that are not there, or say something else."""
    return [
        name
        for name, text in deployment(roles).items()
        if not (directory / name).is_file() or (directory / name).read_text() != text
    ]


def write(directory: Path) -> None:
    """All of them. Raises OSError."""
    for name, text in deployment().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".sh":
            path.chmod(_PROGRAM_MODE)


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    match arguments:
        case ["write", directory]:
            write(Path(directory))
            return 0
        case ["check", directory]:
            found = differing(Path(directory))
            sys.stderr.write("".join(f"{name} differs: run make compose\n" for name in found))
            return int(bool(found))
    sys.stderr.write(f"{_USAGE}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
