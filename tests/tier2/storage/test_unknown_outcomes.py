"""H4: who is not told what became of a manifest is told why, in the word that the object store has for it."""

import pytest

from segmentstore.contracts.errors import StorageUnavailableError
from segmentstore.contracts.identifiers import BufferView
from tests.contracts.storage_publications import read_all
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import first_round, second_round
from tier2.object_stores.memory import MemoryObjectStore


class ThrottlingStore(FaultyStore):
    """Takes no conditional put while `throttled`."""

    throttled = False

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        if self.throttled:
            raise StorageUnavailableError("s3: writing is not allowed", state="credentials_denied")
        return await super().put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        if self.throttled:
            raise StorageUnavailableError("s3 asks for fewer requests", state="throttled")
        return await super().put_if_match(key, content, tag)


async def test_h4_a_root_that_was_not_published_says_why() -> None:
    store = ThrottlingStore(MemoryObjectStore())
    backing = ObjectStoreBacking(store, SMALL)
    owner = await backing.claimed(1)
    await owner.publish(first_round())
    store.throttled = True
    with pytest.raises(
        StorageUnavailableError, match=r"manifest update .* fewer requests"
    ) as update:
        await owner.publish(second_round())
    assert update.value.state == "throttled"
    with pytest.raises(StorageUnavailableError, match=r"claiming .* fewer requests") as claim:
        await backing.claimed(2)
    assert claim.value.state == "throttled"
    store.throttled = False
    assert await read_all(await backing.claimed(2), 1, 0, 3) == b"abc"


async def test_h4_a_first_start_that_may_not_write_says_why_and_goes_on_when_it_may() -> None:
    store = ThrottlingStore(MemoryObjectStore())
    backing = ObjectStoreBacking(store, SMALL)
    store.throttled = True
    with pytest.raises(StorageUnavailableError, match="writing is not allowed") as claim:
        await backing.claimed(1)
    assert claim.value.state == "credentials_denied"
    store.throttled = False
    await (await backing.claimed(1)).publish(first_round())
