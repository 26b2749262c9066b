"""What the processes of a cluster write into the coordination store: paths, and values in JSON.

    cluster/nodes/<node id>    ephemeral   a node: its addresses (contracts/cluster.py: ClusterNode)
    cluster/reports/<node id>  ephemeral   what the node holds, runs and failed at, which version it follows, and
                                           whether Tier 2 answers it
    cluster/leader             ephemeral   the controller that leads, and its address
    cluster/epoch              a number, raised by each leader before it does anything else
    cluster/assignment         the map: which node has which container since which version; what failed
    cluster/wishes             what a person wants: drained nodes, pinned containers, rebalancing, another attempt

Every value is an object with `format`: 1. A reader passes over fields that it does not know; another format is refused,
and the reader goes on with what it knows, until it can read the value.

Invariants:

- Who writes: a node its own two values; the leader the map, in one commit with a check of the epoch; a person's
  commands the wishes. All changes are made by compare-and-set.
- A version of the map is one more than the version before it. `since` of a container is the version that gave it to
  its node, or took it away; it stays until the next such change, also across leaders.
- The map and a report of 4,096 containers fit into one value, whatever has failed: causes are cut for it.
- A container is given to one node or to none. It is `leaving` a node, and given to none, until that node has reported
  that it is gone, or is gone itself.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import VALUE_BYTES_MAX

NODES_PATH: Final = "cluster/nodes"
REPORTS_PATH: Final = "cluster/reports"
LEADER_PATH: Final = "cluster/leader"
EPOCH_PATH: Final = "cluster/epoch"
ASSIGNMENT_PATH: Final = "cluster/assignment"
WISHES_PATH: Final = "cluster/wishes"

_FORMAT: Final = 1
_RESTART_NODE: Final = "restart that node, which registers anew"
_RESTART_LEADER: Final = "restart the controller that leads"
_BEGIN_ANEW: Final = "end all nodes and controllers, delete the value, and start them again"
_WISH_AGAIN: Final = "delete the value, and then drain and pin again what is to be"
_CAUSE_CHARACTERS_MAX: Final = 500
_CAUSE_CHARACTERS: Final = (150, 50, 0)
"""Of each cause, where all of them do not fit into a value: what all containers need may be gone, and all of them
fail."""


class ClusterRecordError(SegmentStoreError):
    """A value below the root is not what this program writes: damaged, or of a newer version."""

    kind = ErrorKind.CORRUPT


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The controller that leads."""

    controller_id: str
    grpc: str
    """HOST:PORT where the other controllers send their clients' calls."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A container that ended by itself at a node."""

    since: int
    """Of the assignment that it had failed in."""
    cause: str
    kind: str
    """"corrupt"; "lasting: ..." with cause and place, for what time does not mend; "passing"."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node said last."""

    version: int = 0
    """Of the map that it follows."""
    held: Mapping[ContainerId, int] = field(default_factory=dict)
    """Containers from before their start until they are closed, and since when."""
    running: Sequence[ContainerId] = ()
    """Those that take requests."""
    failed: Mapping[ContainerId, FailureReport] = field(default_factory=dict)
    """Until the map has taken notice."""
    loads: Mapping[ContainerId, float] = field(default_factory=dict)
    """Of those that run; 1 is what a container without a figure counts as."""
    tier2: Tier2State = Tier2State.UNKNOWN

    def runs(self, container_id: ContainerId, *, since: int) -> bool:
        """Whether it runs there, and as it was given by that version of the map."""
        return self.held.get(container_id) == since and container_id in self.running


NO_NODE = HostId("")


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Failures of one container in a row, since it ran well last."""

    count: int
    node: HostId
    """Where it failed last; NO_NODE: that node is trusted with it again."""
    cause: str
    kind: str
    same_count: int
    """How many in a row were of this kind, if it is a lasting one."""
    stays_down: bool = False
    """It is not given to a node again before a person asks for it."""
    retry: int = 0
    """The wish for another attempt that was heard last."""


@dataclass(frozen=True, slots=True)
class AssignedContainer:
    """One container in the map."""

    node: HostId | None = None
    since: int = 0
    leaving: HostId | None = None
    """The node that may hold it still; `node` is None then."""
    failure: FailureRecord | None = None


@dataclass(frozen=True, slots=True)
class AssignmentMap:
    """Which node has which container."""

    version: int
    leader_epoch: int
    """Of the leader that wrote it."""
    containers: Mapping[ContainerId, AssignedContainer]
    """Every container of the store."""
    rebalanced: int = 0
    """The wish for rebalancing that was met last."""

    def given_to(self, node_id: HostId) -> dict[ContainerId, int]:
        """The node's containers, and since when."""
        return {c: each.since for c, each in self.containers.items() if each.node == node_id}

    def check(self) -> None:
        for container_id, each in self.containers.items():
            assert each.node is None or each.leaving is None, (
                f"given and leaving {container_id=} {each=}"
            )
            assert each.since <= self.version, f"since a later version {container_id=} {each=}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person wants. Nodes are named by their id, or by its first part, which outlives a restart."""

    drained: Sequence[str] = ()
    pinned: Mapping[ContainerId, str] = field(default_factory=dict)
    rebalance: int = 0
    """Raised by one for each time that the loads are to be made even."""
    retries: Mapping[ContainerId, int] = field(default_factory=dict)
    """Raised by one to let a container that stays down try again."""

    def drains(self, node_id: HostId) -> bool:
        """Whether the node is to have no container."""
        return any(is_named(node_id, name) for name in self.drained)


def node_path(node_id: HostId) -> str:
    """Where the node is registered."""
    return f"{NODES_PATH}/{node_id}"


def report_path(node_id: HostId) -> str:
    """Where the node reports."""
    return f"{REPORTS_PATH}/{node_id}"


def node_id_of(name: str, number: int) -> HostId:
    """`name` is chosen by a person, and stays when the process comes back; `number` is drawn at random."""
    return HostId(f"{name}-{number:016x}")


def is_id_of(text: str, name: str) -> bool:
    """Whether it is an id that node_id_of() gives to a process of that name, and not another name."""
    before, _, number = text.rpartition("-")
    return before == name and len(number) == 16 and set(number) <= set("0123456789abcdef")


def is_named(node_id: HostId, name: str) -> bool:
    """Whether a wish for `name` is one for this node."""
    return name in (node_id, node_id.rpartition("-")[0])


def cause_in_words(cause: BaseException) -> str:
    """Why a container failed, cut where it would be too long."""
    return (str(cause) or type(cause).__name__)[:_CAUSE_CHARACTERS_MAX]


# --- values -------------------------------------------------------------------------------------------


def encode_node(node: ClusterNode) -> bytes:
    """The node's value at node_path()."""
    return _encode(asdict(node))


def decode_node(value: bytes, node_id: HostId) -> ClusterNode:
    """Raises ClusterRecordError."""
    with _Decoding("registration", node_path(node_id), value, _RESTART_NODE) as found:
        return ClusterNode(
            node_id=HostId(found["node_id"]),
            http=found["http"],
            wire=found["wire"],
            capacity=int(found["capacity"]),
            version=found["version"],
            # Nodes of versions without topics do not name it.
            kafka=found.get("kafka", ""),
        )


def encode_leader(leader: LeaderRecord) -> bytes:
    """The value at LEADER_PATH."""
    return _encode(asdict(leader))


def decode_leader(value: bytes) -> LeaderRecord:
    """Raises ClusterRecordError."""
    with _Decoding("leader", LEADER_PATH, value, _RESTART_LEADER) as found:
        return LeaderRecord(controller_id=found["controller_id"], grpc=found["grpc"])


def encode_epoch(epoch: int) -> bytes:
    """The value at EPOCH_PATH."""
    return _encode({"epoch": epoch})


def decode_epoch(value: bytes) -> int:
    """Raises ClusterRecordError."""
    with _Decoding("epoch", EPOCH_PATH, value, _BEGIN_ANEW) as found:
        return int(found["epoch"])


def encode_report(report: NodeReport) -> bytes:
    """The value at report_path()."""
    failed = {str(c): asdict(each) for c, each in sorted(report.failed.items())}
    return _encode_with_causes(
        {
            "version": report.version,
            "held": _keyed(report.held),
            "running": list(report.running),
            "failed": failed,
            "loads": _keyed(report.loads),
            "tier2": report.tier2,
        },
        failed.values(),
    )


def decode_report(value: bytes, node_id: HostId) -> NodeReport:
    """Raises ClusterRecordError."""
    with _Decoding("report", report_path(node_id), value, _RESTART_NODE) as found:
        return NodeReport(
            version=int(found["version"]),
            held={c: int(since) for c, since in _by_container(found["held"])},
            running=[ContainerId(int(c)) for c in found["running"]],
            failed={
                c: FailureReport(int(each["since"]), each["cause"], each["kind"])
                for c, each in _by_container(found["failed"])
            },
            loads={c: float(load) for c, load in _by_container(found["loads"])},
            tier2=_tier2_state(found.get("tier2")),
        )


def _tier2_state(name: str | None) -> Tier2State:
    """Nodes of earlier versions do not name one; another word, of a later version, says nothing here."""
    return next((state for state in Tier2State if state == name), Tier2State.UNKNOWN)


def encode_assignment(assignment: AssignmentMap) -> bytes:
    """The value at ASSIGNMENT_PATH."""
    assignment.check()
    containers = {
        str(c): {name: value for name, value in asdict(each).items() if value is not None}
        for c, each in sorted(assignment.containers.items())
    }
    return _encode_with_causes(
        {
            "version": assignment.version,
            "leader_epoch": assignment.leader_epoch,
            "rebalanced": assignment.rebalanced,
            "containers": containers,
        },
        [each["failure"] for each in containers.values() if "failure" in each],
    )


def decode_assignment(value: bytes) -> AssignmentMap:
    """Raises ClusterRecordError."""
    with _Decoding("assignment", ASSIGNMENT_PATH, value, _BEGIN_ANEW) as found:
        return AssignmentMap(
            version=int(found["version"]),
            leader_epoch=int(found["leader_epoch"]),
            rebalanced=int(found["rebalanced"]),
            containers={c: _container(each) for c, each in _by_container(found["containers"])},
        )


def _container(found: dict[str, Any]) -> AssignedContainer:
    failure = found.get("failure")
    return AssignedContainer(
        node=_host(found.get("node")),
        since=int(found["since"]),
        leaving=_host(found.get("leaving")),
        failure=None
        if failure is None
        else FailureRecord(
            count=int(failure["count"]),
            node=HostId(failure["node"]),
            cause=failure["cause"],
            kind=failure["kind"],
            same_count=int(failure["same_count"]),
            stays_down=bool(failure["stays_down"]),
            retry=int(failure["retry"]),
        ),
    )


def _host(name: str | None) -> HostId | None:
    return None if name is None else HostId(name)


def encode_wishes(wishes: Wishes) -> bytes:
    """The value at WISHES_PATH."""
    return _encode(
        {
            "drained": list(wishes.drained),
            "pinned": _keyed(wishes.pinned),
            "rebalance": wishes.rebalance,
            "retries": _keyed(wishes.retries),
        }
    )


def decode_wishes(value: bytes) -> Wishes:
    """Raises ClusterRecordError."""
    with _Decoding("wishes", WISHES_PATH, value, _WISH_AGAIN) as found:
        return Wishes(
            drained=list(found["drained"]),
            pinned=dict(_by_container(found["pinned"])),
            rebalance=int(found["rebalance"]),
            retries={c: int(number) for c, number in _by_container(found["retries"])},
        )


def _encode(values: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": _FORMAT, **values}, separators=(",", ":")).encode()


def _encode_with_causes(values: Mapping[str, Any], failures: Collection[dict[str, Any]]) -> bytes:
    """With the causes of these failures, which are among the values, cut until all of it fits into one value."""
    value = _encode(values)
    for characters in _CAUSE_CHARACTERS:
        if len(value) <= VALUE_BYTES_MAX:
            break
        for failure in failures:
            failure["cause"] = failure["cause"][:characters]
        value = _encode(values)
    return value


def _keyed(values: Mapping[ContainerId, Any]) -> dict[str, Any]:
    return {str(c): value for c, value in sorted(values.items())}


def _by_container(values: Mapping[str, Any]) -> list[tuple[ContainerId, Any]]:
    return [(ContainerId(int(c)), value) for c, value in values.items()]


class _Decoding:
    """The object in a value; whatever is wrong with it becomes a ClusterRecordError, with what mends a damaged one."""

    def __init__(self, what: str, path: str, value: bytes, remedy: str) -> None:
        self._what = what
        self._path = path
        self._value = value
        self._remedy = remedy

    def __enter__(self) -> dict[str, Any]:
        try:
            found = json.loads(self._value)
            is_known = found["format"] == _FORMAT
        except (ValueError, LookupError, TypeError) as error:
            raise self._error() from error
        if not is_known:
            raise ClusterRecordError(
                f"the {self._what} in ZooKeeper was written by another version of the program: start one here that"
                f" knows its format={found['format']!r} path={self._path}"
            )
        return dict(found)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | LookupError | TypeError | AttributeError):
            raise self._error() from error

    def _error(self) -> ClusterRecordError:
        return ClusterRecordError(
            f"the {self._what} in ZooKeeper is damaged: {self._remedy} path={self._path} value={self._value[:80]!r}"
        )
