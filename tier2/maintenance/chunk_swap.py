"""Publishes other chunks in the place of chunks: the same bytes of the same segments, elsewhere.

    under the lock: settle -> keep only what did not change since -> references, garbage -> one version

- A replacement whose segment was truncated, merged, deleted or compacted meanwhile is left out; the rest goes on.
- Objects that lose their last reference become garbage of the same version, and so do new ones that nothing names.

Compactors beside the owner upload chunks under keys that the owner gives out, and propose a swap:

    keys = owner.reserve_object_keys(n)      of the owner's epoch, so that none of its sweeps takes them
    the compactor reads, encodes, uploads
    owner.propose_swap(proposal)             checked in full, then published by the owner; or refused, with a reason

A proposal is accepted only if, under the manifest as it is when the swap is published,

- the range is exactly that of neighbouring entries of the segment, and they are still the proposed ones;
- every new image is sound, the one described, lies wholly in a reserved object, and covers the range without a hole;
- the uncompressed bytes have the same length and the same checksum, both computed here;
- its blocks are unions of whole old blocks of one lowest time, and say of their events what those said.

Whatever is refused changes nothing. A key is used up by the first proposal that names it, accepted or not: what lies
under it is garbage then, unless it was accepted. A key that is not used within `proposal_key_seconds` is given up when
others are asked for, or swept by the next owner: a compactor that dies leaves keys behind, and there are only so many.
"""

from asyncio import get_running_loop, sleep
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectNotFoundError,
    StoreFullError,
    SwapRefusedError,
)
from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.contracts.storage import ProposedImage, SwapProposal
from tier2.container_objects import ObjectIdentity, ObjectKind, ObjectReference
from tier2.format.chunk_format import EventInformation, joined_times, lowest_time_of
from tier2.layout_entry import LayoutEntry
from tier2.manifest.commit import ManifestUpdate
from tier2.manifest.garbage import freed_objects
from tier2.manifest.view import ManifestView
from tier2.publish.chunk_upload import Uploader
from tier2.publish.owned_manifest import OwnedManifest
from tier2.read.chunk_images import Block, decoded_blocks, read_images
from tier2.read.components import Components
from tier2.read.published_segments import PublishedSegments
from tier2.sst.keyspace import (
    end_offset_of,
    layout_key,
    layout_range,
    record_key,
    reference_key,
)

_REPLACEMENTS_PER_LOOK = 32
"""Replacements whose entries are looked up at once."""
_ENTRIES_PER_TURN = 128
"""Handled between two turns of the loop."""
_PROPOSED_IMAGES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Replacement:
    """Entries of one segment, side by side, and those that hold the same range from now on."""

    segment_id: SegmentId
    old: Sequence[LayoutEntry]
    new: Sequence[LayoutEntry]

    def check(self) -> None:
        """Both cover the same range without a hole."""
        for entries in (self.old, self.new):
            for before, after in pairwise(entries):
                assert before.end_offset == after.start_offset, f"hole before {after}"
        old = self.old[0].start_offset, self.old[-1].end_offset
        new = self.new[0].start_offset, self.new[-1].end_offset
        assert old == new, f"other bytes are replaced segment_id={self.segment_id} {old=} {new=}"


async def swap_entries(
    replacements: Sequence[Replacement],
    *,
    owned: OwnedManifest,
    segments: PublishedSegments,
    uploader: Uploader,
) -> list[Replacement]:
    """Those that were published. `uploader` holds what was uploaded for them. Raises as Storage.publish()."""
    for replacement in replacements:
        replacement.check()
    async with owned.lock:
        await owned.settle()
        swapped = await _unchanged(replacements, owned.view)
        if swapped:
            attempt = await _swap_update(replacements, swapped, owned, uploader)
            await segments.begin_change(attempt.records)
            await owned.commit(attempt, uploader)
    return swapped


async def _unchanged(replacements: Sequence[Replacement], view: ManifestView) -> list[Replacement]:
    """Those whose segment still exists and whose entries are still what was read."""
    unchanged: list[Replacement] = []
    for first in range(0, len(replacements), _REPLACEMENTS_PER_LOOK):
        some = replacements[first : first + _REPLACEMENTS_PER_LOOK]
        wanted: list[bytes] = []
        for one in some:
            wanted.append(record_key(one.segment_id))
            wanted += [layout_key(one.segment_id, entry.end_offset) for entry in one.old]
        values = await view.get_many(wanted)
        unchanged += [one for one in some if _is_unchanged(one, values)]
        await sleep(0)
    return unchanged


def _is_unchanged(one: Replacement, values: Mapping[bytes, bytes]) -> bool:
    return record_key(one.segment_id) in values and all(
        values.get(layout_key(one.segment_id, entry.end_offset)) == entry.encode()
        for entry in one.old
    )


async def _swap_update(
    replacements: Sequence[Replacement],
    swapped: Sequence[Replacement],
    owned: OwnedManifest,
    uploader: Uploader,
) -> ManifestUpdate:
    changes: dict[bytes, bytes | None] = {}
    handled = 0
    for one in swapped:
        handled += len(one.old) + len(one.new)
        if handled > _ENTRIES_PER_TURN:
            handled = 0
            await sleep(0)
        for entry in one.old:
            changes[layout_key(one.segment_id, entry.end_offset)] = None
            changes[reference_key(entry.identity, one.segment_id, entry.end_offset)] = None
        for entry in one.new:
            changes[layout_key(one.segment_id, entry.end_offset)] = entry.encode()
            changes[reference_key(entry.identity, one.segment_id, entry.end_offset)] = b""
    named = _new_objects(swapped)
    freed = await freed_objects(
        [(one.segment_id, entry) for one in swapped for entry in one.old], named, owned.view
    )
    owned.add_thinned(identity for identity in freed.thinned if identity not in named)
    unused: list[ObjectReference] = [
        (ObjectKind.CHUNKS, identity) for identity in sorted(_new_objects(replacements) - named)
    ]
    garbage = owned.garbage_entries([*freed.unreferenced, *unused])
    changes.update(garbage)
    sst = await owned.upload_sst(changes, uploader)
    return ManifestUpdate(
        manifest=owned.next_manifest((sst, *owned.manifest.ssts)),
        garbage_count=len(garbage),
        records={one.segment_id: None for one in swapped},
    )


def _new_objects(replacements: Sequence[Replacement]) -> set[ObjectIdentity]:
    return {entry.identity for one in replacements for entry in one.new}


@dataclass(frozen=True, slots=True)
class _ReservedKey:
    """Given out and not used yet."""

    identity: ObjectIdentity
    given_at: float
    """Loop time."""


class ExternalSwaps:
    """Reserved keys and proposals of one claim."""

    def __init__(
        self, *, owned: OwnedManifest, segments: PublishedSegments, components: Components
    ) -> None:
        self._owned = owned
        self._segments = segments
        self._components = components
        self._reserved: OrderedDict[str, _ReservedKey] = OrderedDict()
        """The oldest first."""

    def reserve(self, count: int) -> list[str]:
        """Keys to upload chunk objects under. Raises StoreFullError if too many are out."""
        self._give_up_old_ones()
        now = get_running_loop().time()
        if len(self._reserved) + count > self._components.settings.proposal_keys_max:
            raise StoreFullError(
                f"too many object keys are given out and unused out={len(self._reserved)} count={count}"
            )
        keys: list[str] = []
        for _ in range(count):
            identity = self._owned.take_identity()
            key = self._components.names.key(ObjectKind.CHUNKS, identity)
            self._reserved[key] = _ReservedKey(identity, now)
            keys.append(key)
        return keys

    def _give_up_old_ones(self) -> None:
        oldest = get_running_loop().time() - self._components.settings.proposal_key_seconds
        old: list[str] = []
        for key, reserved in self._reserved.items():
            if reserved.given_at > oldest:
                break
            old.append(key)
        self.release(old)

    def release(self, keys: Sequence[str]) -> None:
        """Keys that will not be used any more; what lies under them is garbage. Unknown ones are passed over."""
        released = [self._reserved.pop(key) for key in keys if key in self._reserved]
        self._owned.publisher.abandon([(ObjectKind.CHUNKS, one.identity) for one in released])

    async def upload(self, key: str, content: BufferView) -> None:
        """Store an object for a compactor that cannot write to Tier 2 itself. Raises SwapRefusedError, StorageError."""
        reserved = self._reserved.get(key)
        if reserved is None:
            raise SwapRefusedError(f"upload refused: the owner gave out no such object key {key=}")
        await self._components.objects.put(ObjectKind.CHUNKS, reserved.identity, [content])

    async def propose(self, proposal: SwapProposal) -> None:
        """Returns when the swap is published. Raises SwapRefusedError, and what Storage.publish() raises."""
        try:
            with self._owned.uploading() as uploader:
                new = self._take_new(proposal, uploader.uploaded)
                old = await self._current(proposal)
                await self._require_inside(proposal, new)
                await self._compare(old, new)
                swapped = await swap_entries(
                    [Replacement(proposal.segment_id, old, new)],
                    owned=self._owned,
                    segments=self._segments,
                    uploader=uploader,
                )
        except (CorruptedDataError, ObjectNotFoundError) as error:
            raise SwapRefusedError(f"swap refused: {error}") from error
        if not swapped:
            raise _swap_refused(proposal, "the segment changed while the swap was checked")

    def _take_new(
        self, proposal: SwapProposal, uploaded: list[ObjectReference]
    ) -> list[LayoutEntry]:
        """The proposed entries; whatever keys they name are used up from now on."""
        entries: list[LayoutEntry] = []
        stranger: str | None = None
        identities: dict[str, ObjectIdentity] = {}
        for image in proposal.new:
            identity = identities.get(image.object_key)
            if identity is None:
                reserved = self._reserved.pop(image.object_key, None)
                if reserved is None:
                    stranger = image.object_key
                    continue
                identity = identities[image.object_key] = reserved.identity
                uploaded.append((ObjectKind.CHUNKS, identity))
            if len(entries) == _PROPOSED_IMAGES_MAX:
                continue  # it is refused, and its keys are used up all the same
            entries.append(
                LayoutEntry(
                    image.start_offset,
                    image.end_offset,
                    identity,
                    image.position,
                    image.size,
                    image.file_crc32,
                    image.start_offset,
                )
            )
        if stranger is not None:
            raise _swap_refused(proposal, f"the owner gave out no such object key key={stranger}")
        if not entries or len(proposal.new) > _PROPOSED_IMAGES_MAX:
            raise _swap_refused(
                proposal, f"it has {len(proposal.new)} images of 1 to {_PROPOSED_IMAGES_MAX}"
            )
        if any(entry.start_offset >= entry.end_offset for entry in entries) or any(
            before.end_offset != after.start_offset for before, after in pairwise(entries)
        ):
            raise _swap_refused(proposal, "the new images do not cover one range without a hole")
        return entries

    async def _current(self, proposal: SwapProposal) -> list[LayoutEntry]:
        """The entries that the manifest has now for the range, if they are the ones that were proposed."""
        old, new = proposal.old, proposal.new
        if not old or (old[0].start_offset, old[-1].end_offset) != (
            new[0].start_offset,
            new[-1].end_offset,
        ):
            raise _swap_refused(proposal, "old and new images cover other ranges")
        if new[-1].end_offset - new[0].start_offset > self._components.settings.proposal_bytes_max:
            raise _swap_refused(proposal, "the range is longer than one proposal may be")
        view, segment_id = self._owned.view, proposal.segment_id
        if segment_id not in await self._segments.values(view, (segment_id,)):
            raise _swap_refused(proposal, "there is no such segment")
        start, end = layout_range(segment_id, old[0].start_offset, old[-1].end_offset)
        found = await view.scan_all(start, end, group=record_key(segment_id)[:-1])
        current = [LayoutEntry.decode(end_offset_of(key), value) for key, value in found if value]
        names = self._components.names
        described = [
            ProposedImage(
                entry.start_offset,
                entry.end_offset,
                names.key(ObjectKind.CHUNKS, entry.identity),
                entry.position,
                entry.size,
                entry.file_crc32,
            )
            for entry in current
        ]
        if described != list(old):
            raise _swap_refused(proposal, "the segment has other chunks there by now")
        return current

    async def _require_inside(self, proposal: SwapProposal, entries: Sequence[LayoutEntry]) -> None:
        """Their objects hold so many bytes: a store may make room for what it is asked for before it looks."""
        sizes: dict[ObjectIdentity, int] = {}
        for entry in entries:
            size = sizes.get(entry.identity)
            if size is None:
                size = await self._components.objects.size(ObjectKind.CHUNKS, entry.identity)
                sizes[entry.identity] = size
            if entry.position + entry.size > size:
                raise _swap_refused(proposal, f"an image goes beyond its object of {size} bytes")

    async def _compare(self, old: Sequence[LayoutEntry], new: Sequence[LayoutEntry]) -> None:
        """Same bytes, same knowledge of events. Raises SwapRefusedError. Memory: an image of each side."""
        before = _RangeDigest()
        for entry in old:
            async with aclosing(self._blocks(entry)) as blocks:
                async for block in blocks:
                    before.add(block)
        after = _RangeDigest()
        for entry in new:
            async with aclosing(self._blocks(entry)) as blocks:
                async for block in blocks:
                    after.add(block)
        if (before.length, before.crc32) != (after.length, after.crc32):
            raise SwapRefusedError(
                f"swap refused: the bytes differ length={before.length} proposed={after.length}"
                f" crc32={before.crc32} proposed_crc32={after.crc32}"
            )
        after.require_same_events(before)

    async def _blocks(self, entry: LayoutEntry) -> AsyncGenerator[Block, None]:
        async with aclosing(read_images([entry], self._components)) as found:
            async for images in found:
                for one, image, index in images:
                    for block in await self._components.offload(decoded_blocks, one, image, index):
                        yield block


class _RangeDigest:
    """Length, checksum and events of a range, block by block."""

    def __init__(self) -> None:
        self.length = 0
        self.crc32 = 0
        self._events: list[tuple[int, EventInformation | None]] = []
        """End of each block, from the start of the range, and what is known of its events."""

    def add(self, block: Block) -> None:
        content, events = block
        self.crc32 = crc32_of(content, self.crc32)
        self.length += len(content)
        self._events.append((self.length, events))

    def require_same_events(self, before: "_RangeDigest") -> None:
        """Every block here is a union of blocks of `before` and says what they said."""
        parts = iter(before._events)
        start = 0
        for end, events in self._events:
            known: list[tuple[int, EventInformation | None]] = []
            at = start
            while at < end:
                part_end, part = next(parts)
                known.append((at - start, part))
                at = part_end
            if at != end:
                raise SwapRefusedError(
                    f"swap refused: a block ends inside one of the blocks that it replaces at={end}"
                )
            if len({lowest_time_of(one) for _, one in known}) > 1:
                raise SwapRefusedError(
                    f"swap refused: a block joins events of different times at={start}"
                )
            if events != _joined_events(known):
                raise SwapRefusedError(
                    f"swap refused: a block says something else of its events than before at={start}"
                )
            start = end


def _joined_events(known: Sequence[tuple[int, EventInformation | None]]) -> EventInformation | None:
    """What a block knows that is made of these, each with its place in it."""
    described = [(at, events) for at, events in known if events is not None]
    if len(described) < len(known):
        return None
    position, number = None, 0
    for at, events in described:
        if events.first_event_position is not None:
            position, number = at + events.first_event_position, events.first_event_number
            break
    return EventInformation(position, number, *joined_times([events for _, events in described]))


def _swap_refused(proposal: SwapProposal, why: str) -> SwapRefusedError:
    return SwapRefusedError(f"swap refused: {why} segment_id={proposal.segment_id}")
