"""What the parent and the processes that it starts tell each other: one JSON object a line, over a pair of sockets.

    parent -> process   orders       first of all, together with the sockets to listen on, and once
                        states       whenever one of them has changed
                        looked       behind the states of that moment: the answer to "look"
    process -> parent   up           it listens (and where the controller and topics over gRPC do)
                        settled      its first containers run, or have said why they cannot
                        refused      it cannot serve, and why; it ends by itself
                        ended        a container has ended for the so-many-th time
                        look         asks for the states

The launcher, of which the processes are forks, is asked over a pair of sockets of packets (SOCK_SEQPACKET): one byte
with two descriptors, the channel of the process that is wanted, and a stream socket on which the parent is told of it:

    u32 process id, big-endian, with a descriptor of the process (pidfd); later, at its end,
    i32 exit code, less than 0 for a signal; then the end of the stream

The stream ends without an exit code if the launcher does before the process, and at once if it cannot fork.

Invariants:

- Process i of N has the containers whose number leaves the remainder i: what it has follows from N alone, so that
  another N at the next start finds every container.
- The two are the same program, started together: the form has no version.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from segmentstore.contracts.identifiers import ContainerId

VOLUMES = "volumes"
NODE = "node"

MESSAGE_BYTES_MAX = 1 << 20
FORK_REQUEST = b"\x01"
PROCESS_ID_BYTES = EXIT_CODE_BYTES = 4
Message: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """Of a process that has containers, HOST:PORT; they outlive it, because the parent keeps the sockets."""

    http: str
    wire: str
    """As clients are sent to it; empty without one."""
    kafka: str = ""
    """The same of Kafka's protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All that a process is told when it begins."""

    role: str
    """VOLUMES, or NODE."""
    index: int
    """Of a node; 0 has the controller."""
    start: int
    """How many processes the parent has started up to this one: no two have the same."""
    settings: Mapping[str, str]
    """Full names to text, those that are not defaults."""
    store_id: str
    container_count: int
    created_ms: int
    token: str
    volumes_socket: str
    """Path; empty if Tier 2 is not in volumes."""
    nodes: Sequence[NodeAddresses]
    controller_address: str
    """HOST:PORT or off."""


@dataclass(frozen=True, slots=True)
class States:
    """What the parent knows of the nodes."""

    starts: Sequence[int]
    """`start` of the process that serves as each; 0 while there is none."""
    ends: Sequence[int]
    """How often each container has ended while its process went on."""


def process_count(asked: str, *, container_count: int) -> int:
    """What `processes.count` comes to: a process without a container would be of no use."""
    count = len(os.sched_getaffinity(0)) if asked == "auto" else int(asked)
    return min(count, container_count)


def index_of(container_id: int, process_count: int) -> int:
    """The process that has a container."""
    return container_id % process_count


def containers_of(index: int, process_count: int, *, container_count: int) -> list[ContainerId]:
    """Those of one process, ascending."""
    return [ContainerId(number) for number in range(index, container_count, process_count)]


def encode(message: Message) -> bytes:
    """A line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """What encode() was given; lists for sequences."""
    message: Message = json.loads(line)
    return message


def orders_message(orders: Orders) -> Message:
    """For encode()."""
    return {"orders": asdict(orders)}


def orders_in(message: Message) -> Orders:
    """Raises KeyError for another message."""
    fields = message["orders"]
    assert isinstance(fields, dict), f"no orders {message=}"
    nodes = [NodeAddresses(**each) for each in fields.pop("nodes")]
    return Orders(**fields, nodes=nodes)


def states_message(states: States) -> Message:
    """For encode()."""
    return {"states": asdict(states)}


def states_in(message: Message) -> States:
    """Raises KeyError for another message."""
    fields = message["states"]
    assert isinstance(fields, dict), f"no states {message=}"
    return States(**fields)
