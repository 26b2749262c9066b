from pathlib import Path

import pytest

from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.spark import tier2_access
from segmentstore.spark.options import parse_options
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.streams import stream_source
from segmentstore.spark.streams.stream_source import StreamSource
from segmentstore.spark.tier2_access import Tier2Location, Tier2Reader, open_tier2_reader
from tests.spark.event_segment import NAME, CountingStore, claimed_container, event_segment
from tier2.container_objects import ObjectNames


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier2_access, "OPEN_PAUSE_SECONDS", 0.0)


def test_a_place_without_tier2_is_refused_after_a_few_looks(tmp_path: Path) -> None:
    async def look() -> None:
        async with open_tier2_reader(Tier2Location(place=str(tmp_path)), executor=None):
            raise AssertionError("opened")

    with (
        LoopRunner() as runner,
        pytest.raises(InvalidRequestError, match="no container has a manifest"),
    ):
        runner.run(look())


async def test_a_segment_is_found_by_its_name_without_a_listing() -> None:
    segment = await event_segment()
    await segment.append([b"x"])
    view = await segment.view()
    record = await view.find(NAME)
    assert record is not None
    assert record.length == 9
    assert await view.find("s/t/9.#epoch.0") is None
    assert segment.store.listings == 0


async def test_a_damaged_manifest_hides_its_own_container_and_no_other() -> None:
    store = CountingStore()
    for number in range(2):
        await claimed_container(store, number, count=2)
    names = ObjectNames(ContainerId(0))
    stored = await store.get(names.manifest)
    await store.put_if_match(names.manifest, stored.content[:-1] + b"~", stored.tag)
    view = Tier2Reader(store=store, executor=None)
    await view.open()
    assert view.container_count == 2
    assert await view.container(1) is not None
    with pytest.raises(CorruptedDataError, match=f"container=0 manifest={names.manifest}"):
        await view.container(0)


async def test_a_store_of_which_every_manifest_is_damaged_says_which_and_what_to_do() -> None:
    store = CountingStore()
    await claimed_container(store, 0, count=1)
    names = ObjectNames(ContainerId(0))
    stored = await store.get(names.manifest)
    await store.put_if_match(names.manifest, b"", stored.tag)
    with pytest.raises(CorruptedDataError, match=r"bring it back .*container=0 manifest="):
        await Tier2Reader(store=store, executor=None).open()


async def test_the_newest_root_is_seen_after_a_refresh() -> None:
    segment = await event_segment()
    await segment.append([b"x"])
    view = await segment.view()
    await view.find(NAME)
    await segment.append([b"y"])
    await view.refresh()
    record = await view.find(NAME)
    assert record is not None
    assert record.length == 18


async def test_a_stream_that_tier2_shows_a_moment_later_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_source, "OPEN_PAUSE_SECONDS", 0.0)
    segment = await event_segment()
    view = await segment.view()
    source = StreamSource(
        options=parse_options({"tier2": "here", "segment": NAME}),
        view=view,
        store=None,
        served=None,
    )
    looks = 0
    refresh = view.refresh

    async def late_refresh() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            await segment.append([b"x"])
        await refresh()

    monkeypatch.setattr(view, "refresh", late_refresh)
    (stream,) = await source.selected_streams()
    assert (looks, stream.segments[0].end_offset) == (3, 9)
