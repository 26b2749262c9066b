import json

from segmentstore.cluster.records import decode_node, encode_node
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId

NODE = ClusterNode(HostId("a-1"), "10.0.0.1:1", "10.0.0.1:2", 4, "0.1", "10.0.0.1:9092")


def test_a_node_is_registered_with_all_of_its_addresses() -> None:
    assert decode_node(encode_node(NODE)) == NODE


def test_a_node_of_a_version_without_topics_serves_none() -> None:
    fields = json.loads(encode_node(NODE))
    del fields["kafka"]
    assert decode_node(json.dumps(fields).encode()).kafka == ""
