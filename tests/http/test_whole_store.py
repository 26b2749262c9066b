"""Verbs over all containers, asked of one node of two."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.containers import BACKUP_HOLD_SECONDS_MAX
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    SegmentStoreError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.http.requests import FORK_REGISTRY_SUFFIX
from segmentstore.http.responses import Refusal
from segmentstore.http.settings import HttpSettings
from segmentstore.http.tier2_verbs import BackupVerbs
from tests.http.node import START_MS, until
from tests.http.nodes_in_cluster import (
    CONTAINERS,
    PATIENT,
    SegmentsOfNode,
    TwoNodes,
    name_in,
    two_nodes,
)
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

FAR, NEAR = ContainerId(1), ContainerId(0)


@pytest.fixture
async def nodes() -> AsyncIterator[TwoNodes]:
    async with two_nodes(PATIENT) as running:
        yield running


@pytest.fixture
async def impatient() -> AsyncIterator[TwoNodes]:
    """For requests that find no owner."""
    async with two_nodes() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def listed(client: ClientSession, nodes: TwoNodes, limit: int) -> list[str]:
    names: list[str] = []
    after = ""
    while True:
        params = {"after": after, "limit": str(limit), "prefix": "s"}
        async with client.get(f"{nodes.near.node.url}/v1/segments", params=params) as answer:
            assert answer.status == 200
            page = await answer.json()
        assert len(page["segments"]) <= limit
        names += [row["name"] for row in page["segments"]]
        if page["next"] is None:
            return names
        assert page["next"] > after
        after = page["next"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_a_listing_has_the_segments_of_all_nodes_by_name_each_once(
    nodes: TwoNodes, client: ClientSession, limit: int
) -> None:
    random = Random(limit)
    expected = []
    for number in range(40):
        name = f"s{random.randrange(1 << 30)}-{number}"
        member = random.choice([nodes.near, nodes.far])
        container = random.choice(sorted(member.served))
        name = name_in(container, name)
        await member.segments.create(name)
        expected.append(name)
        if number % 10 == 0:
            await member.segments.create(name + FORK_REGISTRY_SUFFIX)
    await nodes.near.segments.create(name_in(NEAR, "other"))
    assert await listed(client, nodes, limit) == sorted(expected)


async def test_a_listing_waits_for_a_container_on_its_way(
    nodes: TwoNodes, client: ClientSession
) -> None:
    name = name_in(FAR)
    await nodes.near.segments.create(name)
    nodes.move(FAR, None)
    listing = asyncio.ensure_future(listed(client, nodes, 10))
    await until(lambda: nodes.near.locations.refreshes > 0)
    nodes.move(FAR, nodes.near)
    assert await listing == [name]


async def test_a_listing_names_a_container_that_does_not_come(
    impatient: TwoNodes, client: ClientSession
) -> None:
    impatient.move(FAR, None)
    async with client.get(f"{impatient.near.node.url}/v1/segments") as answer:
        assert answer.status == 503
        assert f"missing=[{FAR}]" in (await answer.json())["error"]


async def test_a_node_answers_for_the_containers_that_are_named_or_not_at_all(
    nodes: TwoNodes, client: ClientSession
) -> None:
    for containers, status in (("0", 200), ("0,2", 200), ("0,1", 503), ("9", 503), ("x", 400)):
        params = {"containers": containers}
        async with client.get(f"{nodes.near.node.url}/v1/segments", params=params) as answer:
            assert answer.status == status
            assert ("Segment-Wrong-Node" in answer.headers) == (status == 503)


async def test_a_flush_is_of_every_container_once(nodes: TwoNodes, client: ClientSession) -> None:
    async with client.post(f"{nodes.near.node.url}/v1/flush") as answer:
        assert answer.status == 204
    flushed = nodes.near.segments.flushed + nodes.far.segments.flushed
    assert sorted(flushed) == list(range(CONTAINERS))
    assert set(nodes.far.segments.flushed) == nodes.far.served


async def test_a_flush_fails_whole_when_a_node_is_not_there(
    impatient: TwoNodes, client: ClientSession
) -> None:
    await impatient.far.node.server.close()
    async with client.post(f"{impatient.near.node.url}/v1/flush") as answer:
        assert answer.status == 503
        assert "missing=[1, 3]" in (await answer.json())["error"]


async def test_a_container_that_goes_while_it_is_asked_is_asked_for_again(
    nodes: TwoNodes, client: ClientSession
) -> None:
    flush = nodes.far.segments.flush_containers

    async def goes(containers: Sequence[ContainerId]) -> None:
        nodes.far.segments.flush_containers = flush  # type: ignore[method-assign]
        nodes.move(FAR, nodes.near)
        raise ContainerNotFoundError(FAR)

    nodes.far.segments.flush_containers = goes  # type: ignore[method-assign,assignment]
    async with client.post(f"{nodes.near.node.url}/v1/flush") as answer:
        assert answer.status == 204
    flushed = nodes.near.segments.flushed + nodes.far.segments.flushed
    assert sorted(flushed) == list(range(CONTAINERS))


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_backup_that_some_containers_made_or_dropped_is_not_said_to_be_as_it_was(
    impatient: TwoNodes, client: ClientSession, method: str
) -> None:
    url = f"{impatient.near.node.url}/v1/backups/monday"
    if method == "DELETE":
        async with client.post(url) as answer:
            assert answer.status == 200
    impatient.move(FAR, None)
    async with client.request(method, url) as answer:
        # A backup is begun when all containers are ready for it.
        assert answer.status == (503 if method == "POST" else 500)
        assert f"missing=[{FAR}]" in (await answer.json())["error"]
    assert impatient.near.segments.backups == set()
    assert impatient.near.segments.holds == {}


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize(
    "error",
    [
        StorageError("outcome of a manifest update is unknown"),
        StorageFullError("the bucket has no room"),
    ],
    ids=["unknown", "full"],
)
async def test_a_backup_that_breaks_off_at_one_container_is_taken_back_at_the_others(
    nodes: TwoNodes, client: ClientSession, number: int, error: SegmentStoreError
) -> None:
    for member in (nodes.near, nodes.far):
        member.segments.tier2_errors[ContainerId(number)] = error
    async with client.post(f"{nodes.near.node.url}/v1/backups/monday") as answer:
        assert (answer.status, (await answer.json())["kind"]) == (500, error.kind.value)
    async with client.get(f"{nodes.near.node.url}/v1/backups") as answer:
        assert (await answer.json())["backups"] == []
    assert nodes.near.segments.holds == nodes.far.segments.holds == {}


async def test_a_backup_that_was_broken_off_is_made_anew(
    nodes: TwoNodes, client: ClientSession
) -> None:
    """What it has is of another moment than what is added to it."""
    nodes.far.segments.backups = {(FAR, "monday"), (FAR, "sunday")}
    async with client.post(f"{nodes.near.node.url}/v1/backups/monday") as answer:
        assert answer.status == 200
        assert [row["container"] for row in (await answer.json())["pinned"]] == [0, 1, 2, 3]
    assert nodes.far.segments.dropped == [(FAR, "monday")]
    async with client.post(f"{nodes.near.node.url}/v1/backups/monday") as answer:
        assert [row["container"] for row in (await answer.json())["pinned"]] == [0, 1, 2, 3]
    assert nodes.far.segments.dropped == [(FAR, "monday")]
    assert nodes.near.segments.holds == nodes.far.segments.holds == {}


async def test_a_backup_through_which_a_container_did_not_hold_is_not_kept(
    nodes: TwoNodes, client: ClientSession
) -> None:
    """It is dropped while the others hold, so that no other maker finds it whole."""
    nodes.far.segments.forget_hold_of = FAR
    async with client.post(f"{nodes.near.node.url}/v1/backups/monday") as answer:
        assert answer.status == 503
        assert "make it again" in (await answer.json())["error"]
    assert nodes.near.segments.backups == nodes.far.segments.backups == set()
    assert nodes.near.segments.holds_at_drops == [{0, 2}, {0, 2}]
    assert nodes.far.segments.holds_at_drops == [{3}, {3}]
    assert nodes.near.segments.holds == nodes.far.segments.holds == {}


async def test_a_backup_that_is_not_whole_and_cannot_be_dropped_is_said_to_be_unusable(
    nodes: TwoNodes, client: ClientSession
) -> None:
    nodes.far.segments.forget_hold_of = FAR
    for member in (nodes.near, nodes.far):
        member.segments.drop_error = StorageError("no answer from Tier 2")
    async with client.post(f"{nodes.near.node.url}/v1/backups/monday") as answer:
        assert answer.status == 500
        assert "segmentstore backup drop" in (await answer.json())["error"]
    assert nodes.near.segments.holds == nodes.far.segments.holds == {}
    async with client.get(f"{nodes.near.node.url}/v1/backups") as answer:
        (row,) = (await answer.json())["backups"]
    assert (row["containers"], row["proved"], row["complete"]) == (4, False, False)


async def test_a_backup_whose_maker_dies_before_the_proof_is_not_complete_and_is_made_anew(
    nodes: TwoNodes, client: ClientSession
) -> None:
    url = f"{nodes.near.node.url}/v1/backups"
    for member in (nodes.near, nodes.far):
        containers = ",".join(map(str, sorted(member.served)))
        for step in ("hold", "pin"):
            params = {"containers": containers, "step": step, "hold": "a"}
            async with client.post(f"{member.node.url}/v1/backups/monday", params=params) as answer:
                assert answer.status == 200
    async with client.get(url) as answer:
        (row,) = (await answer.json())["backups"]
    assert (row["containers"], row["proved"], row["complete"]) == (4, False, False)
    async with client.post(f"{url}/monday") as answer:
        assert [row["container"] for row in (await answer.json())["pinned"]] == [0, 1, 2, 3]
    dropped = nodes.near.segments.dropped + nodes.far.segments.dropped
    assert sorted(dropped) == [(each, "monday") for each in range(CONTAINERS)]
    async with client.get(url) as answer:
        (row,) = (await answer.json())["backups"]
    assert (row["containers"], row["proved"], row["complete"]) == (4, True, True)


async def test_a_container_that_is_gone_does_not_keep_the_others_held(
    impatient: TwoNodes, client: ClientSession
) -> None:
    impatient.far.segments.gone_when_pinned = FAR
    async with client.post(f"{impatient.near.node.url}/v1/backups/monday") as answer:
        assert answer.status == 500
        assert "make it again, or drop" in (await answer.json())["error"]
    assert impatient.near.segments.holds == {}
    assert set(impatient.far.segments.holds) == {FAR}
    assert impatient.near.segments.backups == set()
    assert impatient.far.segments.backups == {(FAR, "monday")}


def in_one_process() -> tuple[SegmentsOfNode, BackupVerbs]:
    segments = SegmentsOfNode()
    segments.served.update(map(ContainerId, range(CONTAINERS)))
    return segments, BackupVerbs(owners=segments.backup_owners, settings=HttpSettings())


async def test_in_one_process_too_a_container_that_is_gone_does_not_keep_the_others_held() -> None:
    segments, verbs = in_one_process()
    segments.gone_when_pinned = FAR
    with pytest.raises(Refusal, match="make it again, or drop"):
        await verbs.pin_all("monday")
    assert set(segments.holds) == {FAR}
    assert segments.backups == {(FAR, "monday")}


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_backup_whose_client_leaves_is_made_or_taken_back(forgets: bool) -> None:
    segments, verbs = in_one_process()
    segments.pins_wait_for[FAR] = asyncio.Event()
    if forgets:
        segments.forget_hold_of = FAR
    making = asyncio.ensure_future(verbs.pin_all("monday"))
    await segments.pinning.wait()
    making.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    segments.pins_wait_for[FAR].set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert {each for each, _ in segments.backups} == (set() if forgets else segments.served)
    assert segments.holds == {}


@pytest.mark.simulation
def test_a_backup_that_takes_too_long_is_refused_and_nothing_stays_held() -> None:
    async def main(_: SimLoop) -> None:
        segments, verbs = in_one_process()
        segments.pins_wait_for[FAR] = asyncio.Event()
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refusal, match="too slow"):
            await verbs.pin_all("monday")
        assert asyncio.get_running_loop().time() - began < BACKUP_HOLD_SECONDS_MAX
        assert segments.backups == set()
        assert segments.holds_at_drops == [segments.served] * (CONTAINERS - 1)
        assert segments.holds == {}

    run_simulation(1, main)


@pytest.mark.simulation
def test_a_backup_that_tier_2_is_too_slow_to_take_back_is_not_complete_and_says_what_to_do() -> (
    None
):
    async def main(_: SimLoop) -> None:
        segments, verbs = in_one_process()
        segments.drops_wait = True
        segments.forget_hold_of = FAR
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refusal, match="segmentstore backup drop"):
            await verbs.pin_all("monday")
        assert asyncio.get_running_loop().time() - began <= BACKUP_HOLD_SECONDS_MAX
        assert segments.holds == {}
        assert await verbs.list_part(None) == {"backups": [row_of_monday(is_proved=False)]}
        segments.drops_wait = False
        segments.forget_hold_of = None
        await verbs.pin_all("monday")
        assert await verbs.list_part(None) == {"backups": [row_of_monday(is_proved=True)]}

    run_simulation(1, main)


def row_of_monday(*, is_proved: bool) -> dict[str, object]:
    """Of a backup that all containers have."""
    return {
        "backup": "monday",
        "made_ms": START_MS,
        "containers": CONTAINERS,
        "proved": is_proved,
        "complete": is_proved,
    }


async def test_a_step_of_a_backup_that_does_not_exist_is_refused(
    nodes: TwoNodes, client: ClientSession
) -> None:
    url = f"{nodes.near.node.url}/v1/backups/monday?containers=0"
    for query in ("&step=fly", "&step=hold"):
        async with client.post(url + query) as answer:
            assert answer.status == 400
    assert nodes.near.segments.backups == set()
