"""Reads whole chunk images to copy or replace them, each verified against the layout entry that names it (H10).

- Neighbours in an object come in one request; memory is what one request brings.
- A damaged image is an error here, never bytes.
"""

from collections.abc import AsyncGenerator, Sequence

from segmentstore.contracts.errors import CorruptedDataError
from tier2.format.chunk_index import ChunkIndex
from tier2.format.chunk_reader import ChunkIdentity
from tier2.format.chunk_verification import verify_chunk
from tier2.storage.components import Components
from tier2.storage.object_names import ObjectKind
from tier2.storage.run_values import LayoutEntry

_GAP_BYTES_MAX = 128 << 10
_READ_BYTES_MAX = 4 << 20

Image = tuple[LayoutEntry, bytes, ChunkIndex]
"""An entry, its image, and the image's index."""


async def read_images(
    entries: Sequence[LayoutEntry], components: Components
) -> AsyncGenerator[Sequence[Image], None]:
    """The images in the order in which they lie in their objects, some at a time. Hold it in `aclosing`.

    Raises CorruptedDataError, ObjectNotFoundError, StorageError.
    """
    ordered = sorted(entries, key=lambda entry: (entry.identity, entry.position))
    at = 0
    while at < len(ordered):
        first = ordered[at]
        end = at + 1
        while end < len(ordered) and _joins(first, ordered[end - 1], ordered[end]):
            end += 1
        group = ordered[at:end]
        content = await components.objects.get_range(
            ObjectKind.CHUNKS,
            first.identity,
            first.position,
            _end(group[-1]) - first.position,
        )
        yield await components.offload(_cut_and_verify, group, content)
        at = end


def _joins(first: LayoutEntry, last: LayoutEntry, entry: LayoutEntry) -> bool:
    return (
        entry.identity == first.identity
        and entry.position - _end(last) <= _GAP_BYTES_MAX
        and _end(entry) - first.position <= _READ_BYTES_MAX
    )


def _end(entry: LayoutEntry) -> int:
    return entry.position + entry.size


def _cut_and_verify(group: Sequence[LayoutEntry], content: bytes) -> list[Image]:
    start = group[0].position
    images: list[Image] = []
    for entry in group:
        image = content[entry.position - start : _end(entry) - start]
        report = verify_image(entry, image)
        images.append((entry, image, report))
    return images


def verify_image(entry: LayoutEntry, image: bytes) -> ChunkIndex:
    """The index of a sound image. Raises CorruptedDataError if it is damaged or not the one that the entry means."""
    source = f"{entry.identity}+{entry.position}"
    report = verify_chunk(image, identity=identity_of(entry), source=source)
    if report.damages or report.index is None:
        raise CorruptedDataError(report.damages[0])
    length = report.index.end_offset - report.index.start_offset
    if length != entry.length:
        raise CorruptedDataError(
            f"chunk holds other offsets than recorded source={source} recorded={entry.length}"
            f" held={length}"
        )
    return report.index


def identity_of(entry: LayoutEntry) -> ChunkIdentity:
    """What the entry records of its image."""
    return ChunkIdentity(
        size=entry.size, file_crc32=entry.file_crc32, start_offset=entry.chunk_offset
    )
