"""The roots that backups pinned, of a whole Tier 2: those of containers whose root is gone as well."""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.cli.tier2_reading import Tier2, require_a_root
from tier2.storage.lost_root import find_pins_without_root
from tier2.storage.pins import Pin, read_pins
from tier2.storage.reader import ContainerReader
from tier2.storage.view_source import with_view


@dataclass(frozen=True, slots=True)
class PinnedContainer:
    """One container as one backup has it."""

    reader: ContainerReader
    pin: Pin


def container_count_of(tier2: Tier2, pins: Sequence[PinnedContainer]) -> int:
    """By a root, or by one that a backup pinned. Raises CorruptedDataError if there is neither."""
    if not tier2.containers and pins:
        return pins[0].pin.root.container_count
    require_a_root(tier2)
    return tier2.containers[0].root.container_count


async def pins_of(tier2: Tier2) -> Sequence[PinnedContainer]:
    """By container, then by name. Raises StorageError, CorruptedDataError."""
    pins = [
        PinnedContainer(reader, pin)
        for reader in tier2.containers
        for pin in await read_pins(reader.view)
    ]
    pins += [
        PinnedContainer(lost.reader, pin)
        for lost in tier2.lost
        for pin in await find_pins_without_root(lost.reader.components)
    ]
    return sorted(pins, key=lambda each: (each.reader.container_id, each.pin.name))


async def backups_of(readers: Sequence[ContainerReader]) -> list[str]:
    """Names of the backups that the newest roots keep. Raises StorageError, CorruptedDataError."""
    return sorted({pin.name for reader in readers for pin in await with_view(reader, read_pins)})
