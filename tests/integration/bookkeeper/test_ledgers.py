"""The official client on real bookies keeps what a log builds on."""

import asyncio
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from segmentstore.contracts.errors import LogCorruptedError
from tests.contracts.ledger_client_suite import LedgerClientSuite
from tests.integration.bookkeeper.cluster import PATIENT, Cluster
from tier1.bookkeeper.java_bridge import ENTRY_HEADER_BYTES
from tier1.bookkeeper.java_client import JavaLedgerClient, JavaLedgerReader, JavaLedgerWriter
from tier1.bookkeeper.ledgers import LedgerId, LedgerReader, LedgerUnavailableError, Quorum

pytestmark = pytest.mark.integration

MARK = b"every copy of this entry is damaged"
DAMAGE_SECONDS_MAX = 300.0
"""Bookies flush every five seconds, if the disk takes it."""


class _World:
    """Implements LedgerWorld."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def client(self) -> JavaLedgerClient:
        return await self._cluster.client(settings=PATIENT)

    async def stranger(self) -> JavaLedgerClient:
        return await self._cluster.client(password=b"of another store", settings=PATIENT)


class TestJavaLedgerClient(LedgerClientSuite):
    @pytest.fixture
    def world(self, cluster: Cluster) -> _World:
        return _World(cluster)


async def damage_each_copy(cluster: Cluster, *, copies: int) -> None:
    """Change a byte of the marked entry wherever bookies keep it to read; they write it there a little later."""
    damaged: set[Path] = set()
    async with asyncio.timeout(DAMAGE_SECONDS_MAX):
        while len(damaged) < copies:
            for path in cluster.ensemble.directory.glob("bookie*/ledgers/current/*.log"):
                with suppress(FileNotFoundError):  # bookies delete those of deleted ledgers
                    at = path.read_bytes().find(MARK)
                    if at >= 0:
                        with path.open("r+b") as file:
                            file.seek(at)
                            file.write(b"E")
                        damaged.add(path)
            await asyncio.sleep(0.05)


async def test_an_entry_whose_copies_are_all_damaged_is_told_and_leaves_no_ledger_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(settings=PATIENT)
    writer = await client.create(Quorum(2, 2, 2), labels={})
    await writer.append([bytes(200_000), MARK, bytes(200_000)])
    await writer.close()
    await damage_each_copy(cluster, copies=2)
    opened: list[LedgerReader] = []
    open_fenced = client.open_fenced

    async def noted(ledger_id: LedgerId) -> LedgerReader:
        opened.append(await open_fenced(ledger_id))
        return opened[-1]

    monkeypatch.setattr(client, "open_fenced", noted)
    reader = await client.open_fenced(writer.ledger_id)
    with pytest.raises(LogCorruptedError):
        await reader.read(0, 0)
    await reader.close()
    assert len(opened) == 2, "the ledger is opened once more, to see whether it was deleted"
    assert [each._is_closed for each in opened if isinstance(each, JavaLedgerReader)] == [True] * 2


async def test_g2_behind_an_entry_that_java_could_not_take_the_ledger_gets_no_other(
    cluster: Cluster,
) -> None:
    client = await cluster.client(settings=PATIENT)
    writer = await client.create(Quorum(), labels={})
    assert isinstance(writer, JavaLedgerWriter)
    assert await writer.append([b"taken"]) == 0
    bridge = client._bridge
    # Longer than the buffer: it fails before BookKeeper has it, as one does for which there is no memory.
    struct.pack_into("<ii", bridge._stage, 0, writer._number, 2 * len(bridge._stage))
    bridge.java.append(ENTRY_HEADER_BYTES)
    behind = writer.append([b"behind it"])
    bridge._hand_over()
    with pytest.raises(LedgerUnavailableError):
        await behind
    reader = await client.open_fenced(writer.ledger_id)
    assert reader.last_entry == 0
    await reader.close()
