"""Goal: the invariants of random_partition.py hold whatever happens in whatever order; and a bug in them is found.

Method: seeds of the simulation; then the same with one bug planted each, until a seed finds it.
"""

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from segmentstore.codec.record_batch import BatchHeader
from segmentstore.contracts.errors import ObjectExistsError, StorageError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.segments import AttributeUpdate, Segment, SegmentProperties
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics.partition_files import PartitionFiles
from segmentstore.topics.partition_log import OWNER, Appended, PartitionLog
from segmentstore.topics.producer_windows import ProducerWindows
from segmentstore.topics.record_files.gathered_batches import BatchGathering
from segmentstore.topics.record_files.record_files import MadeFile
from tests.sim.simulation import run_simulation
from tests.topics.planted_bugs import require_found
from tests.topics.random_partition import one_schedule

pytestmark = pytest.mark.simulation

_SEEDS_FOR_A_BUG = 120


def run(seed: int) -> Counter[str]:
    return run_simulation(seed, lambda loop: one_schedule(loop, seed)).result


@pytest.mark.parametrize("seed", range(1, 41))
def test_whatever_happens_each_record_is_stored_once_and_in_order(seed: int) -> None:
    seen = run(seed)
    assert seen["appended"] > 10
    assert seen["looked"] > 1


def test_the_seeds_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 21):
        seen += run(seed)
    for what in (
        "duplicate",
        "failed",
        "restarted",
        "trimmed",
        "below the log start",
        "stored=None",
        "stored=False",
        "files",
        "files refused",
        "dead",
        "killed",
    ):
        assert seen[what] >= 3, seen


def _windows_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = PartitionLog.load

    async def forgetful(self: PartitionLog, segment: Segment) -> SegmentProperties:
        info = await original(self, segment)
        self._windows.load(())
        return info

    patch.setattr(PartitionLog, "load", forgetful)


def _a_failure_is_not_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "shut", lambda self, why: None)


def _duplicates_are_told_at_once(patch: pytest.MonkeyPatch) -> None:
    def at_once(
        self: PartitionLog, answer: "Future[Appended]", base_offset: int, append_time_ms: int
    ) -> None:
        answer.set_result(self._appended(base_offset, append_time_ms, duplicate=True))

    patch.setattr(PartitionLog, "_answer_duplicate", at_once)


def _sequences_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: ProducerWindows, header: BatchHeader) -> None:
        return None

    patch.setattr(ProducerWindows, "find_duplicate", nothing)


def _refusals_are_told_at_once(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: PartitionLog, answer: "Future[Appended]", refusal: Exception) -> None:
        answer.set_exception(refusal)

    patch.setattr(PartitionLog, "_refuse_when_confirmed", at_once)


def _owners_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_as_owner", lambda self: AttributeUpdate(OWNER, self._owner))


def _a_file_is_registered_although_its_put_failed(patch: pytest.MonkeyPatch) -> None:
    original = Tier2RecordFiles.put

    async def hopeful(self: Tier2RecordFiles, key: str, image: BufferView) -> None:
        with suppress(StorageError):
            await original(self, key, image)

    patch.setattr(Tier2RecordFiles, "put", hopeful)


def _a_file_is_registered_before_it_is_put(patch: pytest.MonkeyPatch) -> None:
    original = Tier2RecordFiles.put
    late: list[Future[None]] = []

    async def later(self: Tier2RecordFiles, key: str, image: BufferView) -> None:
        async def put() -> None:
            await asyncio.sleep(0.01)
            with suppress(StorageError):
                await original(self, key, image)

        if await self.exists(key):
            raise ObjectExistsError(key)
        late.append(asyncio.ensure_future(put()))

    patch.setattr(Tier2RecordFiles, "put", later)


def _bytes_are_dropped_before_their_file_is_registered(patch: pytest.MonkeyPatch) -> None:
    original = PartitionFiles._keep

    async def hasty(
        self: PartitionFiles, segment: Segment, gathered: BatchGathering, made: MadeFile
    ) -> None:
        await self._all_segments.truncate(segment.name, gathered.end.position)
        await original(self, segment, gathered, made)

    patch.setattr(PartitionFiles, "_keep", hasty)


def _changes_of_files_keep_the_owners_number(patch: pytest.MonkeyPatch) -> None:
    async def as_before(
        self: PartitionLog, segment: Segment, updates: Sequence[AttributeUpdate]
    ) -> None:
        future = segment.append(
            b"", offset=self._length, attribute_updates=[self._as_owner(), *updates]
        )
        self._owner_before = self._owner
        try:
            await future
        except BaseException:
            self.shut("failed")
            raise

    patch.setattr(PartitionLog, "append_alone", as_before)


def _dead_files_are_deleted_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    async def no_proof(self: PartitionFiles, segment: Segment) -> None:
        del self, segment

    patch.setattr(PartitionFiles, "_prove_ownership", no_proof)


def _producers_are_not_stored_with_a_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_end_mark_updates", lambda _: [])


@pytest.mark.parametrize(
    "plant",
    [
        _a_file_is_registered_although_its_put_failed,
        _a_file_is_registered_before_it_is_put,
        _bytes_are_dropped_before_their_file_is_registered,
        _changes_of_files_keep_the_owners_number,
        _dead_files_are_deleted_without_a_proof,
        _producers_are_not_stored_with_a_file,
        _owners_are_not_compared,
        _windows_are_forgotten,
        _a_failure_is_not_void,
        _duplicates_are_told_at_once,
        _sequences_are_not_looked_at,
        _refusals_are_told_at_once,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    require_found(run, _SEEDS_FOR_A_BUG)
