"""Copies one container's Tier 2, as one manifest version names it, to another store: restore, and recovery by copy.

- SSTs are verified as they are copied; a damaged one stops the copy, because without it nothing can be found. Chunk
  objects are copied as they are, whole: what is damaged in them is found when it is read or verified.
- A chunk object that is missing is reported, and the rest is copied: its stretches are lost, not the others.
- The manifest comes last and only if there is none: a copy that was cut off has no manifest, and may be begun again.
- Object keys stay the same. So the copy must never lie where the store is that it was made from.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.contracts.object_store import ObjectStore
from tier2.container_objects import ObjectIdentity, ObjectKind
from tier2.manifest.manifest import Manifest
from tier2.read.components import Components
from tier2.sst.keyspace import REFERENCE, range_of, reference_of
from tier2.sst.sst_format import verify_part

_PAGE = 1_024


@dataclass(slots=True)
class CopyReport:
    """What was copied of one container."""

    objects: int = 0
    bytes_copied: int = 0
    missing: list[str] = field(default_factory=list)
    """Keys of chunk objects that the manifest names and the store does not have."""


async def copy_container(
    manifest: Manifest,
    components: Components,
    target: ObjectStore,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> CopyReport:
    """`progress` is called with the bytes of each object. O(bytes); memory: the largest object.

    Raises CorruptedDataError, ObjectExistsError if the target has a manifest, StorageError.
    """
    report = CopyReport()
    names, objects = components.names, components.objects

    async def copy(kind: ObjectKind, identity: ObjectIdentity, content: bytes) -> None:
        await target.put(names.key(kind, identity), [content])
        report.objects += 1
        report.bytes_copied += len(content)
        progress(len(content))

    for sst in manifest.ssts:
        for part in sst:
            content = await objects.get_range(ObjectKind.SST, part.identity, 0, part.size + 1)
            await components.offload(verify_part, content, part)
            await copy(ObjectKind.SST, part.identity, content)
    view = components.view(manifest)
    start, end = range_of(REFERENCE)
    last: ObjectIdentity | None = None
    async with aclosing(view.pages(start, end, limit=_PAGE)) as pages:
        async for page in pages:
            for key, _ in page:
                identity = reference_of(key)[0]
                if identity == last:
                    continue
                last = identity
                try:
                    size = await objects.size(ObjectKind.CHUNKS, identity)
                    content = await objects.get_range(ObjectKind.CHUNKS, identity, 0, size)
                except ObjectNotFoundError:
                    report.missing.append(names.key(ObjectKind.CHUNKS, identity))
                    continue
                await copy(ObjectKind.CHUNKS, identity, content)
    await target.put_if_absent(names.manifest, manifest.encode())
    return report
