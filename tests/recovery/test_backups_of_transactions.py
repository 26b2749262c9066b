"""A backup of a running store has all of a transaction or nothing of it, whatever moment of its commit it meets.

Goal: containers are pinned at different moments, and a commit goes through several of them. Method: a store of four
containers in one process, whose backup is made at each turn of the event loop of a commit in its turn, is restored as
`backup restore` does it, and served until it has finished what it found; then its streams are read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

import pytest

from segmentstore.codec.container_hash import container_of
from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.controller_records.record_keys import TRANSACTIONS_TABLE
from segmentstore.codec.stream_names import transaction_id_of, transaction_segment
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.transactions.transaction_states import Phase
from segmentstore.http.settings import HttpSettings
from segmentstore.http.tier2_verbs import BackupVerbs
from segmentstore.recovery.offline_store import StreamRepair, repair_store
from tests.controller.transactions.feature_cluster import events_in, framed
from tests.host.shared_store import SharedTiers, StoreProcess
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tier1.memory_log import MemoryLogStore
from tier2.manifest.manifest import decode_manifest
from tier2.manifest.snapshots import read_snapshots
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader

pytestmark = pytest.mark.simulation

CONTAINERS = 4
SEGMENTS = 4
STREAM = api.StreamInfo(scope="s", stream="b")
"""Its segments are in all containers, also in that of the table of transactions: see the first test."""


def names_of(epoch: int, numbers: range) -> list[str]:
    return [f"s/b/{number}.#epoch.{epoch}" for number in numbers]


def test_the_segments_of_the_stream_are_in_all_containers() -> None:
    homes = {container_of(name, CONTAINERS) for name in names_of(0, range(SEGMENTS))}
    assert homes == set(range(CONTAINERS))
    assert container_of(TRANSACTIONS_TABLE, CONTAINERS) in homes


class Writer:
    """A client that writes transactions: an event in each segment."""

    def __init__(self, process: StoreProcess) -> None:
        self.process = process
        self.answered: list[int] = []
        """Transactions whose commit was answered."""

    async def create_stream(self) -> None:
        await self.process.call("createScope", api.ScopeInfo(scope="s"), api.CreateScopeStatus)
        policy = api.ScalingPolicy(scaleType="FIXED_NUM_SEGMENTS", minNumSegments=SEGMENTS)
        await self.process.call(
            "createStream",
            api.StreamConfig(streamInfo=STREAM, scalingPolicy=policy),
            api.CreateStreamStatus,
        )

    async def begin(self, number: int) -> api.TxnId:
        begun = await self.process.call(
            "createTransaction",
            api.CreateTxnRequest(streamInfo=STREAM, lease=60_000),
            api.CreateTxnResponse,
        )
        await self._write(
            transaction_id_of(high=begun.txnId.highBits, low=begun.txnId.lowBits), number
        )
        return begun.txnId

    async def commit(self, txn: api.TxnId, number: int) -> None:
        request = api.TxnRequest(streamInfo=STREAM, txnId=txn)
        await self.process.call("commitTransaction", request, api.TxnStatus)
        self.answered.append(number)

    async def stage(self, number: int) -> bytes:
        request = own_api.BeginStageRequest(scope="s", stream="b", lease_ms=60_000)
        begun = await self.process.call("beginStage", request, own_api.BeginStageResponse)
        await self._write(int.from_bytes(begun.transaction_id, "big"), number)
        return begun.transaction_id

    async def commit_stages(self, stages: list[bytes], version: int) -> None:
        request = own_api.CommitStagesRequest(
            scope="s", stream="b", application_id="job", version=version, transaction_ids=stages
        )
        await self.process.call("commitStages", request, own_api.CommitStagesResponse)
        self.answered.append(version)

    async def scale(self) -> None:
        """Replace all segments by others of the same number: what was begun before makes a detour."""
        ranges = [
            api.ScaleRequest.KeyRangeEntry(start=each / SEGMENTS, end=(each + 1) / SEGMENTS)
            for each in range(SEGMENTS)
        ]
        request = api.ScaleRequest(
            streamInfo=STREAM, sealedSegments=range(SEGMENTS), newKeyRanges=ranges
        )
        await self.process.call("scale", request, api.ScaleResponse)
        status = api.ScaleStatusRequest(streamInfo=STREAM, epoch=0)
        while (
            await self.process.call("checkScale", status, api.ScaleStatusResponse)
        ).status != api.ScaleStatusResponse.ScaleStatus.SUCCESS:
            await asyncio.sleep(0.01)

    async def _write(self, transaction_id: int, number: int) -> None:
        for parent in names_of(0, range(SEGMENTS)):
            name = transaction_segment(parent, transaction_id)
            async with self.process.segments.open_segment(name) as segment:
                await segment.append(framed(b"%d" % number), events=1)


Work = Callable[[Writer], Awaitable[Callable[[], Awaitable[None]]]]
"""Prepares, and gives the commits that a backup is to meet."""


async def direct(writer: Writer) -> Callable[[], Awaitable[None]]:
    """Two transactions, one begun and written while the other is committed."""
    first = await writer.begin(1)

    async def work() -> None:
        await writer.commit(first, 1)
        await writer.commit(await writer.begin(2), 2)

    return work


async def staged(writer: Writer) -> Callable[[], Awaitable[None]]:
    stages = [await writer.stage(1) for _ in range(2)]

    async def work() -> None:
        await writer.commit_stages(stages, 1)

    return work


async def behind_a_scale(writer: Writer) -> Callable[[], Awaitable[None]]:
    transactions = [await writer.begin(number) for number in (1, 2)]
    await writer.scale()

    async def work() -> None:
        for number, txn in enumerate(transactions, start=1):
            await writer.commit(txn, number)

    return work


async def restored(tiers: SharedTiers, backup: str) -> SharedTiers:
    """What `backup restore` makes: the manifests of the backup, and logs that are begun anew."""
    after = SharedTiers(container_count=CONTAINERS)
    after.objects = MemoryObjectStore()
    async with aclosing(tiers.objects.list("")) as listed:
        async for found in listed:
            content = (await tiers.objects.get(found.key)).content
            await after.objects.put_if_absent(found.key, content)
    for number in range(CONTAINERS):
        reader = ContainerReader(
            object_store=tiers.objects,
            container_id=ContainerId(number),
            settings=StorageSettings(),
            executor=None,
        )
        snapshots = await read_snapshots(await reader.refresh())
        (kept,) = [each.manifest for each in snapshots if each.name == backup]
        root = f"containers/{number:04d}/root"
        assert decode_manifest((await tiers.objects.get(root)).content).version >= kept.version
        await after.objects.delete(root)
        await after.objects.put_if_absent(root, kept.encode())
        after.logs[number] = MemoryLogStore(
            log_id=b"begun anew no%d" % number, follows=kept.log_id, epoch=kept.epoch
        )
    return after


async def repaired(tiers: SharedTiers) -> StreamRepair:
    process = StoreProcess(tiers, "repair")
    async with process.working(controller=False):
        process.assign_all()
        while len(process.registry.running()) < CONTAINERS:
            await asyncio.sleep(0.01)
        done = await repair_store(process.segments, is_lost=lambda _: True)
        await process.segments.flush()
    return done


async def found_in(tiers: SharedTiers) -> Mapping[str, list[bytes]]:
    """The events of each segment of the stream, when all is finished."""
    process = StoreProcess(tiers, "restored")
    async with process.working():
        await process.take_over()
        states = process.controller.components.transaction_states
        while any(
            each.has(Phase.JOINING, Phase.COMMITTING, Phase.ABORTING, Phase.UNKNOWN)
            for each in states.all()
        ):
            await asyncio.sleep(0.05)
        assert process.controller.complaints() == []
        listed = await process.segments.list_segments("s/b/")
        return {
            each.name: events_in(await content_of(process, each.name, each.length))
            for each in listed
        }


async def content_of(process: StoreProcess, name: str, length: int) -> bytes:
    parts: list[bytes] = []
    async with process.segments.open_segment(name) as segment:
        while (offset := sum(map(len, parts))) < length:
            async with aclosing(segment.read(offset, length - offset)) as entries:
                parts += [await entry.content() async for entry in entries]
    return b"".join(parts)


def backup_in_the_middle(work_of: Work, turns: int) -> bool:
    """Whether the commits were done before the backup was begun."""

    async def main(_: SimLoop) -> bool:
        tiers = SharedTiers(container_count=CONTAINERS)
        process = StoreProcess(tiers, "origin")
        async with process.working():
            await process.take_over()
            writer = Writer(process)
            await writer.create_stream()
            work = await work_of(writer)
            await process.segments.flush()
            states = process.controller.components.transaction_states
            working = asyncio.ensure_future(work())
            for _turn in range(turns):
                await asyncio.sleep(0)
            answered = list(writer.answered)
            was_done = working.done() and not any(each.has_work for each in states.all())
            verbs = BackupVerbs(owners=process.backup_owners, settings=HttpSettings())
            answer = await verbs.pin_all("monday")
            assert answer.status == 200
            await working
        after = await restored(tiers, "monday")
        report = (await repaired(after)).report
        found = await found_in(after)
        events = [event for each in found.values() for event in each]
        counts = {number: events.count(b"%d" % number) for number in (1, 2)}
        whole = SEGMENTS * (2 if work_of is staged else 1)
        assert set(counts.values()) <= {0, whole}, counts
        assert all(counts[number] for number in answered), (counts, answered)
        left = [name for name in found if "#transaction" in name]
        assert left == [], "segments of transactions that are left"
        lost = [name for name in report.created if "#transaction" in name]
        assert lost == [], "told as lost"
        return was_done

    return run_simulation(1, main).result


STEP = 10
"""A step of a commit takes more turns than that."""


@pytest.mark.slow
@pytest.mark.parametrize("work_of", [direct, staged, behind_a_scale])
def test_a_backup_in_the_middle_of_a_commit_has_all_of_it_or_nothing(work_of: Work) -> None:
    turns = 0
    while not backup_in_the_middle(work_of, turns):
        turns += STEP
    assert turns >= 6 * STEP
