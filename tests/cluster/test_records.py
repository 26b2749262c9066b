import json
from dataclasses import replace

import pytest

from segmentstore.cluster.records import (
    AssignedContainer,
    AssignmentMap,
    FailureRecord,
    FailureReport,
    NodeReport,
    decode_assignment,
    decode_node,
    decode_report,
    encode_assignment,
    encode_node,
    encode_report,
)
from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import VALUE_BYTES_MAX

NODE = ClusterNode(HostId("a-1"), "10.0.0.1:1", "10.0.0.1:2", 4, "0.1", "10.0.0.1:9092")


def test_a_node_is_registered_with_all_of_its_addresses() -> None:
    assert decode_node(encode_node(NODE), NODE.node_id) == NODE


def test_a_node_of_a_version_without_topics_serves_none() -> None:
    fields = json.loads(encode_node(NODE))
    del fields["kafka"]
    assert decode_node(json.dumps(fields).encode(), NODE.node_id).kafka == ""


@pytest.mark.parametrize("state", list(Tier2State))
def test_a_report_says_how_the_node_stands_with_tier2(state: Tier2State) -> None:
    assert decode_report(encode_report(NodeReport(tier2=state)), NODE.node_id).tier2 is state


@pytest.mark.parametrize("told", [None, "frozen"])
def test_a_node_of_another_version_may_say_nothing_of_tier2(told: str | None) -> None:
    fields = json.loads(encode_report(NodeReport(version=7)))
    del fields["tier2"]
    if told is not None:
        fields["tier2"] = told
    found = decode_report(json.dumps(fields).encode(), NODE.node_id)
    assert (found.version, found.tier2) == (7, Tier2State.UNKNOWN)


KIND = "lasting: containers.recovery.recovery.RecoveryRefusedError in recovery.py:123"


@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_the_map_fits_into_a_value_also_when_every_container_has_failed(letter: str) -> None:
    failure = FailureRecord(7, HostId("store-17-0123456789abcdef"), 500 * letter, KIND, 3)
    for count in (1, 100, 4_096):
        containers = {
            ContainerId(n): AssignedContainer(None, 9, None, failure) for n in range(count)
        }
        value = encode_assignment(AssignmentMap(9, 3, containers))
        assert len(value) <= VALUE_BYTES_MAX
        found = decode_assignment(value)
        assert (found.version, list(found.containers)) == (9, list(containers))
        for each in found.containers.values():
            assert each.failure is not None
            assert failure.cause.startswith(each.failure.cause)
            assert replace(each.failure, cause=failure.cause) == failure
            assert len(each.failure.cause) == 500 or count > 100


@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_a_report_fits_into_a_value_also_when_every_container_has_failed(letter: str) -> None:
    failure = FailureReport(9, 500 * letter, KIND)
    for count in (1, 100, 4_096):
        numbers = [ContainerId(n) for n in range(count)]
        report = NodeReport(
            9,
            held=dict.fromkeys(numbers, 9),
            failed=dict.fromkeys(numbers, failure),
            loads=dict.fromkeys(numbers, 123456.7),
        )
        value = encode_report(report)
        assert len(value) <= VALUE_BYTES_MAX
        found = decode_report(value, NODE.node_id)
        assert (found.held, found.loads) == (report.held, report.loads)
        for each in found.failed.values():
            assert failure.cause.startswith(each.cause)
            assert (each.since, each.kind) == (9, KIND)
            assert len(each.cause) == 500 or count > 100
