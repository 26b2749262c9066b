"""Units of systemd: a store in one process, and a node and a controller of a cluster.

The store is installed in /opt/segmentstore. /etc/segmentstore/<role>.environment says HOST, of a cluster also NAME and
ZOOKEEPER (HOST:PORT,...), and what else the process is to have in its environment.
"""

from collections.abc import Mapping
from typing import Final

from segmentstore.demo.cluster_roles import ClusterRoles
from segmentstore.demo.container_image import GENERATED
from segmentstore.runtime.process_role import ProcessRole
from tier1.bookkeeper.jars import VARIABLE

_PROGRAM: Final = "/opt/segmentstore/bin/segmentstore"
_JARS: Final = "/opt/bookkeeper"
_STOP_SECONDS: Final = 90
_SANDBOX: Final = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "CapabilityBoundingSet=",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "UMask=0077",
)
"""A JVM writes code into its memory: MemoryDenyWriteExecute would end it."""


def systemd_units(roles: ClusterRoles) -> Mapping[str, str]:
    """By their file names."""
    described = (
        (roles.standalone, "Segment store in one process"),
        (roles.node, "Node of a segment store's cluster"),
        (roles.controller, "Controller of a segment store's cluster"),
    )
    return {
        f"segmentstore-{role.name}.service": _unit(role, sentence) for role, sentence in described
    }


def _unit(role: ProcessRole, sentence: str) -> str:
    name = f"segmentstore-{role.name}"
    place = {
        **{name: str(number) for name, number in role.ports.items()},
        "segmentstore": _PROGRAM,
        "data": f"/var/lib/{name}",
        "host": "${HOST}",
        "name": "${NAME}",
        "zookeeper": "${ZOOKEEPER}",
    }
    command = " \\\n    ".join(role.command_at(place))
    return f"""\
# {GENERATED}
[Unit]
Description={sentence}
After=network-online.target
Wants=network-online.target

[Service]
EnvironmentFile=/etc/segmentstore/{role.name}.environment
Environment={VARIABLE}={_JARS}
ExecStart={command}
DynamicUser=yes
StateDirectory={name}
StateDirectoryMode=0700
Restart=on-failure
RestartSec=2
TimeoutStopSec={_STOP_SECONDS}
KillMode=mixed
LimitNOFILE=65536
{chr(10).join(_SANDBOX)}

[Install]
WantedBy=multi-user.target
"""
