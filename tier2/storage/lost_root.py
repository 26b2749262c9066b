"""A container whose root is gone or damaged: what is left of it, backups that pinned a root of it, and a new beginning.

Without a root nobody can say which objects belong together. So what is found here is an offer, and nothing else: the
container is refused (tier2/storage/claim.py) until a person brings its root back, or says that it begins anew.

- A pinned root lies in a run as a whole (tier2/storage/pins.py), so it is found by looking through the runs that a
  listing shows for what they say of pins. Which of them are newer only the root told: a merge gives old entries a new
  identity. So pins are compared by the identities that are in them.
- Runs that were merged may lie there for their grace, so a pin may be found that was dropped lately, and miss objects:
  whoever goes on with it looks for them first (tier2/storage/lost_chunks.py).
"""

from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectNotFoundError,
)
from segmentstore.contracts.identifiers import NO_SEGMENT, NO_SEQUENCE_NUMBER, ContainerId, Epoch
from tier2.storage.components import Components
from tier2.storage.garbage import list_objects
from tier2.storage.object_names import ObjectIdentity, ObjectKind
from tier2.storage.pins import Pin
from tier2.storage.root import Root, decode_root
from tier2.storage.run_keys import PIN, pin_name_of, range_of
from tier2.storage.run_part import FOOTER_BYTES, describe_part


@dataclass(frozen=True, slots=True)
class Remains:
    """Objects of a container without a root."""

    object_count: int
    byte_count: int
    highest_epoch: int
    """In the names of the objects; 0 without any."""


async def find_remains(components: Components) -> Remains:
    """O(objects). Raises StorageError."""
    count = size = epoch = 0
    names = components.names
    async with aclosing(list_objects(components.object_store, names.prefix)) as listing:
        async for info in listing:
            for kind in ObjectKind:
                identity = names.identity(kind, info.key)
                if identity is not None:
                    count, size = count + 1, size + info.size
                    epoch = max(epoch, identity.epoch)
    return Remains(count, size, epoch)


async def find_pins_without_root(components: Components) -> list[Pin]:
    """Pins that the runs speak of, by name; a run that is damaged is passed over. O(runs). Raises StorageError."""
    runs: list[tuple[ObjectIdentity, int]] = []
    names = components.names
    folder = names.folder(ObjectKind.RUN)
    async with aclosing(list_objects(components.object_store, folder)) as listing:
        async for info in listing:
            identity = names.identity(ObjectKind.RUN, info.key)
            if identity is not None:
                runs.append((identity, info.size))
    pins: dict[str, Pin] = {}
    removals: list[_Removal] = []
    for identity, size in runs:
        try:
            entries, is_alone = await _pin_entries(components, identity, size)
        except (CorruptedDataError, ObjectNotFoundError):
            continue
        for key, value in entries:
            name = pin_name_of(key)
            if value is None:
                removals.append(_Removal(name, identity, is_alone))
                continue
            try:
                pin = Pin.decode(name, value)
            except CorruptedDataError:
                continue
            if name not in pins or _mark(pins[name]) < _mark(pin):
                pins[name] = pin
    listed = {identity for identity, _ in runs}
    for removal in removals:
        pin_or_none = pins.get(removal.name)
        if pin_or_none is not None and removal.takes(pin_or_none, listed):
            del pins[removal.name]
    return [pins[name] for name in sorted(pins)]


@dataclass(frozen=True, slots=True)
class _Removal:
    """A run that says that there is no pin of that name, or was none when what it was merged from was written."""

    name: str
    run: ObjectIdentity
    is_alone: bool
    """The run says nothing else: that is how a pin is dropped. So it is as old as its identity says."""

    def takes(self, pin: Pin, listed: AbstractSet[ObjectIdentity]) -> bool:
        """Whether it came behind the pin; of a merged run that shows by what the pin misses."""
        if (self.run.epoch, self.run.serial) < _mark(pin):
            return False
        return self.is_alone or any(
            part.identity not in listed for run in pin.root.runs for part in run
        )


def _mark(pin: Pin) -> tuple[int, int]:
    """Grows from pin to pin."""
    return pin.epoch, pin.serial


async def _pin_entries(
    components: Components, identity: ObjectIdentity, size: int
) -> tuple[list[tuple[bytes, bytes | None]], bool]:
    """Of one run, and whether it is a single entry in all."""
    start, end = range_of(PIN)
    footer = await components.objects.get_range(
        ObjectKind.RUN, identity, max(0, size - FOOTER_BYTES), FOOTER_BYTES
    )
    part = describe_part(identity, size, footer)
    index = await components.files.index(part)
    entries: list[tuple[bytes, bytes | None]] = []
    number = index.block_at(start)
    is_alone = False
    while number < index.block_count:
        (block,) = await components.files.blocks(part, index, (number,))
        is_alone = index.block_count == block.count == 1
        last = block.lower_bound(end)
        entries += block.slice(block.lower_bound(start), last)
        if last < block.count:
            break
        number += 1
    return entries, is_alone


async def begin_anew(
    components: Components, *, of_store: Root, nonce: bytes, log_id: bytes
) -> Root:
    """Give a container without a sound root an empty one, below which nothing of the old one is; returns it.

    A damaged root is kept beside it. Everything else that is left of the old container is swept as orphans by the next
    owner: the new root has its highest epoch, the owner a higher one. `of_store`: any root of the same store.

    Raises InvalidRequestError if the root is sound, ObjectExistsError or ObjectChangedError if somebody else brings
    one, StorageError.
    """
    names, store = components.names, components.object_store
    root = Root(
        store_id=of_store.store_id,
        log_id=log_id,
        container_id=components.container_id,
        container_count=of_store.container_count,
        epoch=Epoch((await find_remains(components)).highest_epoch),
        version=1,
        nonce=nonce,
        highest_segment_id=NO_SEGMENT,
        highest_sequence_number=NO_SEQUENCE_NUMBER,
    )
    root.check()
    try:
        damaged = await store.get(names.root)
    except ObjectNotFoundError:
        await store.put_if_absent(names.root, root.encode())
        return root
    except CorruptedDataError:
        # The store itself has lost its bytes: there is no tag to replace it by, and nothing to keep.
        await store.delete(names.root)
        await store.put_if_absent(names.root, root.encode())
        return root
    if _is_sound(damaged.content, components.container_id):
        raise InvalidRequestError(
            f"the root of this container is sound: it does not begin anew container={components.container_id}"
        )
    await store.put(names.lost_root(nonce), [damaged.content])
    await store.put_if_match(names.root, root.encode(), damaged.tag)
    return root


def _is_sound(content: bytes, container_id: ContainerId) -> bool:
    try:
        return decode_root(content).container_id == container_id
    except CorruptedDataError:
        return False
