"""Replaces the manifest, one attempt at a time, and finds out what became of each.

An attempt is a complete next version of the manifest with a nonce of its own. Once begun it is driven to its end before
another begins: the same bytes are offered to the same compare-and-set until either the store says yes or reading back
shows our nonce. So

- at most one attempt is open, and everything below it has already been uploaded;
- an attempt that lands late, after reading back showed the old version, is recognised by the next call that asks;
- its objects are not garbage before a later version of ours is published.

    answer to put_if_match      manifest read back                what it means
    yes                         -                                 published
    anything else               our nonce                         published, the answer was lost
    anything else               higher epoch                      fenced: StorageNotPrimaryError, for ever
    anything else               the version we started from       unknown; the attempt stays open; the error goes out
    anything else               anything else                     another process writes this manifest: ServiceHaltError
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from segmentstore.contracts.errors import (
    ObjectNotFoundError,
    SegmentStoreError,
    ServiceHaltError,
    StorageError,
    StorageFullError,
    StorageNotPrimaryError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import Publication
from tier2.container_objects import (
    ObjectNames,
    ObjectReference,
    StorageCounters,
)
from tier2.manifest.manifest import Manifest, decode_manifest

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ManifestUpdate:
    """A complete next version of the manifest."""

    manifest: Manifest
    discards: tuple[ObjectReference, ...] = ()
    """Abandoned objects that this version records as garbage."""
    garbage_count: int = 0
    """Objects that this version records as garbage, less those whose records it removes."""
    publication: Publication | None = None
    """What it publishes; None for a merge or a collection."""
    records: Mapping[SegmentId, bytes | None] = field(default_factory=dict)
    """Encoded records that the publication changes; None for a segment that it removes."""
    changes_snapshots: bool = False
    """Whether it makes or drops a snapshot."""


class ManifestCommitter:
    """The only place that writes a claimed manifest."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        names: ObjectNames,
        counters: StorageCounters,
        manifest: Manifest,
        tag: str,
    ) -> None:
        self._store = object_store
        self._names = names
        self._counters = counters
        self._manifest = manifest
        self._tag = tag
        self._open: ManifestUpdate | None = None
        self._abandoned: dict[ObjectReference, None] = {}
        self._ended_by: SegmentStoreError | None = None

    @property
    def manifest(self) -> Manifest:
        """The last version known to be published."""
        return self._manifest

    def abandon(self, objects: Iterable[ObjectReference]) -> None:
        """Objects uploaded for something that never became an attempt: the next version records them as garbage."""
        self._abandoned.update(dict.fromkeys(objects))

    def abandoned(self) -> tuple[ObjectReference, ...]:
        return tuple(self._abandoned)

    def raise_if_ended(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by

    async def settle(self) -> ManifestUpdate | None:
        """Drive the open attempt to its end, if there is one; returns it once it is published."""
        self.raise_if_ended()
        attempt = self._open
        if attempt is not None:
            await self._drive(attempt)
        return attempt

    async def publish(self, attempt: ManifestUpdate) -> None:
        """Publish on top of `manifest`. Raises StorageError or StorageFullError if the outcome is unknown: settle()."""
        self.raise_if_ended()
        assert self._open is None, f"an attempt is open version={self._manifest.version + 1}"
        assert attempt.manifest.version == self._manifest.version + 1, (
            f"attempt is not the next version {attempt.manifest.version} after {self._manifest.version}"
        )
        self._open = attempt
        await self._drive(attempt)

    async def confirm(self) -> Manifest:
        """Read the manifest now and prove that it is still ours. Raises as publish()."""
        self.raise_if_ended()
        assert self._open is None, "an attempt is open: settle it first"
        manifest, _ = await self._read()
        if manifest.nonce != self._manifest.nonce:
            self._end(manifest, None)
        return self._manifest

    async def require_owner(self) -> None:
        """Read the manifest now; may run beside publish().

        Raises StorageNotPrimaryError if another owner has claimed it.
        """
        self.raise_if_ended()
        manifest, _ = await self._read()
        if manifest.epoch > self._manifest.epoch:
            self._end(manifest, None)

    async def _drive(self, attempt: ManifestUpdate) -> None:
        self._counters.puts += 1
        content = attempt.manifest.encode()
        try:
            tag = await self._store.put_if_match(self._names.manifest, content, self._tag)
        except (StorageError, StorageFullError) as error:
            tag = await self._read_back(attempt, error)
        self._counters.put_bytes += len(content)
        self._adopt(attempt, tag)

    def _adopt(self, attempt: ManifestUpdate, tag: str) -> None:
        assert self._open is attempt, f"another attempt is open version={attempt.manifest.version}"
        assert attempt.manifest.version == self._manifest.version + 1, (
            f"version leaps {self._manifest.version} -> {attempt.manifest.version}"
        )
        self._manifest, self._tag, self._open = attempt.manifest, tag, None
        for discard in attempt.discards:
            self._abandoned.pop(discard, None)

    async def _read_back(self, attempt: ManifestUpdate, cause: SegmentStoreError) -> str:
        """The tag under which the attempt was published after all; raises what the table above says."""
        manifest, tag = await self._read()
        if manifest.nonce == attempt.manifest.nonce:
            _LOG.info(
                "container %d: manifest version %d was published, its answer was lost (%s)",
                manifest.container_id,
                manifest.version,
                cause,
            )
            return tag
        if manifest.nonce != self._manifest.nonce:
            self._end(manifest, cause)
        if isinstance(cause, StorageFullError):
            raise cause
        raise unknown_outcome(
            f"a manifest update container={manifest.container_id} version={attempt.manifest.version}",
            cause,
        ) from cause

    async def _read(self) -> tuple[Manifest, str]:
        self._counters.gets += 1
        try:
            found = await self._store.get(self._names.manifest)
        except ObjectNotFoundError as error:
            halt = ServiceHaltError(f"the manifest is gone key={self._names.manifest}")
            self._ended_by = halt
            raise halt from error
        self._counters.get_bytes += len(found.content)
        return decode_manifest(found.content), found.tag

    def _end(self, found: Manifest, cause: SegmentStoreError | None) -> NoReturn:
        ours = self._manifest
        if found.epoch > ours.epoch:
            self._ended_by = StorageNotPrimaryError(
                f"manifest was claimed under a higher epoch container={ours.container_id}"
                f" epoch={ours.epoch} found={found.epoch}"
            )
        else:
            self._ended_by = ServiceHaltError(
                f"another process wrote the manifest container={ours.container_id} epoch={ours.epoch}"
                f" version={ours.version} found_epoch={found.epoch} found_version={found.version}"
            )
        raise self._ended_by from cause


def unknown_outcome(what: str, cause: SegmentStoreError) -> StorageError:
    """The error for a conditional put that was not answered as it should be, and is not known to have happened.

    Says what is not known and why, and keeps the word that the object store has for it.
    """
    message = f"outcome of {what} is unknown: {cause}"
    if isinstance(cause, StorageUnavailableError):
        return StorageUnavailableError(message, state=cause.state)
    return StorageError(message)
