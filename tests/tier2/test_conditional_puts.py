"""What is concluded from a race of conditional puts."""

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectStore
from tier2.conditional_puts import require_compare_and_set
from tier2.object_stores.memory import MemoryObjectStore


async def probe(store: ObjectStore) -> None:
    await require_compare_and_set(store, "probe/x", racers=8)


async def test_a_store_in_which_one_writer_wins_is_taken() -> None:
    await probe(MemoryObjectStore())


async def test_a_race_that_each_writer_lost_proves_nothing() -> None:
    """Some servers refuse all who meet: the caller tries again. They are not taken for one that lets several win."""

    class RefusesAll(MemoryObjectStore):
        async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
            raise ObjectChangedError(key)

    with pytest.raises(StorageError, match="each was told that another one had won"):
        await probe(RefusesAll())


async def test_where_none_is_known_to_have_won_the_reason_is_told() -> None:
    class Silent(MemoryObjectStore):
        async def put_if_absent(self, key: str, content: BufferView) -> str:
            raise StorageUnavailableError("the bucket is not there", state="bucket_missing")

    with pytest.raises(StorageUnavailableError, match="the bucket is not there") as told:
        await probe(Silent())
    assert told.value.state == "bucket_missing"


async def test_one_answer_that_is_lost_does_not_matter_where_another_writer_won() -> None:
    class LosesOne(MemoryObjectStore):
        answers = 0

        async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
            self.answers += 1
            if self.answers == 8:
                raise StorageUnavailableError("no answer", state="unavailable")
            return await super().put_if_match(key, content, tag)

    await probe(LosesOne())


async def test_a_winner_that_cannot_be_read_back_is_refused() -> None:
    class Forgets(MemoryObjectStore):
        async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
            if content[1]:
                raise ObjectChangedError(key)
            return "a tag"

    with pytest.raises(InvalidRequestError, match="cannot be read back"):
        await probe(Forgets())
