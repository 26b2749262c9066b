import pytest

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    InvalidRequestError,
    MergeRefusedError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from tests.host.simple_container import SimpleContainer

COUNT = 4


class World:
    """A store over running simple containers."""

    def __init__(self) -> None:
        self.registry = ContainerRegistry(container_count=COUNT)
        self.containers = [SimpleContainer(ContainerId(number)) for number in range(COUNT)]
        self.store = SegmentStore(registry=self.registry)

    async def start(self) -> None:
        for container in self.containers:
            self.registry.set_starting(container)
            await container.start()
            self.registry.set_running(container)
        self.registry.check()


@pytest.fixture
async def world() -> World:
    world = World()
    await world.start()
    return world


def names_in_different_containers() -> tuple[str, str]:
    names = [f"segment-{number}" for number in range(50)]
    first = names[0]
    other = next(n for n in names if container_of(n, COUNT) != container_of(first, COUNT))
    return first, other


async def test_h60_a_segment_lives_in_the_container_of_its_hash(world: World) -> None:
    for number in range(40):
        name = f"s/t{number}/0.#epoch.0"
        properties = await world.store.create(name)
        assert properties.container_id == container_of(name, COUNT)
        assert name in world.containers[container_of(name, COUNT)].segments


async def test_h60_a_transaction_merges_into_its_target(world: World) -> None:
    for number in range(20):
        target = f"target-{number}"
        source = f"{target}#transaction.{number:032x}"
        for name, content in ((target, b"head "), (source, b"tail")):
            await world.store.create(name)
            async with world.store.open_segment(name) as segment:
                await segment.append(content)
        await world.store.seal(source)
        assert await world.store.merge(target, source) == 9


async def test_h61_a_merge_across_containers_is_refused_and_says_how_to_name_the_source(
    world: World,
) -> None:
    target, source = names_in_different_containers()
    await world.store.create(target)
    await world.store.create(source)
    await world.store.seal(source)
    with pytest.raises(MergeRefusedError) as caught:
        await world.store.merge(target, source)
    assert f"'{target}#transaction.<32 hex digits>'" in str(caught.value)
    assert (await world.store.info(target)).length == 0
    assert (await world.store.info(source)).sealed


async def test_h61_of_many_sources_a_foreign_one_is_refused_behind_those_before_it(
    world: World,
) -> None:
    target, foreign = names_in_different_containers()
    first, last = (f"{target}#transaction.{number:032x}" for number in range(2))
    for name in (target, first, foreign, last):
        await world.store.create(name)
        async with world.store.open_segment(name) as segment:
            await segment.append(b"1234")
    with pytest.raises(MergeRefusedError) as caught:
        await world.store.merge_all(target, [first, foreign, last], seal_sources=True)
    assert f"'{target}#transaction.<32 hex digits>'" in str(caught.value)
    assert (await world.store.info(target)).length == 8
    assert not (await world.store.info(foreign)).sealed
    assert await world.store.merge_all(target, [first, last], seal_sources=True) == [8, 12]


async def test_sources_of_other_names_are_merged_if_they_live_with_the_target(
    world: World,
) -> None:
    target, *others = (
        name
        for name in (f"segment-{number}" for number in range(50))
        if container_of(name, COUNT) == container_of("segment-0", COUNT)
    )
    for name in (target, *others):
        await world.store.create(name)
    lengths = await world.store.merge_all(target, others, seal_sources=True)
    assert lengths == [0] * len(others)
    with pytest.raises(InvalidRequestError):
        await world.store.merge_all(target, ["a\0b"])


async def test_h61_the_name_that_the_refusal_proposes_works(world: World) -> None:
    target, _ = names_in_different_containers()
    proposed = f"{target}#transaction.{'0123456789abcdef' * 2}"
    await world.store.create(target)
    await world.store.create(proposed)
    await world.store.seal(proposed)
    assert await world.store.merge(target, proposed) == 0


@pytest.mark.parametrize(
    "name", ["", "a\0b", "x" * 513, "\u00e9" * 257, "half \ud800 a pair"], ids=repr
)
async def test_a_name_that_no_segment_may_have_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await world.store.create(name)


@pytest.mark.parametrize("name", ["a", "x" * 512, "\u00e9" * 256, "with space / and \U0001f600"])
async def test_a_name_at_the_limits_is_accepted(world: World, name: str) -> None:
    await world.store.create(name)
    assert (await world.store.info(name)).name == name


async def test_a_listing_has_the_segments_of_all_containers_in_name_order(world: World) -> None:
    names = [f"n{number:03d}" for number in range(100)] + ["other", "\U0001f600", "\uffff"]
    for name in reversed(names):
        await world.store.create(name)
    listed = [segment.name for segment in await world.store.list_segments()]
    assert listed == sorted(names)
    assert listed == sorted(names, key=str.encode)


async def test_a_listing_is_read_page_by_page_without_gap_or_repeat(world: World) -> None:
    for number in range(100):
        await world.store.create(f"n{number:03d}")
    await world.store.create("other")
    listed: list[str] = []
    while page := await world.store.list_segments("n", listed[-1] if listed else "", 7):
        listed += [segment.name for segment in page]
    assert listed == [f"n{number:03d}" for number in range(100)]


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_page_has_bounds(world: World, limit: int) -> None:
    with pytest.raises(InvalidRequestError):
        await world.store.list_segments(limit=limit)


async def test_a_flush_without_a_name_flushes_every_container(world: World) -> None:
    await world.store.flush()
    assert [container.flushes for container in world.containers] == [1] * COUNT
    await world.store.create("a")
    await world.store.flush("a")
    assert sum(container.flushes for container in world.containers) == COUNT + 1


async def test_a_name_whose_container_is_away_is_answered_with_the_reason(world: World) -> None:
    gone = world.containers[container_of("a", COUNT)]
    await gone.close()
    world.registry.set_absent(gone, reason="failed: disk on fire", failed=True)
    with pytest.raises(ContainerNotFoundError, match="disk on fire"):
        await world.store.create("a")


async def test_a_listing_or_a_flush_is_never_partial(world: World) -> None:
    world.registry.set_absent(world.containers[2], reason="stopping", failed=False)
    with pytest.raises(ContainerNotFoundError):
        await world.store.list_segments()
    with pytest.raises(ContainerNotFoundError):
        await world.store.flush()


async def test_one_segment_is_listed_while_other_containers_are_away(world: World) -> None:
    here, other = names_in_different_containers()
    for name in (here, f"{here}#transaction.{1:032x}", other):
        await world.store.create(name)
    gone = world.containers[container_of(other, COUNT)]
    world.registry.set_absent(gone, reason="failed: disk on fire", failed=True)
    assert [each.name for each in await world.store.list_segments(prefix=here, limit=1)] == [here]
    with pytest.raises(ContainerNotFoundError):
        await world.store.list_segments(prefix=other, limit=1)
    with pytest.raises(ContainerNotFoundError):
        await world.store.list_segments(prefix=here, start_after=here, limit=1)


async def test_a_listing_of_one_segment_goes_on_behind_the_place_that_it_was_told(
    world: World,
) -> None:
    names = [f"n{number:03d}" for number in range(20)]
    for name in names:
        await world.store.create(name)
    listed: list[str] = []
    while page := await world.store.list_segments("n0", listed[-1] if listed else "", 1):
        listed += [segment.name for segment in page]
    assert listed == names
    assert [each.name for each in await world.store.list_segments(limit=1)] == names[:1]


async def test_health_has_every_container_whether_it_runs_or_not(world: World) -> None:
    world.registry.set_absent(world.containers[1], reason="failed: x", failed=True)
    world.registry.set_absent(world.containers[2], reason="stopping", failed=False)
    health = world.registry.health()
    assert [each.container_id for each in health] == [0, 1, 2, 3]
    assert health[2].cause == "stopping"
    assert [each.ready for each in (health[0], health[2])] == [True, False]
