"""Reads whole chunk images to copy or replace them, each verified against the layout entry that names it.

- Neighbours in an object come in one request; memory is what one request brings.
- A damaged image is an error here, never bytes.
- Nothing counts as damaged before it was read twice: a bit may have flipped on the way here.
"""

import errno
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from segmentstore.contracts.errors import CorruptedDataError, StorageError
from segmentstore.contracts.identifiers import BufferView
from tier2.container_objects import ObjectIdentity, ObjectKind, ObjectReference
from tier2.format.block import decode_block
from tier2.format.chunk_decoder import verify_chunk
from tier2.format.chunk_format import ChunkIndex, EventInformation
from tier2.layout_entry import LayoutEntry
from tier2.read.components import Components

_GAP_BYTES_MAX = 128 << 10
_READ_BYTES_MAX = 4 << 20

_Proved = TypeVar("_Proved")
_Named = TypeVar("_Named")

Image = tuple[LayoutEntry, bytes, ChunkIndex]
"""An entry, its image, and the image's index."""
Block = tuple[BufferView, EventInformation | None]
"""The bytes of a block, and what its segment knows of their events."""


async def read_images(
    entries: Sequence[LayoutEntry], components: Components
) -> AsyncGenerator[Sequence[Image], None]:
    """The images in the order in which they lie in their objects, some at a time. Hold it in `aclosing`.

    Raises CorruptedDataError, ObjectNotFoundError, StorageError.
    """
    for group in neighbour_groups(entries, lambda entry: entry):
        start = group[0].position
        yield await read_proved(
            (ObjectKind.CHUNKS, group[0].identity),
            start,
            image_end(group[-1]) - start,
            partial(_cut_and_verify, group),
            components,
        )


def neighbour_groups(
    images: Iterable[_Named], entry_of: Callable[[_Named], LayoutEntry]
) -> list[list[_Named]]:
    """Images, each named by a layout entry, in groups that lie side by side in an object: a request brings a group.

    O(n log n).
    """
    groups: list[list[_Named]] = []
    first: LayoutEntry | None = None
    end = 0
    for image in sorted(images, key=lambda one: _place_in_store(entry_of(one))):
        entry = entry_of(image)
        if (
            first is not None
            and entry.identity == first.identity
            and entry.position - end <= _GAP_BYTES_MAX
            and image_end(entry) - first.position <= _READ_BYTES_MAX
        ):
            groups[-1].append(image)
        else:
            groups.append([image])
            first = entry
        end = image_end(entry)
    return groups


def _place_in_store(entry: LayoutEntry) -> tuple[ObjectIdentity, int]:
    return entry.identity, entry.position


async def read_proved(
    reference: ObjectReference,
    position: int,
    length: int,
    prove: Callable[[bytes], _Proved],
    components: Components,
) -> _Proved:
    """What `prove` makes of these bytes, in a thread. If it raises CorruptedDataError they are read once more.

    Raises CorruptedDataError, ObjectNotFoundError, StorageError.
    """

    async def attempt() -> _Proved:
        content = await components.objects.get_range(*reference, position, length)
        return await components.offload(prove, content)

    try:
        return await attempt()
    except CorruptedDataError:
        return await attempt()


def image_end(entry: LayoutEntry) -> int:
    """The position behind it in its object."""
    return entry.position + entry.size


def _cut_and_verify(group: Sequence[LayoutEntry], content: bytes) -> list[Image]:
    start = group[0].position
    images: list[Image] = []
    for entry in group:
        image = content[entry.position - start : image_end(entry) - start]
        report = verify_image(entry, image)
        images.append((entry, image, report))
    return images


def verify_image(entry: LayoutEntry, image: bytes) -> ChunkIndex:
    """The index of a sound image. Raises CorruptedDataError if it is damaged or not the one that the entry means."""
    source = f"{entry.identity}+{entry.position}"
    report = verify_chunk(image, identity=entry.chunk_identity, source=source)
    if report.damages or report.index is None:
        raise CorruptedDataError(report.damages[0])
    length = report.index.end_offset - report.index.start_offset
    if length != entry.length:
        raise CorruptedDataError(
            f"chunk holds other offsets than recorded source={source} recorded={entry.length}"
            f" held={length}"
        )
    return report.index


def decoded_blocks(entry: LayoutEntry, image: bytes, index: ChunkIndex) -> list[Block]:
    """The blocks of a verified image. O(bytes). Raises CorruptedDataError."""
    view = memoryview(image)
    return [
        (
            decode_block(
                block, view[block.position : block.end_position], source=str(entry.identity)
            ),
            entry.block_events(block),
        )
        for block in index.entries
    ]


def is_unreadable(error: StorageError) -> bool:
    """Whether a disk said that it cannot read the bytes (EIO): these bytes are damaged, the store does answer.

    A bad sector stays bad, so a caller that looks for damage has found some.
    """
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EIO
