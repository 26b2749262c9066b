"""Replaces the root, one attempt at a time, and finds out what became of each (H4).

An attempt is a complete next version of the root with a nonce of its own. Once begun it is driven to its end before
another begins: the same bytes are offered to the same compare-and-set until either the store says yes or reading back
shows our nonce. So

- at most one attempt is open, and everything below it has already been uploaded;
- an attempt that lands late, after reading back showed the old version, is recognised by the next one who asks;
- its objects are not garbage before a later version of ours is published (H4, H5).

    answer to put_if_match      root read back                    what it means
    yes                         -                                 published
    anything else               our nonce                         published, the answer was lost
    anything else               higher epoch                      fenced: StorageNotPrimaryError, for ever
    anything else               the version we started from       unknown; the attempt stays open; the error goes out
    anything else               anything else                     somebody else writes this root: ServiceHaltError
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from segmentstore.contracts.errors import (
    ObjectNotFoundError,
    SegmentStoreError,
    ServiceHaltError,
    StorageError,
    StorageFullError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import Publication
from tier2.storage.counters import StorageCounters
from tier2.storage.object_names import ObjectIdentity, ObjectKind, ObjectNames
from tier2.storage.root import Root, decode_root
from tier2.storage.unknown_outcome import unknown_outcome

_LOG = logging.getLogger(__name__)

ObjectReference: TypeAlias = tuple[ObjectKind, ObjectIdentity]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A complete next version of the root."""

    root: Root
    discards: tuple[ObjectReference, ...] = ()
    """Abandoned objects that this version records as garbage."""
    garbage_count: int = 0
    """Objects that this version records as garbage, less those whose records it removes."""
    publication: Publication | None = None
    """What it publishes; None for a merge or a collection."""
    records: Mapping[SegmentId, bytes | None] = field(default_factory=dict)
    """Encoded records that the publication changes; None for a segment that it removes."""
    changes_pins: bool = False
    """Whether it makes or drops a pin."""


class RootPublisher:
    """The only place that writes a claimed root."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        names: ObjectNames,
        counters: StorageCounters,
        root: Root,
        tag: str,
    ) -> None:
        self._store = object_store
        self._names = names
        self._counters = counters
        self._root = root
        self._tag = tag
        self._open: Attempt | None = None
        self._abandoned: dict[ObjectReference, None] = {}
        self._ended_by: SegmentStoreError | None = None

    @property
    def root(self) -> Root:
        """The last version known to be published."""
        return self._root

    def abandon(self, objects: Iterable[ObjectReference]) -> None:
        """Objects uploaded for something that never became an attempt: the next version records them as garbage."""
        self._abandoned.update(dict.fromkeys(objects))

    def abandoned(self) -> tuple[ObjectReference, ...]:
        return tuple(self._abandoned)

    def raise_if_ended(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by

    async def settle(self) -> Attempt | None:
        """Drive the open attempt to its end, if there is one; returns it once it is published."""
        self.raise_if_ended()
        attempt = self._open
        if attempt is not None:
            await self._drive(attempt)
        return attempt

    async def publish(self, attempt: Attempt) -> None:
        """Publish on top of `root`. Raises StorageError or StorageFullError if the outcome is unknown: settle()."""
        self.raise_if_ended()
        assert self._open is None, f"an attempt is open version={self._root.version + 1}"
        assert attempt.root.version == self._root.version + 1, (
            f"attempt is not the next version {attempt.root.version} after {self._root.version}"
        )
        self._open = attempt
        await self._drive(attempt)

    async def confirm(self) -> Root:
        """Read the root now and prove that it is still ours (H6). Raises as publish()."""
        self.raise_if_ended()
        assert self._open is None, "an attempt is open: settle it first"
        root, _ = await self._read()
        if root.nonce != self._root.nonce:
            self._end(root, None)
        return self._root

    async def require_owner(self) -> None:
        """Read the root now; may run beside publish().

        Raises StorageNotPrimaryError if somebody else has claimed it.
        """
        self.raise_if_ended()
        root, _ = await self._read()
        if root.epoch > self._root.epoch:
            self._end(root, None)

    async def _drive(self, attempt: Attempt) -> None:
        self._counters.puts += 1
        content = attempt.root.encode()
        try:
            tag = await self._store.put_if_match(self._names.root, content, self._tag)
        except (StorageError, StorageFullError) as error:
            tag = await self._read_back(attempt, error)
        self._counters.put_bytes += len(content)
        self._adopt(attempt, tag)

    def _adopt(self, attempt: Attempt, tag: str) -> None:
        assert self._open is attempt, f"another attempt is open version={attempt.root.version}"
        assert attempt.root.version == self._root.version + 1, (
            f"version leaps {self._root.version} -> {attempt.root.version}"
        )
        self._root, self._tag, self._open = attempt.root, tag, None
        for discard in attempt.discards:
            self._abandoned.pop(discard, None)

    async def _read_back(self, attempt: Attempt, cause: SegmentStoreError) -> str:
        """The tag under which the attempt was published after all; raises what the table above says."""
        root, tag = await self._read()
        if root.nonce == attempt.root.nonce:
            _LOG.info(
                "container %d: root version %d was published, its answer was lost (%s)",
                root.container_id,
                root.version,
                cause,
            )
            return tag
        if root.nonce != self._root.nonce:
            self._end(root, cause)
        if isinstance(cause, StorageFullError):
            raise cause
        raise unknown_outcome(
            f"a root update container={root.container_id} version={attempt.root.version}", cause
        ) from cause

    async def _read(self) -> tuple[Root, str]:
        self._counters.gets += 1
        try:
            found = await self._store.get(self._names.root)
        except ObjectNotFoundError as error:
            halt = ServiceHaltError(f"the root is gone key={self._names.root}")
            self._ended_by = halt
            raise halt from error
        self._counters.get_bytes += len(found.content)
        return decode_root(found.content), found.tag

    def _end(self, found: Root, cause: SegmentStoreError | None) -> NoReturn:
        ours = self._root
        if found.epoch > ours.epoch:
            self._ended_by = StorageNotPrimaryError(
                f"root was claimed under a higher epoch container={ours.container_id}"
                f" epoch={ours.epoch} found={found.epoch}"
            )
        else:
            self._ended_by = ServiceHaltError(
                f"somebody else wrote the root container={ours.container_id} epoch={ours.epoch}"
                f" version={ours.version} found_epoch={found.epoch} found_version={found.version}"
            )
        raise self._ended_by from cause
