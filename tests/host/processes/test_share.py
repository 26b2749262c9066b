"""What one of several processes takes from the parent, and does not look for itself."""

from pathlib import Path

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.data_directory import DirectoryIdentity
from segmentstore.host.processes.locations import ProcessLocations
from segmentstore.host.processes.orders import NodeAddresses
from segmentstore.host.servers import ServerSockets
from segmentstore.host.service_builder import StoreShare, open_share
from segmentstore.host.setting_sources import resolve_settings


async def asked() -> None:
    """Nothing has changed."""


async def test_a_process_opens_its_share_while_another_one_makes_the_volumes(
    tmp_path: Path,
) -> None:
    # As the process that has the volumes leaves it for a moment at the first start: a lock, and no identity yet.
    (tmp_path / "tier2").mkdir()
    (tmp_path / "tier2" / "lock").touch()
    resolved = resolve_settings(
        flags={"store.data_directory": str(tmp_path), "tier2.place": "volumes"}, environment={}
    )
    locations = ProcessLocations(
        [NodeAddresses("127.0.0.1:1", "127.0.0.1:2")],
        container_count=1,
        own_index=0,
        own_start=1,
        ask_parent=asked,
    )
    share = StoreShare(
        identity=DirectoryIdentity(bytes(16), 1, 0),
        containers=[ContainerId(0)],
        locations=locations,
        node_id=locations.node_id,
        token="",
        volumes_socket=str(tmp_path / "socket"),
        sockets=ServerSockets(http=[], wire=None, kafka=[]),
    )
    async with open_share(resolved, share) as service:
        assert service.data_directory == str(tmp_path)
