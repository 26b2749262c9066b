"""Many small segments: few puts, quick look-ups, bounded memory (H1)."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from segmentstore.contracts.identifiers import AttributeKey, SegmentId
from tests.contracts.storage_publications import change, data, read_all, round_of
from tests.reference.counted_lines import counted_lines
from tests.reference.loop_turns import WorkOfTurns, work_of_turns
from tests.tier2.storage.backings import ObjectStoreBacking
from tier2.manifest import garbage
from tier2.object_stores.memory import MemoryObjectStore
from tier2.publish import publish
from tier2.settings import StorageSettings

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@pytest.mark.slow
async def test_h1_a_round_over_ten_thousand_small_segments_is_a_handful_of_puts() -> None:
    backing = ObjectStoreBacking(MemoryObjectStore())
    owner = await backing.claimed(1)
    content = {n: n.to_bytes(4, "big") * 256 for n in range(1, 10_001)}
    publication = round_of(
        *(
            change(n, f"scope/s{n}", length=1024, sequence_number=n, pieces=[data(0, text)])
            for n, text in content.items()
        )
    )
    before = owner.statistics()
    with counted_lines() as lines:
        await owner.publish(publication)
    assert lines.count < 1_000 * len(content)
    assert owner.statistics().puts - before.puts <= 10
    for n in range(1, 10_001, 997):
        assert await read_all(owner, n, 0, 1024) == content[n]


@pytest.mark.slow
async def test_h1_a_hundred_thousand_segments_are_found_after_reopening_within_bounded_memory() -> (
    None
):
    settings = StorageSettings(sst_cache_bytes=4 << 20, record_cache_bytes=1 << 20)
    backing = ObjectStoreBacking(MemoryObjectStore(), settings)
    owner = await backing.claimed(1)
    for first in range(1, 100_001, 10_000):
        await owner.publish(
            round_of(
                *(
                    change(
                        n,
                        f"scope/stream-{n:06}",
                        length=0,
                        sequence_number=n,
                        attributes={AttributeKey(b"event"): n},
                    )
                    for n in range(first, first + 10_000)
                )
            )
        )
        while await owner.maintain():
            pass
    assert owner.statistics().run_count <= 12
    successor = await backing.claimed(2)
    gc.collect()
    tracemalloc.start()
    for n in range(1, 100_001, 499):
        record = await successor.find(f"scope/stream-{n:06}")
        assert record is not None
        assert record.segment_id == n
    gets = successor.statistics().gets
    for n in range(1000):
        assert await successor.find(f"scope/stream-{n:06}x") is None
    assert successor.statistics().gets - gets <= 4, "a negative look-up reads almost nothing"
    loaded = await successor.load([SegmentId(n) for n in range(1, 100_001, 7)])
    assert len(loaded) == 14_286
    del loaded
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 16 << 20
    successor.check()


async def test_runs_stay_few_however_many_rounds_there_are() -> None:
    backing = ObjectStoreBacking(MemoryObjectStore(), StorageSettings(sst_fanout=4))
    owner = await backing.claimed(1)
    most = 0
    for n in range(1, 200):
        await owner.publish(
            round_of(change(1, "a", length=n, sequence_number=n, pieces=[data(n - 1, b"x")]))
        )
        while await owner.maintain():
            pass
        most = max(most, owner.statistics().run_count)
    assert most <= 8
    assert await read_all(owner, 1, 0, 199) == b"x" * 199


async def test_publish_merges_by_itself_when_nobody_maintains() -> None:
    backing = ObjectStoreBacking(MemoryObjectStore(), StorageSettings(sst_count_max=10))
    owner = await backing.claimed(1)
    for n in range(1, 60):
        await owner.publish(
            round_of(change(1, "a", length=n, sequence_number=n, pieces=[data(n - 1, b"x")]))
        )
        assert owner.statistics().run_count <= 10
    assert await read_all(owner, 1, 0, 59) == b"x" * 59


async def test_a_segment_of_very_many_chunks_leaves_in_many_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 3_000
    one_chunk_a_run = StorageSettings(chunk_bytes_max=4, compaction_bytes_per_second=0)
    owner = await ObjectStoreBacking(MemoryObjectStore(), one_chunk_a_run).claimed(1)
    runs = [number.to_bytes(4, "big") for number in range(count)]
    await owner.publish(
        round_of(change(1, "a", length=4 * count, sequence_number=1, pieces=[data(0, *runs)]))
    )
    async with work_of_turns() as looks:
        for module, name in ((publish, "end_offset_of"), (garbage, "reference_key")):
            monkeypatch.setattr(module, name, counted(getattr(module, name), looks))
        await owner.publish(
            round_of(change(1, "a", length=4 * count, sequence_number=2, deleted=True))
        )
    assert looks.total >= 2 * count
    assert max(looks.each_turn) < count / 2
    assert await owner.find("a") is None
    assert owner.statistics().garbage_objects == 1


def counted(
    call: Callable[_Arguments, _Result], looks: WorkOfTurns
) -> Callable[_Arguments, _Result]:
    def one_more(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        looks.note()
        return call(*args, **kwargs)

    return one_more
