from segmentstore.host.processes.orders import (
    NODE,
    NodeAddresses,
    Orders,
    States,
    containers_of,
    decode,
    encode,
    index_of,
    orders_in,
    orders_message,
    process_count,
    states_in,
    states_message,
)

ORDERS = Orders(
    role=NODE,
    index=1,
    start=7,
    settings={"store.data_directory": "/a b", "cache.bytes_max": "128MiB"},
    store_id="00ff",
    container_count=5,
    created_ms=12,
    token="secret",
    volumes_socket="",
    nodes=[NodeAddresses("127.0.0.1:1", "127.0.0.1:2"), NodeAddresses("127.0.0.1:3", "")],
    controller_address="off",
)


def test_whatever_the_number_of_processes_each_container_has_exactly_one() -> None:
    for count in range(1, 9):
        shares = [containers_of(index, count, container_count=8) for index in range(count)]
        assert sorted(each for share in shares for each in share) == list(range(8))
        for index, share in enumerate(shares):
            assert [index_of(each, count) for each in share] == [index] * len(share)


def test_there_are_no_more_processes_than_containers() -> None:
    assert process_count("3", container_count=8) == 3
    assert process_count("9", container_count=8) == 8
    assert 1 <= process_count("auto", container_count=8) <= 8


def test_messages_read_back_and_are_one_line_each() -> None:
    states = States(starts=[0, 4], ends=[0, 0, 1])
    for message in (orders_message(ORDERS), states_message(states)):
        assert encode(message).count(b"\n") == 1
    assert orders_in(decode(encode(orders_message(ORDERS)))) == ORDERS
    assert states_in(decode(encode(states_message(states)))) == states
