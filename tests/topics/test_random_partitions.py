"""Goal: the invariants of random_partition.py hold whatever happens in whatever order; and a bug in them is found.

Method: seeds of the simulation; then the same with one bug planted each, until a seed finds it.
"""

from asyncio import Future
from collections import Counter
from collections.abc import Callable

import pytest

from segmentstore.codec.record_batch import BatchHeader
from segmentstore.contracts.segments import AttributeUpdate, Segment
from segmentstore.topics.partition import OWNER, Appended, Partition
from segmentstore.topics.producer_windows import ProducerWindows
from tests.sim.simulation import run_simulation
from tests.topics.random_partition import one_schedule

pytestmark = pytest.mark.simulation

_SEEDS_FOR_A_BUG = 30


def run(seed: int) -> Counter[str]:
    return run_simulation(seed, lambda loop: one_schedule(loop, seed)).result


@pytest.mark.parametrize("seed", range(1, 41))
def test_whatever_happens_each_record_is_stored_once_and_in_order(seed: int) -> None:
    seen = run(seed)
    assert seen["appended"] > 10
    assert seen["looked"] > 3


def test_the_seeds_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 11):
        seen += run(seed)
    for what in (
        "duplicate",
        "failed",
        "restarted",
        "trimmed",
        "below the log start",
        "stored=None",
        "stored=False",
    ):
        assert seen[what] >= 3, seen


def _windows_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Partition._read_state

    async def forgetful(self: Partition, segment: Segment) -> None:
        await original(self, segment)
        self._windows.load(())

    patch.setattr(Partition, "_read_state", forgetful)


def _a_failure_is_not_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_shut", lambda self, why: None)


def _duplicates_are_told_at_once(patch: pytest.MonkeyPatch) -> None:
    def at_once(
        self: Partition, answer: "Future[Appended]", base_offset: int, append_time_ms: int
    ) -> None:
        answer.set_result(self._appended(base_offset, append_time_ms, duplicate=True))

    patch.setattr(Partition, "_answer_duplicate", at_once)


def _sequences_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: ProducerWindows, header: BatchHeader) -> None:
        return None

    patch.setattr(ProducerWindows, "find_duplicate", nothing)


def _refusals_are_told_at_once(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: Partition, answer: "Future[Appended]", refusal: Exception) -> None:
        answer.set_exception(refusal)

    patch.setattr(Partition, "_refuse_when_confirmed", at_once)


def _owners_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_as_owner", lambda self: AttributeUpdate(OWNER, self._owner))


@pytest.mark.parametrize(
    "plant",
    [
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
    for seed in range(1, _SEEDS_FOR_A_BUG + 1):
        try:
            run(seed)
        except Exception:  # noqa: BLE001  # any sign of it will do
            return
    pytest.fail(f"{_SEEDS_FOR_A_BUG} seeds did not find it")
