"""Goal: a process that is told to end waits for no other one that says nothing.

Method: one process of a store of two, in this one; the other is a server that takes calls and answers none.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from segmentstore.cluster import remote_store
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.data_directory import DirectoryIdentity
from segmentstore.host.servers import ServerSockets, address_text
from segmentstore.host.service_builder import Service, StoreShare, open_share
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.topics.errors import TopicsUnavailableError
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.producer_ids import PRODUCER_IDS_TABLE
from segmentstore.topics.topic_records import CATALOGUE_TABLE
from tests.cluster.remote_nodes import IMPATIENT, KnownLocations, SilentNode, silent_node

THIS, SILENT = HostId("this"), HostId("silent")
CONTAINERS = 8
TABLES = (CATALOGUE_TABLE, PRODUCER_IDS_TABLE, OFFSETS_TABLE)


def listening() -> socket.socket:
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    return bound


@asynccontextmanager
async def process_beside(silent: SilentNode, path: Path) -> AsyncIterator[Service]:
    """It has the tables of topics; the silent one has everything else."""
    http, wire, kafka = listening(), listening(), listening()
    here = sorted({ContainerId(container_of(table, CONTAINERS)) for table in TABLES})
    locations = KnownLocations(container_count=CONTAINERS)
    own = address_text(*wire.getsockname())
    locations.registered = {
        THIS: ClusterNode(THIS, "", own, 0, "test", address_text(*kafka.getsockname())),
        SILENT: ClusterNode(SILENT, "", silent.address, 0, "test", "127.0.0.1:1"),
    }
    locations.owners = {
        ContainerId(number): THIS if number in here else SILENT for number in range(CONTAINERS)
    }
    await locations.refresh()
    share = StoreShare(
        identity=DirectoryIdentity(bytes(16), CONTAINERS, 1),
        containers=here,
        locations=locations,
        node_id=THIS,
        token="the token",
        volumes_socket="",
        sockets=ServerSockets(http=[http], wire=wire, kafka=[kafka]),
    )
    flags = {
        "store.data_directory": str(path),
        "store.container_count": str(CONTAINERS),
        "tier1.kind": "memory",
        "tier2.place": "memory",
        "kafka.address": "127.0.0.1:0",
    }
    resolved = resolve_settings(flags=flags, environment={})
    async with open_share(resolved, share) as service, asyncio.TaskGroup() as group:
        managing = group.create_task(service.manager.run())
        try:
            await service.manager.wait_until_settled()
            yield service
        finally:
            managing.cancel()
    for each in (http, wire, kafka):
        each.close()


async def test_a_change_of_a_topic_that_waits_for_a_silent_process_holds_up_no_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "NodeConnectionSettings", lambda: IMPATIENT)
    async with silent_node() as silent, process_beside(silent, tmp_path) as service:
        servers = service.servers
        await servers.start()
        serving = asyncio.create_task(servers.run())
        await servers.wait_until_ready()
        topics = servers._answering_topics()
        assert topics is not None
        change = asyncio.create_task(topics.create("t", 32, {}))
        while not silent.calls:
            await asyncio.sleep(0.01)
        # As a process does that is told to end.
        serving.cancel()
        async with asyncio.timeout(60):
            await servers.close()
        with pytest.raises(TopicsUnavailableError):
            await change
        with suppress(asyncio.CancelledError):
            await serving
