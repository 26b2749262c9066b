"""What is read for a group before its turn is what the index has at its turn, or nothing."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError, StorageError
from segmentstore.contracts.identifiers import BufferView
from tests.tier2.volumes.engines import open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes import write_queue
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.index_database import BufferedIndex
from tier2.volumes.mutations import Put, UnhashedPut
from tier2.volumes.write_batch import PreparedBatch

KEYS = [b"key%d" % number for number in range(8)]


@pytest.mark.parametrize("seed", range(200))
def test_rows_that_were_read_ahead_are_those_of_now_or_unknown(seed: int) -> None:
    random = Random(seed)
    index = BufferedIndex(MemoryIndex(), rows_max=6, bytes_max=1 << 20)
    aheads = []
    known = 0
    for step in range(60):
        wanted = random.sample(KEYS, 4)
        aheads.append(index.prefetch(wanted))
        for ahead in random.sample(aheads, min(5, len(aheads))):
            rows = index.still_valid(ahead)
            known += len(rows)
            assert not rows or list(rows) == list(ahead.rows)
            assert [*rows.values()] == index.get_many([*rows])
        index.apply(
            (key, random.choice((None, b"%d" % step)))
            for key in random.sample(KEYS, random.randrange(3))
        )
        if random.random() < 0.1:
            index.flush()
    assert known, "nothing was ever known"


class StubbornIndex(MemoryIndex):
    """Takes half of a batch, and fails."""

    fails = False

    def apply(self, changes: object) -> None:
        rows = list(changes)  # type: ignore[call-overload]  # pairs, as there
        if self.fails:
            super().apply(rows[: len(rows) // 2])
            raise StorageError("no room")
        super().apply(rows)


def test_rows_of_a_batch_that_did_not_reach_the_database_are_known_from_memory() -> None:
    database = StubbornIndex()
    index = BufferedIndex(database, rows_max=100, bytes_max=1 << 20)
    ahead = index.prefetch(KEYS)
    index.apply((key, b"new") for key in KEYS)
    database.fails = True
    with pytest.raises(StorageError):
        index.flush()
    later = index.prefetch(KEYS)
    for one in (ahead, later):
        assert set(index.still_valid(one).values()) == {b"new"}


async def test_a_put_finds_what_a_group_changed_after_it_had_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes and the same key again and again: each group looks while the one before it is under way."""
    looked = []
    real = GroupCommit.prepare

    def prepare(self: GroupCommit, puts: Sequence[Put], now_ms: int) -> PreparedBatch:
        looked.append(len(puts))
        return real(self, puts, now_ms)

    monkeypatch.setattr(GroupCommit, "prepare", prepare)
    opened = await open_small(str(tmp_path))
    engine = opened.engine
    contents: list[list[BufferView]] = [[bytes([number]) * 9000] for number in range(3)]
    for number in range(60):
        await engine.put(b"%d" % (number % 5), contents[number % 3])
    assert sum(looked) == 60
    for number in range(55, 60):
        found = await engine.get(b"%d" % (number % 5))
        assert found.content == contents[number % 3][0]
    await engine.check()  # references and live bytes
    await opened.close()


async def test_bytes_that_change_after_they_were_hashed_are_the_trouble_of_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is whole all the same, and so is its group when it is read back."""
    changed = bytearray(40_000)
    real = write_queue._hash_puts

    def digest_and_change(wanted: Sequence[UnhashedPut], *rest: object) -> object:
        found = real(wanted, *rest)  # type: ignore[arg-type]  # as it came
        changed[20_000] = 1
        return found

    monkeypatch.setattr(write_queue, "_hash_puts", digest_and_change)
    opened = await open_small(str(tmp_path))
    for key, content in ((b"bad", memoryview(changed)), (b"good", b"g" * 40_000)):
        await opened.engine.put(key, [content])
    await opened.close()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    (tmp_path / "index").rmdir()
    again = await open_small(str(tmp_path))
    assert again.replay.rebuilt
    assert not again.replay.damaged, again.replay
    assert (await again.engine.get(b"good")).content == b"g" * 40_000
    with pytest.raises(CorruptedDataError):
        await again.engine.get(b"bad")
    await again.close()
