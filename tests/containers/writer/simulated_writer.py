"""A storage writer over a small container and a Tier 2 in memory, in virtual time."""

from collections.abc import Awaitable, Callable

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import SegmentPublication
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.small_container import (
    SmallContainer,
)
from tests.sim.simulation import run_simulation

World = tuple[SmallContainer, MemoryStorage]


def simulate(scenario: Callable[[SmallContainer, MemoryStorage], Awaitable[None]]) -> World:
    """Run it in virtual time; everything that lands in Tier 2 is compared with the history."""
    container, storage = SmallContainer(), MemoryStorage()

    async def check_acknowledged(number: int) -> None:
        container.check_acknowledged(storage, number)

    async def main(_: object) -> None:
        storage.after_change = lambda: container.check_stored(storage)
        container.on_acknowledge = check_acknowledged
        await scenario(container, storage)

    run_simulation(1, main)
    return container, storage


def publications_of(storage: MemoryStorage, segment_id: SegmentId) -> list[SegmentPublication]:
    return [
        change
        for publication in storage.landed
        for change in publication.segments
        if change.record.segment_id == segment_id
    ]
