"""What Tier 2 itself has lost, in words for a person: ranges of segments, and containers without a sound root.

Invariant: whoever goes on with damage was told of it first, by name; nothing of it is passed over in silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.cli.pinned_roots import pins_of
from segmentstore.cli.tier2_contents import ContainerSurvey, shown_time
from segmentstore.cli.tier2_reading import LostRoot, Tier2
from segmentstore.contracts.errors import CorruptedDataError
from tier2.storage.lost_chunks import LostChunks
from tier2.storage.lost_root import Remains, find_remains
from tier2.storage.pins import Pin

RANGES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LostContainer:
    """A container without a sound root, what is left of it, and the backups that have a root of it."""

    root: LostRoot
    remains: Remains
    pins: Sequence[Pin]

    @property
    def container_id(self) -> int:
        return self.root.container_id


@dataclass(frozen=True, slots=True)
class Losses:
    """Of a whole Tier 2."""

    containers: Sequence[LostContainer]
    container_count: int
    surveys: Sequence[ContainerSurvey]
    """Those in which something is lost."""

    def beyond(self, begun_anew: Sequence[int]) -> bool:
        """Whether anything is lost but the containers that a person lets begin anew."""
        return bool(self.surveys) or bool(self.containers_beyond(begun_anew))

    def containers_beyond(self, begun_anew: Sequence[int]) -> list[int]:
        """Those without a sound root, but for the ones that a person lets begin anew."""
        ids = [each.container_id for each in self.containers]
        return [each for each in ids if each not in begun_anew]

    def sentences(self, place: str) -> list[str]:
        """One for each thing that is lost."""
        told: list[str] = []
        if self.containers:
            ids = ", ".join(str(each.container_id) for each in self.containers)
            told.append(
                f"lost: {len(self.containers)} of {self.container_count} containers have no sound root: {ids};"
                " whatever segments they had cannot be found"
            )
        for each in self.containers:
            told += [
                (
                    f"lost: container {each.container_id}: {each.root.why}; left of it are"
                    f" {each.remains.object_count} objects with {each.remains.byte_count} bytes"
                ),
                *(
                    f"but backup {pin.name!r} of {shown_time(pin.created_ms)} has a root of container"
                    f" {each.container_id}; to have the whole store as it was then:"
                    f" segmentstore backup restore {pin.name} --from {place} --data NEWDIR"
                    for pin in each.pins
                ),
            ]
        for survey in self.surveys:
            number = survey.reader.container_id
            if survey.unreadable:
                told.append(
                    f"lost: container {number}: its segments cannot all be found: {survey.unreadable}"
                )
            else:
                told += lost_ranges(survey.lost, number)
                told += _newer(survey, number)
        return told


async def require_a_sound_root(tier2: Tier2, place: str) -> None:
    """Raises CorruptedDataError; its text names the backups that have all containers and how to restore them."""
    if tier2.containers:
        return
    pins = await pins_of(tier2)
    names = sorted({each.pin.name for each in pins})
    whole = [
        name
        for name in names
        if sum(each.pin.name == name for each in pins) == pins[0].pin.root.container_count
    ]
    told = [
        f"but backup {name!r} has all roots; to have the whole store as it was then:"
        f" segmentstore backup restore {name} --from {place} --data NEWDIR"
        for name in whole
    ]
    raise CorruptedDataError("\n".join([f"no root is sound: {tier2.lost[0].why}", *told]))


async def losses_of(tier2: Tier2, surveys: Sequence[ContainerSurvey]) -> Losses:
    """O(objects of containers without a root). Raises StorageError, CorruptedDataError."""
    pins = await pins_of(tier2) if tier2.lost else []
    return Losses(
        [
            LostContainer(
                lost,
                await find_remains(lost.reader.components),
                [each.pin for each in pins if each.reader is lost.reader],
            )
            for lost in tier2.lost
        ],
        tier2.containers[0].root.container_count,
        [each for each in surveys if each.unreadable or not each.lost.is_sound],
    )


def _newer(survey: ContainerSurvey, container_id: int) -> list[str]:
    lost = survey.lost
    if not lost.newer_count:
        return []
    root = survey.reader.root
    return [
        (
            f"lost: container {container_id}: its root is an old one (version {root.version}, epoch {root.epoch}):"
            f" {lost.newer_count} objects beside it are of epochs up to {lost.highest_epoch}; what later versions"
            " published is lost, and the store deletes those objects after a while: if a newer root is kept somewhere,"
            " bring it back first"
        )
    ]


def lost_ranges(lost: LostChunks, container_id: int) -> list[str]:
    """What is lost of the segments of one container, the first ranges by name."""
    if not lost.range_count:
        return []
    shown = [f"  {each}" for each in lost.ranges[:RANGES_SHOWN]]
    more = lost.range_count - len(shown)
    return [
        (
            f"lost: container {container_id}: {lost.byte_count} bytes of {lost.segment_count} segments, in"
            f" {lost.range_count} ranges whose objects are gone; reading them is an error:"
        ),
        *shown,
        *([f"  and {more} more: `segmentstore tier2 verify` names them"] if more else []),
    ]
