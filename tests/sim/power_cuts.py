"""What a disk may hold after the power failed: choices over everything that was not synced.

Every choice is legal for some real disk. NOTHING and EVERYTHING are the extremes; PREFIX keeps the changes in the order
in which they were made, up to a point (a torn tail); SUBSET keeps any of them, page by page and name by name.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from random import Random

from tests.sim.disk import Node, SimulatedDisk
from tests.sim.inode import Inode


class Persistence(Enum):
    """How much of the un-synced state survives."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    PREFIX = "prefix"
    SUBSET = "subset"


_IN_TURN = (*Persistence, Persistence.SUBSET)


def power_cut_image(disk: SimulatedDisk, persistence: Persistence, random: Random) -> SimulatedDisk:
    """A disk that holds, all of it certain, what this power cut left. The given disk is not touched. O(pages)."""
    keep = _keeper(disk, persistence, random)
    image = SimulatedDisk(capacity_bytes=disk.capacity_bytes)
    names = dict(disk.durable_names)
    for parent in disk.name_changes:
        for change in disk.name_changes[parent]:
            if keep(change.boundary):
                change.apply(names)
    copies: dict[int, Inode] = {}
    for path, node in names.items():
        if node is None:
            image.names[path] = None
            continue
        if id(node) not in copies:
            copies[id(node)] = _survivor(
                node, keep, random, any_version=persistence is Persistence.SUBSET
            )
        image.names[path] = copies[id(node)]
    image.durable_names = dict(image.names)
    return image


def power_cut_images(
    disk: SimulatedDisk, random: Random, *, subsets: int
) -> Iterator[tuple[Persistence, SimulatedDisk]]:
    """Nothing, everything, one torn prefix, and some random subsets."""
    for persistence in (Persistence.NOTHING, Persistence.EVERYTHING, Persistence.PREFIX):
        yield persistence, power_cut_image(disk, persistence, random)
    for _ in range(subsets):
        yield Persistence.SUBSET, power_cut_image(disk, Persistence.SUBSET, random)


def power_cut_images_by_turns(
    disk: SimulatedDisk, random: Random, *, turn: int
) -> Iterator[tuple[Persistence, SimulatedDisk]]:
    """Two of the five of `power_cut_images(subsets=2)`, other ones each turn: five turns have each of them twice.

    For a moment between any two of several hundred changes, of which each is like many others.
    """
    for number in (2 * turn, 2 * turn + 1):
        persistence = _IN_TURN[number % len(_IN_TURN)]
        yield persistence, power_cut_image(disk, persistence, random)


def cut_power_in_place(disk: SimulatedDisk, random: Random) -> None:
    """Replace the disk's content by what one power cut of random kind leaves."""
    persistence = random.choice(list(Persistence))
    image = power_cut_image(disk, persistence, random)
    disk.names = image.names
    disk.durable_names = image.durable_names
    disk.name_changes = {}


def _keeper(disk: SimulatedDisk, persistence: Persistence, random: Random) -> Callable[[int], bool]:
    match persistence:
        case Persistence.NOTHING:
            return lambda boundary: False
        case Persistence.EVERYTHING:
            return lambda boundary: True
        case Persistence.PREFIX:
            last = _last_of_prefix(disk, random)
            return lambda boundary: boundary <= last
        case Persistence.SUBSET:
            probability = random.choice((0.1, 0.5, 0.9))
            return lambda boundary: random.random() < probability


def _last_of_prefix(disk: SimulatedDisk, random: Random) -> int:
    unsynced = {change.boundary for changes in disk.name_changes.values() for change in changes}
    for node in disk.names.values():
        if node is not None:
            unsynced.update(
                boundary for history in node.page_history.values() for boundary, _ in history
            )
    return random.choice(sorted(unsynced)) if unsynced else disk.boundaries


def _survivor(
    inode: Inode, keep: Callable[[int], bool], random: Random, *, any_version: bool
) -> Inode:
    pages = dict(inode.durable_pages)
    for page, history in inode.page_history.items():
        versions = [content for boundary, content in history if keep(boundary)]
        if versions:
            pages[page] = random.choice(versions) if any_version else versions[-1]
    sizes = [size for boundary, size in inode.size_history if keep(boundary)]
    size = sizes[-1] if sizes else inode.durable_size
    pages = {page: content for page, content in pages.items() if page * 4096 < size}
    return Inode(pages=pages, size=size, durable_pages=dict(pages), durable_size=size)


__all__ = [
    "Node",
    "Persistence",
    "cut_power_in_place",
    "power_cut_image",
    "power_cut_images",
    "power_cut_images_by_turns",
]
