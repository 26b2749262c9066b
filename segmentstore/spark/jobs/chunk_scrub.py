"""The work of one task of the `verify` job: reads chunk images out of their objects and proves every byte of them.

- Images that lie side by side in an object come in one request; memory is one request and one decoded block.
- Damage is an answer and not an error: a task goes on to its end and says everything that it found.
- A missing object is damage only if the root, read again, still names it (H8); otherwise it `moved`, and whoever
  planned the task looks where its bytes are now.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import BufferView, ContainerId, SegmentId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.spark.jobs.event_framing import ChunkFraming, FramingWalk
from segmentstore.spark.loop_runner import LoopRunner
from segmentstore.spark.tier2_view import Tier2Place, open_for_reading
from tier2.format.chunk_index import BlockEntry
from tier2.format.chunk_verification import verify_chunk
from tier2.storage.block_events import block_events
from tier2.storage.image_reading import identity_of
from tier2.storage.object_names import ObjectKind, ObjectNames
from tier2.storage.reader import ContainerReader
from tier2.storage.run_keys import reference_key
from tier2.storage.run_values import LayoutEntry
from tier2.storage.settings import StorageSettings

_READ_BYTES_MAX = 8 << 20
_GAP_BYTES_MAX = 128 << 10


@dataclass(frozen=True, slots=True)
class ScrubImage:
    """One image to prove: an entry of the layout of a segment."""

    container_id: int
    segment_id: int
    segment_name: str
    entry: LayoutEntry

    @property
    def name(self) -> str:
        """The same for the same bytes at the same place, in every plan."""
        entry = self.entry
        return (
            f"{self.container_id}/{entry.identity}+{entry.position}"
            f"@{self.segment_id}:{entry.start_offset}"
        )


@dataclass(frozen=True, slots=True)
class ScrubbedImage:
    """What was found in one image."""

    image: ScrubImage
    damages: tuple[str, ...]
    framing: ChunkFraming | None
    """None if the image could not be read to its end."""
    moved: bool = False
    uncompressed_bytes: int = 0


def scrub_images(
    place: Tier2Place, images: Sequence[ScrubImage], *, framing: bool
) -> list[ScrubbedImage]:
    """All of them, in the order in which they lie in their objects. Raises StorageError."""
    with LoopRunner() as runner:
        return runner.run(_scrub(place, images, framing=framing, executor=runner.executor))


async def _scrub(
    place: Tier2Place, images: Sequence[ScrubImage], *, framing: bool, executor: Executor
) -> list[ScrubbedImage]:
    found: list[ScrubbedImage] = []
    async with open_for_reading(place, executor) as store:
        for group in _groups(images):
            found += await _scrub_group(store, group, framing=framing, executor=executor)
    return found


async def _scrub_group(
    store: ObjectStore, group: Sequence[ScrubImage], *, framing: bool, executor: Executor
) -> list[ScrubbedImage]:
    first = group[0]
    start = first.entry.position
    end = group[-1].entry.position + group[-1].entry.size
    try:
        content = memoryview(await store.get_range(_object_key(first), start, end - start))
    except ObjectNotFoundError:
        return [await _missing(image, store, executor) for image in group]
    except CorruptedDataError as error:
        # Volumes know by themselves that their bytes are damaged: one by one they may give the other images.
        if len(group) == 1:
            sentence = f"{error} segment={first.segment_name!r} offset={first.entry.start_offset}"
            return [ScrubbedImage(first, (sentence,), None)]
        found: list[ScrubbedImage] = []
        for image in group:
            found += await _scrub_group(store, [image], framing=framing, executor=executor)
        return found
    return [
        scrub_image(
            image,
            content[image.entry.position - start :][: image.entry.size],
            framing=framing,
        )
        for image in group
    ]


def scrub_image(image: ScrubImage, content: BufferView, *, framing: bool) -> ScrubbedImage:
    """Prove one image, given its bytes. O(bytes)."""
    entry = image.entry
    walk = FramingWalk(entry.start_offset)

    def examine(block: BlockEntry, decoded: BufferView) -> str:
        return walk.block(decoded, block_events(entry, block))

    report = verify_chunk(
        content,
        identity=identity_of(entry),
        source=_object_key(image) + f"+{entry.position}",
        examine=examine if framing else None,
    )
    place = f"segment={image.segment_name!r} offset={entry.start_offset}"
    damages = [f"{damage} {place}" for damage in report.damages]
    length = 0 if report.index is None else report.index.end_offset - report.index.start_offset
    if report.index is not None and length != entry.length:
        damages.append(f"chunk has another length than recorded {place} found={length}")
    return ScrubbedImage(
        image=image,
        damages=tuple(damages),
        framing=walk.result() if framing and not damages else None,
        uncompressed_bytes=length,
    )


async def _missing(image: ScrubImage, store: ObjectStore, executor: Executor) -> ScrubbedImage:
    """The root decides whether the object is lost or only somewhere else by now (H8)."""
    reader = ContainerReader(
        object_store=store,
        container_id=ContainerId(image.container_id),
        settings=StorageSettings(),
        executor=executor,
    )
    view = await reader.refresh()
    entry = image.entry
    reference = reference_key(entry.identity, SegmentId(image.segment_id), entry.end_offset)
    if await view.get(reference) is None:
        return ScrubbedImage(image, (), None, moved=True)
    sentence = (
        f"chunk is missing object={_object_key(image)} segment={image.segment_name!r}"
        f" offset={entry.start_offset} length={entry.length}"
    )
    return ScrubbedImage(image, (sentence,), None)


def _groups(images: Sequence[ScrubImage]) -> list[list[ScrubImage]]:
    """Neighbours in one object that one request brings."""
    groups: list[list[ScrubImage]] = []
    for image in sorted(images, key=_place_of):
        entry, group = image.entry, groups[-1] if groups else None
        if group is not None:
            first, last = group[0].entry, group[-1].entry
            behind = last.position + last.size
            if (
                (group[0].container_id, first.identity) == (image.container_id, entry.identity)
                and behind <= entry.position <= behind + _GAP_BYTES_MAX
                and entry.position + entry.size - first.position <= _READ_BYTES_MAX
            ):
                group.append(image)
                continue
        groups.append([image])
    return groups


def _place_of(image: ScrubImage) -> tuple[object, ...]:
    return image.container_id, image.entry.identity, image.entry.position


def _object_key(image: ScrubImage) -> str:
    names = ObjectNames(ContainerId(image.container_id))
    return names.key(ObjectKind.CHUNKS, image.entry.identity)
