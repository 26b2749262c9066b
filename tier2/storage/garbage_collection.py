"""Deletes objects whose grace is over (H6), and records orphans of earlier owners as garbage (H5).

    look for due records -> under the lock: read the root and prove that it is ours -> ask once more whether anything
    names the object -> delete -> remove the records in one more version

A crash between any two steps leaves records of objects that are gone; deleting those again changes nothing.

A root update that found no room is not waited for: it may need the room that these deletions make (H52). What is
garbage under the root is named by no update of it either, whether that one lands or not.
"""

import logging

from segmentstore.contracts.errors import StorageError, StorageFullError
from tier2.storage.components import Components
from tier2.storage.garbage import is_named
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.root_publisher import Attempt, ObjectReference
from tier2.storage.run_keys import garbage_key
from tier2.storage.upload import run_bounded

_LOG = logging.getLogger(__name__)


async def collect_garbage(*, owned: OwnedRoot, components: Components) -> int:
    """The number of objects deleted. Raises StorageNotPrimaryError, ServiceHaltError, StorageError."""
    owned.publisher.raise_if_ended()
    if not owned.sweep.done:
        owned.publisher.abandon(await owned.sweep.orphans(owned.view))
    due = await owned.garbage.due(owned.view, await owned.pins())
    if not due and not owned.publisher.abandoned():
        return 0
    async with owned.lock:
        try:
            await owned.settle()
        except StorageFullError:
            # The root has been read back: it is ours, and the update is not in it.
            await _delete(due, owned, components)
            raise
        if due:
            await owned.publisher.confirm()
        deleted = await _delete(due, owned, components)
        await _record(deleted, owned)
    return len(deleted)


async def _delete(
    due: list[ObjectReference], owned: OwnedRoot, components: Components
) -> list[ObjectReference]:
    deleted: list[ObjectReference] = []

    async def delete(reference: ObjectReference) -> None:
        if await is_named(owned.view, reference):
            _LOG.error("garbage is still named, keeping it: %s %s", reference[0].name, reference[1])
            return
        try:
            await components.objects.delete(*reference)
        except StorageError as error:
            _LOG.warning("deleting %s failed, trying again later: %s", reference[1], error)
            return
        deleted.append(reference)

    await run_bounded(due, delete, components.settings.upload_count_max)
    return sorted(deleted)


async def _record(deleted: list[ObjectReference], owned: OwnedRoot) -> None:
    """Remove the records of what is gone, and add those of what was abandoned."""
    discards = owned.publisher.abandoned()
    changes: dict[bytes, bytes | None] = dict(owned.garbage_entries(discards))
    changes.update((garbage_key(*reference), None) for reference in deleted)
    if not changes:
        return
    uploader = owned.uploader()
    try:
        run = await owned.upload_run(changes, uploader)
    except BaseException:
        owned.publisher.abandon(uploader.uploaded)
        raise
    attempt = Attempt(
        root=owned.next_root((run, *owned.root.runs)),
        discards=discards,
        garbage_count=len(discards),
    )
    owned.garbage.removed(deleted)
    await owned.commit(attempt)
