"""The deep scrub: damage of every kind is found, and a killed run goes on where it was."""

from pathlib import Path
from typing import TypeVar

import pytest

from segmentstore.spark.jobs.job_execution import LocalTaskRunner
from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings, VerifySummary
from segmentstore.spark.tier2_access import Tier2Location
from tests.spark.jobs.damaged_way import flip_once_on_the_way
from tests.spark.jobs.failing_tasks import BusyTasks, FailingTasks, KilledError
from tests.spark.jobs.generated_store import START_MS, GeneratedStore, frame
from tests.spark.jobs.other_chunks import swap_all

T = TypeVar("T")
R = TypeVar("R")


def verified(store: GeneratedStore, settings: VerifySettings | None = None) -> VerifySummary:
    return VerifyJob(
        place=Tier2Location(place=store.place),
        tasks=LocalTaskRunner(),
        settings=settings or VerifySettings(task_bytes=50_000),
    ).run()


def test_a_sound_store_is_sound_and_counted(store: GeneratedStore) -> None:
    summary = verified(store)
    assert summary.sound
    assert summary.orphans == []
    rows = list(summary.containers.values())
    assert sum(row.segments for row in rows) == 4
    assert sum(row.segment_bytes for row in rows) == sum(
        len(segment.content) for segment in store.segments.values()
    )
    assert sum(row.events for row in rows) == sum(
        len(segment.events) for segment in store.segments.values()
    )
    assert summary.scrubbed_bytes == sum(row.stored_bytes for row in rows) > 0


def test_a_flipped_bit_anywhere_in_a_chunk_is_found(store: GeneratedStore) -> None:
    path = store.chunk_files()[2]
    sound = path.read_bytes()
    for place in (70, len(sound) // 2, len(sound) - 20):
        damaged = bytearray(sound)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        summary = verified(store)
        assert not summary.sound, place
        assert all(path.name in damage or "segment=" in damage for damage in summary.damages)
    path.write_bytes(sound)
    assert verified(store).sound


def test_a_bit_that_flips_on_the_way_is_no_damage(
    store: GeneratedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flips = flip_once_on_the_way(monkeypatch)
    assert verified(store).sound
    assert flips


def test_h8_an_object_that_the_root_names_and_nobody_has_is_damage(store: GeneratedStore) -> None:
    store.chunk_files()[0].unlink()
    summary = verified(store)
    assert "chunk is missing" in summary.damages[0]


def test_an_object_that_nothing_names_is_an_orphan_and_no_damage(store: GeneratedStore) -> None:
    stranger = store.chunk_files()[0].with_name("0000000000000001-0badcafe-0000000000000001")
    stranger.write_bytes(b"left behind")
    summary = verified(store)
    assert summary.sound
    assert [Path(key).name for key in summary.orphans] == [stranger.name]


def test_bytes_that_are_not_the_events_of_the_index_are_damage_although_every_checksum_holds(
    tmp_path: Path,
) -> None:
    store = GeneratedStore(tmp_path / "tier2")
    store.append("s/t/0.#epoch.0", 0, [b"one"], at_ms=START_MS)
    store.append_raw("s/t/0.#epoch.0", 0, b"no event at all", at_ms=START_MS)
    (damage,) = verified(store).damages
    assert "what should be an event is none" in damage
    assert verified(store, VerifySettings(framing=False)).sound


def test_an_event_that_ends_beyond_a_chunk_has_to_end_where_the_next_one_says(
    tmp_path: Path,
) -> None:
    store = GeneratedStore(tmp_path / "tier2")
    store.append("s/t/0.#epoch.0", 0, [b"one"], at_ms=START_MS)
    store.append_raw("s/t/0.#epoch.0", 0, frame(b"two")[:-1], at_ms=START_MS)
    store.append("s/t/0.#epoch.0", 0, [b"three"], at_ms=START_MS)
    (damage,) = verified(store).damages
    assert "do not go on from chunk to chunk" in damage


def test_a_killed_run_goes_on_where_it_was(store: GeneratedStore, tmp_path: Path) -> None:
    settings = VerifySettings(task_bytes=50_000, state_directory=tmp_path / "state")
    place = Tier2Location(place=store.place)
    with pytest.raises(KilledError):
        VerifyJob(place=place, tasks=FailingTasks(3), settings=settings).run()
    whole = verified(store)
    resumed = verified(store, settings)
    assert 0 < resumed.resumed_chunks < sum(row.chunks for row in resumed.containers.values())
    assert resumed.scrubbed_bytes < whole.scrubbed_bytes
    assert resumed.containers == whole.containers


def test_a_run_behind_one_that_ended_proves_everything_anew(
    store: GeneratedStore, tmp_path: Path
) -> None:
    settings = VerifySettings(task_bytes=50_000, state_directory=tmp_path / "state")
    whole = verified(store, settings)
    path = store.chunk_files()[2]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    again = verified(store, settings)
    assert again.scrubbed_bytes == whole.scrubbed_bytes
    assert again.resumed_chunks == 0
    assert not again.sound
    # One that is cut off behind it goes on from its own notes alone.
    with pytest.raises(KilledError):
        VerifyJob(
            place=Tier2Location(place=store.place), tasks=FailingTasks(1), settings=settings
        ).run()
    resumed = verified(store, settings)
    assert 0 < resumed.scrubbed_bytes < whole.scrubbed_bytes
    assert not resumed.sound


def test_damage_that_a_killed_run_found_is_not_forgotten(
    store: GeneratedStore, tmp_path: Path
) -> None:
    for path in store.chunk_files():
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    settings = VerifySettings(task_bytes=50_000, state_directory=tmp_path / "state")
    with pytest.raises(KilledError):
        VerifyJob(
            place=Tier2Location(place=store.place), tasks=FailingTasks(1), settings=settings
        ).run()
    whole, resumed = verified(store), verified(store, settings)
    assert sorted(resumed.damages) == sorted(whole.damages)


def test_h8_chunks_that_are_swapped_while_they_are_verified_are_found_where_they_are_now(
    store: GeneratedStore,
) -> None:
    swapping = BusyTasks(lambda: swap_all(store, "demo/stream0/0.#epoch.0"), times=1)
    summary = VerifyJob(
        place=Tier2Location(place=store.place),
        tasks=swapping,
        settings=VerifySettings(task_bytes=50_000),
    ).run()
    assert summary.sound
    assert sum(row.events for row in summary.containers.values()) == sum(
        len(segment.events) for segment in store.segments.values()
    )


def test_a_store_that_grows_all_the_time_is_verified_as_it_was_at_the_beginning(
    store: GeneratedStore,
) -> None:
    events = sum(len(segment.events) for segment in store.segments.values())

    def grow() -> None:
        store.append("demo/stream0/0.#epoch.0", 0, [b"one more"], at_ms=START_MS)

    summary = VerifyJob(
        place=Tier2Location(place=store.place),
        tasks=BusyTasks(grow, times=100),
        settings=VerifySettings(task_bytes=50_000),
    ).run()
    assert summary.sound
    assert sum(row.events for row in summary.containers.values()) == events
