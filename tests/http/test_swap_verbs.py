"""What a compactor beside the owner meets at /v1/containers: keys, uploads, proposals and their refusals (H9)."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from random import Random

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.storage import ProposedImage, SwapOwner
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.server import build_server
from segmentstore.http.settings import HttpSettings
from tests.contracts.storage_publications import read_all
from tests.http.memory_segments import MemorySegments
from tests.http.node import START_MS, TurnableClock, healthy_container
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.test_compaction import trickle
from tests.tier2.storage.test_swap_proposals import chunks
from tier2.format.chunk_encoder import encode_chunk
from tier2.format.chunk_format import Compression
from tier2.object_stores.memory import MemoryObjectStore
from tier2.tiered_storage import TieredStorage

SETTINGS = HttpSettings(port=0, append_bytes_max=1 << 14, swap_object_bytes_max=1 << 16)


@pytest.fixture
def backing() -> ObjectStoreBacking:
    return ObjectStoreBacking(
        FaultyStore(MemoryObjectStore()), replace(SMALL, compaction_bytes_per_second=0)
    )


@pytest.fixture
async def owner(backing: ObjectStoreBacking) -> TieredStorage:
    return await backing.claimed(1)


@pytest.fixture
async def url(owner: TieredStorage) -> AsyncIterator[str]:
    """A server with one container, number 0, that runs."""

    def owner_of(container_id: ContainerId) -> SwapOwner:
        if container_id != 0:
            raise ContainerNotFoundError(container_id)
        return owner

    server = build_server(
        segments=MemorySegments(),
        health=lambda: NodeHealth(containers=[healthy_container()], containers_expected=1),
        metrics=dict,
        swap_owners=owner_of,
        wall_clock=TurnableClock(START_MS),
        random=Random(1),
        settings=SETTINGS,
    )
    await server.start()
    host, port = server.address
    yield f"http://{host}:{port}/v1/containers/0/swaps"
    await server.close()


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession() as opened:
        yield opened


async def reserved(session: ClientSession, url: str) -> str:
    async with session.post(f"{url}/keys", json={"count": 1}) as answer:
        assert answer.status == 200
        keys = (await answer.json())["keys"]
    assert len(keys) == 1
    return str(keys[0])


async def uploaded(
    session: ClientSession, url: str, old: Sequence[ProposedImage], content: bytes
) -> ProposedImage:
    """A chunk of these bytes in the place of `old`, sent through the owner."""
    key = await reserved(session, url)
    offset = old[0].start_offset
    chunk = encode_chunk(
        start_offset=offset, runs=[content], compression=Compression.ZSTD, created_ms=5
    )
    async with session.put(
        f"{url}/objects", params={"key": key}, data=b"".join(chunk.buffers)
    ) as answer:
        assert answer.status == 201
    return ProposedImage(offset, chunk.end_offset, key, 0, chunk.size, chunk.file_crc32)


def proposal(
    old: Sequence[ProposedImage], new: Sequence[ProposedImage], segment_id: int = 1
) -> dict[str, object]:
    return {
        "segment_id": segment_id,
        "old": [asdict(image) for image in old],
        "new": [asdict(image) for image in new],
    }


async def test_h9_a_swap_that_is_proposed_over_http_is_published_by_the_owner(
    session: ClientSession, url: str, owner: TieredStorage
) -> None:
    content = await trickle(owner, 6)
    old = (await chunks(owner))[1:5]
    new = await uploaded(session, url, old, content[old[0].start_offset : old[-1].end_offset])
    async with session.post(url, json=proposal(old, [new])) as answer:
        assert (answer.status, await answer.json()) == (200, {"swapped": True})
    assert new in await chunks(owner)
    assert await read_all(owner, 1, 0, len(content)) == content


async def test_h9_a_swap_of_other_bytes_is_refused_with_the_reason_and_changes_nothing(
    session: ClientSession, url: str, owner: TieredStorage
) -> None:
    content = await trickle(owner, 6)
    before = await chunks(owner)
    other = bytes(len(content))
    new = await uploaded(
        session, url, before, other[before[0].start_offset : before[-1].end_offset]
    )
    async with session.post(url, json=proposal(before, [new])) as answer:
        assert answer.status == 409
        refusal = await answer.json()
    assert refusal["kind"] == "conflict"
    assert "the bytes differ" in refusal["error"]
    assert await chunks(owner) == before


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.FULL])
async def test_a_swap_that_may_be_published_later_is_not_said_to_be_undone(
    session: ClientSession,
    url: str,
    owner: TieredStorage,
    backing: ObjectStoreBacking,
    fault: Fault,
) -> None:
    content = await trickle(owner, 6)
    old = (await chunks(owner))[1:5]
    new = await uploaded(session, url, old, content[old[0].start_offset : old[-1].end_offset])
    store = backing.object_store
    assert isinstance(store, FaultyStore)
    store.conditional.append(fault)
    async with session.post(url, json=proposal(old, [new])) as answer:
        assert (answer.status, "outcome" in (await answer.json())["error"]) == (500, True)
    await store.land()
    await trickle(owner, 1, first=6)
    assert new in await chunks(owner)


async def test_an_upload_under_a_key_that_was_not_given_out_is_refused(
    session: ClientSession, url: str
) -> None:
    key = "containers/0000/chunks/0000000000000001-00000001-0000000000000009"
    async with session.put(f"{url}/objects", params={"key": key}, data=b"x") as answer:
        assert answer.status == 409
        assert "gave out no such object key" in (await answer.json())["error"]


async def test_a_released_key_takes_no_upload_and_makes_room_for_another(
    session: ClientSession, url: str
) -> None:
    key = await reserved(session, url)
    async with session.post(f"{url}/release", json={"keys": [key, "unknown"]}) as answer:
        assert answer.status == 200
    async with session.put(f"{url}/objects", params={"key": key}, data=b"x") as answer:
        assert answer.status == 409
    async with session.post(f"{url}/keys", json={"count": SMALL.proposal_keys_max}) as answer:
        assert answer.status == 200


async def test_an_object_beyond_the_limit_is_refused_before_it_is_read(
    session: ClientSession, url: str
) -> None:
    key = await reserved(session, url)
    body = bytes(SETTINGS.swap_object_bytes_max + 1)
    async with session.put(f"{url}/objects", params={"key": key}, data=body) as answer:
        assert answer.status == 413


async def test_what_is_no_proposal_is_refused_in_a_sentence(
    session: ClientSession, url: str, owner: TieredStorage
) -> None:
    await trickle(owner, 2)
    image = asdict((await chunks(owner))[0])
    for body in (
        {},
        {"segment_id": 1, "old": [], "new": {}},
        {"segment_id": -1, "old": [], "new": []},
        {"segment_id": 1, "old": [{**image, "size": "5"}], "new": []},
        {"segment_id": 1, "old": [{**image, "object_key": 5}], "new": []},
        {"segment_id": 1, "old": [{**image, "more": 5}], "new": []},
    ):
        async with session.post(url, json=body) as answer:
            assert answer.status == 400, body
            assert (await answer.json())["kind"] == "invalid"
    for count in (0, 5_000, "many"):
        async with session.post(f"{url}/keys", json={"count": count}) as answer:
            assert answer.status == 400


async def test_a_container_that_does_not_run_here_is_unavailable_and_a_strange_path_not_found(
    session: ClientSession, url: str
) -> None:
    async with session.post(url.replace("/0/", "/7/"), json={}) as answer:
        assert answer.status == 503
    for path in ("/0/else", "/x/swaps", "/0/swaps/"):
        async with session.post(url.replace("/0/swaps", path), json={}) as answer:
            assert answer.status == 404, path
    async with session.get(url) as answer:
        assert answer.status == 405


async def test_a_second_proposal_at_the_same_time_is_told_to_come_again(
    session: ClientSession, url: str, owner: TieredStorage
) -> None:
    await trickle(owner, 6)
    old = await chunks(owner)

    async def propose() -> int:
        async with session.post(url, json=proposal(old, old)) as answer:
            return answer.status

    statuses = sorted(await asyncio.gather(*(propose() for _ in range(8))))
    assert 409 in statuses
    assert set(statuses) <= {409, 503}


async def test_an_upload_that_waits_for_a_continue_is_held_to_its_own_limit(
    session: ClientSession, url: str
) -> None:
    """Objects may be larger than appends."""
    key = await reserved(session, url)
    size = SETTINGS.append_bytes_max + 1
    assert size <= SETTINGS.swap_object_bytes_max
    async with session.put(
        f"{url}/objects", params={"key": key}, data=io.BytesIO(bytes(size)), expect100=True
    ) as answer:
        assert answer.status == 201, await answer.text()
    too_large = io.BytesIO(bytes(SETTINGS.swap_object_bytes_max + 1))
    async with session.put(
        f"{url}/objects", params={"key": key}, data=too_large, expect100=True
    ) as answer:
        assert answer.status == 413
