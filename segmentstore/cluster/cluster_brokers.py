"""The brokers of a cluster, or of a store of several processes: nodes that have an address for Kafka's clients.

Invariants:

- The id of a broker is 31 bits of a hash of its address: a node that starts again at the same one has the same.
- A container that this process answers for is led by it, whatever the locations say: they may be late.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import ClusterNode, NodeInCluster
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.topics.brokers import Broker

_SEGMENTS_KNOWN_MAX: Final = 65_536
"""Segments whose container need not be computed again: metadata of a topic asks for all of its partitions."""


class ClusterBrokers:
    """Implements Brokers."""

    def __init__(self, cluster: NodeInCluster) -> None:
        self._cluster = cluster
        count = cluster.locations.container_count

        @lru_cache(maxsize=_SEGMENTS_KNOWN_MAX)
        def container_id_of(segment: str) -> ContainerId:
            return ContainerId(container_of(segment, count))

        self._container_id_of = container_id_of

    def own(self) -> Broker | None:
        node_id = self._cluster.node_id()
        for node in self._cluster.locations.nodes():
            if node.node_id == node_id:
                return _broker_of(node)
        return None

    def all(self) -> Sequence[Broker]:
        brokers = [_broker_of(node) for node in self._cluster.locations.nodes()]
        return sorted(
            {each.broker_id: each for each in brokers if each is not None}.values(),
            key=lambda each: each.broker_id,
        )

    def is_here(self, segment: str) -> bool:
        cluster = self._cluster
        return cluster.serves(self._container_id_of(segment)) and cluster.is_lease_valid()

    def leader_of(self, segment: str) -> Broker | None:
        owner = self._cluster.locations.node_to_ask(self._container_id_of(segment))
        if owner is None or owner.node_id != self._cluster.node_id():
            own = self.own() if self.is_here(segment) else None
            if own is not None:
                return own
        return None if owner is None else _broker_of(owner)


def broker_id_of(address: str) -> int:
    """Of HOST:PORT."""
    return int.from_bytes(sha256(address.encode()).digest()[:4], "big") & 0x7FFFFFFF


@lru_cache(maxsize=1024)
def _broker_of(node: ClusterNode) -> Broker | None:
    if not node.kafka:
        return None
    host, _, port = node.kafka.rpartition(":")
    return Broker(broker_id_of(node.kafka), (host.removeprefix("[").removesuffix("]"), int(port)))
