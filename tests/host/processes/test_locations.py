from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.processes.locations import ProcessLocations
from segmentstore.host.processes.orders import NodeAddresses, States

ADDRESSES = [
    NodeAddresses("127.0.0.1:1", "127.0.0.1:2"),
    NodeAddresses("127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"),
]


async def _told() -> None:
    return


def locations_of_process_1() -> ProcessLocations:
    return ProcessLocations(
        ADDRESSES, container_count=4, own_index=1, own_start=5, ask_parent=_told
    )


def test_a_process_knows_itself_before_it_hears_of_others() -> None:
    locations = locations_of_process_1()
    owner = locations.owner_of(ContainerId(3))
    assert owner is not None
    assert owner.node_id == locations.node_id
    assert owner.kafka == "127.0.0.1:5"
    assert locations.owner_of(ContainerId(2)) is None
    assert [node.node_id for node in locations.nodes()] == [locations.node_id]


def test_the_next_process_of_a_place_is_another_node_at_the_same_address() -> None:
    locations = locations_of_process_1()
    locations.take(States(starts=[2, 5], ends=[0] * 4))
    first = locations.owner_of(ContainerId(0))
    locations.take(States(starts=[0, 5], ends=[0] * 4))
    assert locations.owner_of(ContainerId(0)) is None
    assert locations.wire_address(ContainerId(0)) == "127.0.0.1:2"
    locations.take(States(starts=[6, 5], ends=[0] * 4))
    second = locations.owner_of(ContainerId(0))
    assert first is not None
    assert second is not None
    assert first.node_id != second.node_id
    assert (first.wire, first.http) == (second.wire, second.http)
