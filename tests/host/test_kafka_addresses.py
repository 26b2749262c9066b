"""Where Kafka's protocol is listened for, and what is refused: a client is sent to each process by its address."""

import socket
from collections.abc import Iterator, Mapping

import pytest

from segmentstore.host.processes.supervisor import _bind_behind_kafka, _require_shareable
from segmentstore.host.service_builder import _node_settings
from segmentstore.host.setting_sources import ResolvedSettings, resolve_settings
from segmentstore.host.settings import SettingsError
from segmentstore.runtime.local_processes import free_ports

HOST = "127.0.0.9"
"""An address of this machine at which nothing else listens: what is free there stays so."""

NODE = {
    "tier1.kind": "bookkeeper://127.0.0.1/ledgers",
    "tier2.place": "s3://bucket/prefix",
    "http.address": "10.0.0.1:9091",
    "wire.address": "10.0.0.1:12345",
}


def resolved(flags: Mapping[str, str]) -> ResolvedSettings:
    return resolve_settings(flags=flags, environment={})


@pytest.fixture
def port() -> Iterator[int]:
    """Of a socket, where the system gives no program a port by itself."""
    (number,) = free_ports(1)
    with socket.socket() as held:
        held.bind((HOST, number))
        yield number


def ports_of(flags: Mapping[str, str], count: int) -> list[int]:
    sockets = list(_bind_behind_kafka(resolved(flags).settings, count))
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def test_processes_have_the_same_ports_of_their_own_at_every_start(port: int) -> None:
    flags = {"kafka.address": f"{HOST}:{port}"}
    first = ports_of(flags, 3)
    assert first == sorted(set(first))
    assert all(port < each < port + 1_000 for each in first)
    assert ports_of(flags, 3) == first


def test_ports_that_settings_name_are_left_to_them(port: int) -> None:
    flags = {"kafka.address": f"{HOST}:{port}"}
    (free, *_) = ports_of(flags, 1)
    with_grpc = {**flags, "kafka.grpc_address": f"{HOST}:{free}"}
    assert ports_of(with_grpc, 1)[0] > free


def test_a_port_that_is_taken_is_passed_over(port: int) -> None:
    flags = {"kafka.address": f"{HOST}:{port}"}
    (free, *_) = ports_of(flags, 1)
    with socket.socket() as taken:
        taken.bind((HOST, free))
        taken.listen()
        assert ports_of(flags, 1)[0] != free


def test_topics_of_several_processes_need_the_wire() -> None:
    flags = {"kafka.address": "127.0.0.1:9092", "store.data_directory": "/data"}
    _require_shareable(resolved(flags))
    with pytest.raises(SettingsError, match=r"set wire\.address"):
        _require_shareable(resolved({**flags, "wire.address": "off", "controller.address": "off"}))


@pytest.mark.parametrize("address", ["0.0.0.0:9092", "[::]:9092"])
def test_a_node_names_an_address_that_clients_reach(address: str) -> None:
    flags = {**NODE, "kafka.address": address}
    with pytest.raises(SettingsError, match=r"kafka\.advertised_address"):
        _node_settings(resolved(flags))
    advertised = {**flags, "kafka.advertised_address": "10.0.0.1:9092"}
    assert _node_settings(resolved(advertised)).kafka.address == address


def test_a_node_serves_kafka_where_it_is_told_to() -> None:
    flags = {**NODE, "kafka.address": "10.0.0.1:9092", "kafka.grpc_address": "10.0.0.1:9094"}
    assert _node_settings(resolved(flags)).kafka.address == "10.0.0.1:9092"
