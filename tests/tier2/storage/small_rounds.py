"""Two rounds of one small segment, and a look at what they left in the object store."""

from segmentstore.contracts.storage import Publication
from tests.contracts.storage_publications import change, data, round_of
from tests.tier2.storage.faulty_store import FaultyStore
from tier2.manifest.manifest import Manifest, decode_manifest

ROOT_KEY = "containers/0003/root"


def first_round(text: bytes = b"abc") -> Publication:
    return round_of(change(1, "a", length=len(text), sequence_number=1, pieces=[data(0, text)]))


def second_round() -> Publication:
    return round_of(change(1, "a", length=5, sequence_number=2, pieces=[data(3, b"de")]))


async def root_of(store: FaultyStore) -> Manifest:
    return decode_manifest((await store.store.get(ROOT_KEY)).content)


async def keys_of(store: FaultyStore) -> set[str]:
    return {info.key async for info in store.store.list("containers/")}
