import pytest

from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.http.stream_directory import StreamHandleCache
from tests.http.memory_segments import MemorySegments


def pins_of(segments: MemorySegments, count_max: int = 2) -> StreamHandleCache:
    return StreamHandleCache(segments=segments, count_max=count_max, idle_seconds=10.0)


async def test_a_hot_segment_is_opened_once(segments: MemorySegments) -> None:
    await segments.create("a")
    pins = pins_of(segments)
    assert pins.lease_nowait("a") is None
    first = await pins.lease("a")
    pins.release(first, 0.0)
    assert pins.lease_nowait("a") is first
    assert segments.pin_count("a") == 1
    pins.check()


async def test_pins_are_bounded_and_the_least_recently_used_goes_first(
    segments: MemorySegments,
) -> None:
    pins = pins_of(segments)
    for name in ("a", "b", "c"):
        await segments.create(name)
        pins.release(await pins.lease(name), 0.0)
    await pins.release_idle(0.0)
    assert [segments.pin_count(name) for name in ("a", "b", "c")] == [0, 1, 1]
    pins.check()


async def test_a_forgotten_pin_is_released_only_when_nobody_uses_it(
    segments: MemorySegments,
) -> None:
    await segments.create("a")
    pins = pins_of(segments)
    pin = await pins.lease("a")
    await pins.forget("a")
    assert pins.lease_nowait("a") is None
    assert segments.pin_count("a") == 1
    pins.release(pin, 0.0)
    await pins.release_idle(0.0)
    assert segments.pin_count("a") == 0
    pins.check()


async def test_a_forgotten_pin_with_two_users_waits_for_both(segments: MemorySegments) -> None:
    await segments.create("a")
    pins = pins_of(segments)
    pin = await pins.lease("a")
    assert pins.lease_nowait("a") is pin
    await pins.forget("a")
    pins.release(pin, 0.0)
    await pins.release_idle(0.0)
    assert segments.pin_count("a") == 1
    pins.release(pin, 0.0)
    await pins.release_idle(0.0)
    assert segments.pin_count("a") == 0


async def test_an_idle_pin_is_released_after_its_time(segments: MemorySegments) -> None:
    await segments.create("a")
    pins = pins_of(segments)
    pins.release(await pins.lease("a"), 100.0)
    await pins.release_idle(109.0)
    assert segments.pin_count("a") == 1
    await pins.release_idle(110.0)
    assert segments.pin_count("a") == 0


async def test_a_name_without_a_segment_is_not_remembered(segments: MemorySegments) -> None:
    pins = pins_of(segments)
    with pytest.raises(SegmentNotFoundError):
        await pins.lease("a")
    await segments.create("a")
    pins.release(await pins.lease("a"), 0.0)
    await pins.close()
    assert segments.pin_count("a") == 0
    assert len(pins) == 0


async def test_a_pin_in_use_keeps_no_idle_one_from_its_release(segments: MemorySegments) -> None:
    pins = pins_of(segments, count_max=10)
    for name in ("a", "b"):
        await segments.create(name)
    in_use = await pins.lease("a")
    pins.release(await pins.lease("b"), 0.0)
    await pins.release_idle(1e6)
    assert [segments.pin_count(name) for name in ("a", "b")] == [1, 0]
    pins.release(in_use, 1e6)
    pins.check()
