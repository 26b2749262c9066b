"""What every SegmentApi keeps when many sources are merged at once (segmentstore/contracts/segments.py).

Subclass SegmentMergeSuite and hand in a fixture `segments`. The tests speak the door alone. Where they say "merged"
they look at the target's bytes, and at the sources: one that is merged is gone, any other is as it was.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from segmentstore.contracts.errors import (
    MergeRefusedError,
    SegmentNotFoundError,
    SegmentNotSealedError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segmentstore.contracts.segments import SegmentApi

TARGET = "stream/segment"


def source(number: int) -> str:
    """The name of a source that lives with the target."""
    return f"{TARGET}#transaction.{number:032x}"


async def create_with(segments: SegmentApi, name: str, content: bytes) -> None:
    await segments.create(name)
    if content:
        async with segments.open_segment(name) as segment:
            await segment.append(content)


async def content_of(segments: SegmentApi, name: str) -> bytes:
    content = b""
    async with segments.open_segment(name) as segment:
        info = segment.info()
        async with aclosing(segment.read(info.start_offset, info.length)) as entries:
            async for entry in entries:
                content += await entry.content()
                if len(content) == info.length - info.start_offset:
                    break
    return content


async def prepared(segments: SegmentApi, count: int) -> list[str]:
    """A target, and so many open sources; source n has the byte n."""
    await create_with(segments, TARGET, b"")
    names = [source(number) for number in range(count)]
    for number, name in enumerate(names):
        await create_with(segments, name, bytes([number]))
    return names


async def assert_merged(segments: SegmentApi, names: Sequence[str], numbers: Sequence[int]) -> None:
    """These of the sources are merged in this order, and no other."""
    assert (await segments.info(TARGET)).length == len(numbers)
    assert await content_of(segments, TARGET) == bytes(numbers)
    for number, name in enumerate(names):
        if number in numbers:
            with pytest.raises(SegmentNotFoundError):
                await segments.info(name)
        else:
            assert await content_of(segments, name) == bytes([number])


class SegmentMergeSuite:
    """The promises of `merge_all`."""

    async def test_sources_are_merged_in_the_order_given(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 5)
        for name in names:
            await segments.seal(name)
        order = [3, 0, 4, 1]
        lengths = await segments.merge_all(TARGET, [names[number] for number in order])
        assert list(lengths) == [1, 2, 3, 4]
        await assert_merged(segments, names, order)

    async def test_no_sources_change_nothing(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 1)
        assert list(await segments.merge_all(TARGET, [])) == []
        await assert_merged(segments, names, [])

    async def test_open_sources_are_sealed_if_that_is_asked_for(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 3)
        assert list(await segments.merge_all(TARGET, names, seal_sources=True)) == [1, 2, 3]
        await assert_merged(segments, names, [0, 1, 2])

    async def test_asked_again_it_gives_the_same_lengths(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 4)
        await segments.merge_all(TARGET, names[:2], seal_sources=True)
        async with segments.open_segment(TARGET) as target:
            await target.append(b"\x09")
        for _ in range(2):
            lengths = await segments.merge_all(TARGET, names, seal_sources=True)
            assert list(lengths) == [1, 2, 4, 5]
        assert await content_of(segments, TARGET) == b"\x00\x01\x09\x02\x03"

    async def test_h74_a_lost_source_is_refused_behind_those_before_it(
        self, segments: SegmentApi
    ) -> None:
        names = await prepared(segments, 4)
        lost = source(99)
        with pytest.raises(SegmentNotFoundError) as caught:
            await segments.merge_all(TARGET, [*names[:2], lost, *names[2:]], seal_sources=True)
        assert caught.value.name == lost
        await assert_merged(segments, names, [0, 1])
        assert list(await segments.merge_all(TARGET, names, seal_sources=True)) == [1, 2, 3, 4]
        await assert_merged(segments, names, [0, 1, 2, 3])

    async def test_h74_what_the_target_forgot_is_lost(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 3)
        await segments.merge_all(TARGET, names[:2], seal_sources=True)
        await segments.forget_merged(TARGET, names[1:2])
        with pytest.raises(SegmentNotFoundError) as caught:
            await segments.merge_all(TARGET, names, seal_sources=True)
        assert caught.value.name == names[1]
        await assert_merged(segments, names, [0, 1])

    async def test_an_open_source_is_refused_behind_those_before_it(
        self, segments: SegmentApi
    ) -> None:
        names = await prepared(segments, 4)
        for number in (0, 1, 3):
            await segments.seal(names[number])
        with pytest.raises(SegmentNotSealedError):
            await segments.merge_all(TARGET, names)
        await assert_merged(segments, names, [0, 1])
        await segments.seal(names[2])
        assert list(await segments.merge_all(TARGET, names)) == [1, 2, 3, 4]
        await assert_merged(segments, names, [0, 1, 2, 3])

    async def test_a_truncated_source_is_refused_behind_those_before_it(
        self, segments: SegmentApi
    ) -> None:
        names = await prepared(segments, 3)
        await segments.truncate(names[1], 1)
        with pytest.raises(SegmentTruncatedError):
            await segments.merge_all(TARGET, names, seal_sources=True)
        assert await content_of(segments, TARGET) == b"\x00"
        assert not (await segments.info(names[1])).sealed
        assert await content_of(segments, names[2]) == b"\x02"

    async def test_the_target_is_no_source_of_itself(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 2)
        with pytest.raises(MergeRefusedError):
            await segments.merge_all(TARGET, [names[0], TARGET, names[1]], seal_sources=True)
        await assert_merged(segments, names, [0])

    async def test_a_target_that_is_sealed_or_missing_takes_nothing_in(
        self, segments: SegmentApi
    ) -> None:
        names = await prepared(segments, 2)
        with pytest.raises(SegmentNotFoundError) as caught:
            await segments.merge_all(source(98), names, seal_sources=True)
        assert caught.value.name == source(98)
        await segments.seal(TARGET)
        with pytest.raises(SegmentSealedError):
            await segments.merge_all(TARGET, names, seal_sources=True)
        await assert_merged(segments, names, [])

    async def test_a_source_named_twice_is_merged_once(self, segments: SegmentApi) -> None:
        names = await prepared(segments, 2)
        twice = [names[0], names[0], names[1], names[0]]
        lengths = await segments.merge_all(TARGET, twice, seal_sources=True)
        assert list(lengths) == [1, 1, 2, 1]
        await assert_merged(segments, names, [0, 1])

    @pytest.mark.parametrize("turns", range(12))
    async def test_a_caller_that_leaves_and_comes_back_finds_each_source_once(
        self, segments: SegmentApi, turns: int
    ) -> None:
        names = await prepared(segments, 2)
        left = asyncio.create_task(segments.merge_all(TARGET, names, seal_sources=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert list(await segments.merge_all(TARGET, names, seal_sources=True)) == [1, 2]
        await assert_merged(segments, names, [0, 1])
