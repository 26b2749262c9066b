"""Proves chunk images of one container for callers without its owner: damage is an answer, not an error.

- Images that lie side by side in an object come in one request; memory is what one request brings, and one block.
- An image that seems damaged is read once more, alone: a bit may have flipped on the way here, and a store that knows
  by itself that some of the bytes are damaged may still give the other images.
- A missing object is damage only if the manifest, read again, still names the image; otherwise the image has moved, and
  the caller looks where its bytes are now.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.contracts.identifiers import BufferView, SegmentId
from tier2.container_objects import ObjectKind
from tier2.format.chunk_decoder import verify_chunk
from tier2.format.chunk_format import BlockEntry, EventInformation
from tier2.layout_entry import LayoutEntry
from tier2.manifest.view import ManifestView
from tier2.read.chunk_images import image_end, is_unreadable, neighbour_groups
from tier2.read.components import Components
from tier2.sst.keyspace import reference_key
from tier2.store_reader import ContainerReader


@dataclass(frozen=True, slots=True)
class SegmentImage:
    """An image to prove: an entry of the layout of a segment."""

    segment_id: SegmentId
    entry: LayoutEntry


@dataclass(frozen=True, slots=True)
class ImageProof:
    """What was found in one image."""

    image: SegmentImage
    damages: tuple[str, ...] = ()
    is_moved: bool = False
    """Its bytes are in another object by now: nothing was proved."""


ExamineBlock: TypeAlias = Callable[[BufferView, EventInformation | None], str]
"""Called with the bytes of each block of an image, in order, and with what its segment records of their events. Returns
a sentence if something is wrong, else nothing."""


async def prove_images(
    images: Sequence[SegmentImage],
    reader: ContainerReader,
    *,
    begin: Callable[[SegmentImage], ExamineBlock] | None = None,
) -> AsyncGenerator[ImageProof, None]:
    """All of them, in the order in which they lie in their objects. Hold it in `aclosing`.

    `begin` is called before the blocks of an image are read, and again if the image is read again.

    Raises StorageError if the store does not answer.
    """
    prover = ImageProver(reader.components, newest=reader.refresh, begin=begin)
    for group in neighbour_groups(images, lambda image: image.entry):
        for proof in await prover.prove(group):
            yield proof


class ImageProver:
    """Proves images against what their layout entries record of them."""

    def __init__(
        self,
        components: Components,
        *,
        newest: Callable[[], Awaitable[ManifestView]],
        begin: Callable[[SegmentImage], ExamineBlock] | None = None,
    ) -> None:
        """`newest` reads the manifest that says whether a missing image counts; `begin`: see `prove_images`."""
        self._components = components
        self._newest = newest
        self._begin = begin

    async def prove(
        self, group: Sequence[SegmentImage], *, is_repeated: bool = False
    ) -> list[ImageProof]:
        """Images that lie in one object, in order, with one request. Raises StorageError."""
        first, last = group[0].entry, group[-1].entry
        start = first.position
        try:
            content = await self._components.objects.get_range(
                ObjectKind.CHUNKS, first.identity, start, image_end(last) - start
            )
        except ObjectNotFoundError:
            return [await self._prove_missing(image) for image in group]
        except StorageError as error:
            if not isinstance(error, CorruptedDataError) and not is_unreadable(error):
                raise
            if is_repeated:
                return [
                    ImageProof(image, (f"chunk cannot be read {_source(image)}: {error}",))
                    for image in group
                ]
            return [proof for image in group for proof in await self._prove_again(image)]
        proofs: list[ImageProof] = []
        for image in group:
            image_bytes = memoryview(content)[image.entry.position - start :][: image.entry.size]
            proof = await self._components.offload(self._prove_bytes, image, image_bytes)
            if proof.damages and not is_repeated:
                proofs += await self._prove_again(image)
            else:
                proofs.append(proof)
        return proofs

    async def _prove_again(self, image: SegmentImage) -> list[ImageProof]:
        return await self.prove([image], is_repeated=True)

    def _prove_bytes(self, image: SegmentImage, content: BufferView) -> ImageProof:
        """O(bytes)."""
        entry = image.entry
        examine = None if self._begin is None else self._begin(image)

        def examine_block(block: BlockEntry, decoded: BufferView) -> str:
            return "" if examine is None else examine(decoded, entry.block_events(block))

        report = verify_chunk(
            content,
            identity=entry.chunk_identity,
            source=f"{entry.identity}+{entry.position}",
            examine=None if examine is None else examine_block,
        )
        damages = list(report.damages)
        length = 0 if report.index is None else report.index.end_offset - report.index.start_offset
        if report.index is not None and length != entry.length:
            damages.append(
                f"chunk has another length than recorded {_source(image)}"
                f" recorded={entry.length} found={length}"
            )
        return ImageProof(image, tuple(damages))

    async def _prove_missing(self, image: SegmentImage) -> ImageProof:
        """The manifest decides whether the object is lost or only replaced by now."""
        entry = image.entry
        reference = reference_key(entry.identity, image.segment_id, entry.end_offset)
        view = await self._newest()
        if await view.get(reference) is None:
            return ImageProof(image, is_moved=True)
        return ImageProof(image, (f"chunk is missing {_source(image)} length={entry.length}",))


def _source(image: SegmentImage) -> str:
    return f"source={image.entry.identity}+{image.entry.position}"
