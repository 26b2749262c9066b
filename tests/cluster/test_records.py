import json

import pytest

from segmentstore.cluster.records import (
    NodeReport,
    decode_node,
    decode_report,
    encode_node,
    encode_report,
)
from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.containers import HostId

NODE = ClusterNode(HostId("a-1"), "10.0.0.1:1", "10.0.0.1:2", 4, "0.1", "10.0.0.1:9092")


def test_a_node_is_registered_with_all_of_its_addresses() -> None:
    assert decode_node(encode_node(NODE)) == NODE


def test_a_node_of_a_version_without_topics_serves_none() -> None:
    fields = json.loads(encode_node(NODE))
    del fields["kafka"]
    assert decode_node(json.dumps(fields).encode()).kafka == ""


@pytest.mark.parametrize("state", list(Tier2State))
def test_a_report_says_how_the_node_stands_with_tier2(state: Tier2State) -> None:
    assert decode_report(encode_report(NodeReport(tier2=state))).tier2 is state


@pytest.mark.parametrize("told", [None, "frozen"])
def test_a_node_of_another_version_may_say_nothing_of_tier2(told: str | None) -> None:
    fields = json.loads(encode_report(NodeReport(version=7)))
    del fields["tier2"]
    if told is not None:
        fields["tier2"] = told
    found = decode_report(json.dumps(fields).encode())
    assert (found.version, found.tier2) == (7, Tier2State.UNKNOWN)
