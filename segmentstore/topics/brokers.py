"""Which process serves what, as Kafka's clients are told: brokers, and what each of them leads.

    broker       a process that listens for Kafka's clients
    leader       of a segment or table: the broker of the process that has its container
    controller   the leader of the catalogue's table; coordinator of all groups: that of the offsets' table

Invariants:

- What is told of other processes may be late: a request at the wrong one is refused there.
- `is_here` is true only while no other process can have been given the container.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Broker:
    """One process."""

    broker_id: int
    """What clients know it by. A process that starts again at the same address has the same."""
    address: tuple[str, int] | None
    """Host and port; None: the address by which each client has reached it."""


class Brokers(Protocol):
    """None of it waits."""

    def own(self) -> Broker | None:
        """This process; None while others do not know of it."""

    def all(self) -> Sequence[Broker]:
        """In order of their ids."""

    def is_here(self, segment: str) -> bool:
        """Whether the container of the segment, or table, is in this process."""

    def leader_of(self, segment: str) -> Broker | None:
        """None while its container is nowhere, or at a process that has no broker."""


class OneBroker:
    """Implements Brokers for a store of one process."""

    def __init__(self, broker_id: int = 1, address: tuple[str, int] | None = None) -> None:
        self._broker = Broker(broker_id, address)

    def own(self) -> Broker:
        return self._broker

    def all(self) -> Sequence[Broker]:
        return (self._broker,)

    def is_here(self, segment: str) -> bool:  # noqa: ARG002 (everything is)
        return True

    def leader_of(self, segment: str) -> Broker:  # noqa: ARG002
        return self._broker
