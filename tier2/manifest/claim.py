"""Taking a container's manifest under a new epoch.

- The manifest is created once, by put-if-absent, and only in a store that let exactly one of several racing writers
  win (`tier2/conditional_puts.py`).
- No manifest is created where objects of the container lie: that manifest is lost, not yet to come. An empty container
  would sweep away what is left of the old one.
- A manifest is taken over only if store id, log id, container id and container count match and our epoch is greater.
  A log that was made to follow a lost one takes that one's manifest, which is its own from then on: should the lost
  one turn up again it is refused, however high its epoch.
- Claiming may fail half-way and be called again with the same epoch: our own nonces are remembered, so a
  claim that landed late is ours.
"""

from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import NO_SEGMENT, NO_SEQUENCE_NUMBER, ContainerId, Epoch
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import ClaimedBySameLogError
from segmentstore.runtime.entropy import random_id
from tier2.conditional_puts import require_compare_and_set
from tier2.container_objects import ObjectNames, StorageCounters
from tier2.manifest.commit import unknown_outcome
from tier2.manifest.manifest import BRING_BACK, Manifest, decode_manifest

_ATTEMPTS_MAX = 16
_RACERS = 4
_NONCES_MAX = 64
"""Attempts remembered while Tier 2 does not answer; an older one that lands only costs another epoch."""
_WAY_OUT = (
    "if Tier 1 was lost, `segmentstore recover --from-tier2` continues above what Tier 2 holds"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A manifest that is ours now."""

    manifest: Manifest
    tag: str
    created: bool
    was_ours: bool
    """Before the claim, too."""


class ManifestClaimer:
    """Claims the manifest of one container; remembers its own attempts from call to call."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        names: ObjectNames,
        counters: StorageCounters,
        store_id: bytes,
        container_id: ContainerId,
        container_count: int,
        random: Random,
    ) -> None:
        self._store = object_store
        self._names = names
        self._counters = counters
        self._store_id = store_id
        self._container_id = container_id
        self._container_count = container_count
        self._random = random
        self._nonces: deque[bytes] = deque(maxlen=_NONCES_MAX)
        self._creating: deque[bytes] = deque(maxlen=_NONCES_MAX)
        self._was_ours = False

    async def claim(self, *, epoch: Epoch, log_id: bytes, follows: bytes = b"") -> Claim:
        """Raises InvalidRequestError, StorageNotPrimaryError, StorageError (call again), CorruptedDataError."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                found = await self._store.get(self._names.manifest)
            except ObjectNotFoundError:
                await self._create(epoch, log_id)
                continue
            manifest = self._decode(found.content)
            self._check_ownership(manifest, log_id, follows)
            if manifest.epoch == epoch and manifest.nonce in self._nonces:
                created = manifest.nonce in self._creating
                was_ours = self._was_ours and not created
                return Claim(manifest, found.tag, created=created, was_ours=was_ours)
            self._was_ours = manifest.log_id == log_id
            if manifest.epoch >= epoch:
                why = (
                    f"manifest was claimed under this epoch or a higher one container={self._container_id}"
                    f" epoch={epoch} found={manifest.epoch}; {_WAY_OUT}"
                )
                # Unless it may be an attempt of ours that is remembered no more.
                if self._was_ours and len(self._nonces) < _NONCES_MAX:
                    raise ClaimedBySameLogError(why, epochs_ahead=manifest.epoch - epoch)
                raise StorageNotPrimaryError(why)
            await self._take_over(manifest, found.tag, epoch, log_id)
        raise StorageError(
            f"manifest changes faster than it can be claimed container={self._container_id}"
        )

    def _decode(self, content: bytes) -> Manifest:
        try:
            return decode_manifest(content)
        except CorruptedDataError as error:
            raise CorruptedDataError(
                f"{error}; {BRING_BACK} container={self._container_id} manifest={self._names.manifest}"
            ) from error

    def _new_nonce(self) -> bytes:
        nonce = random_id(self._random)
        self._nonces.append(nonce)
        return nonce

    async def _create(self, epoch: Epoch, log_id: bytes) -> None:
        """Returns when the manifest can be read; this process or another one created it."""
        await self._expect_nothing()
        await self._probe()
        nonce = self._new_nonce()
        self._creating.append(nonce)
        manifest = Manifest(
            store_id=self._store_id,
            log_id=log_id,
            container_id=self._container_id,
            container_count=self._container_count,
            epoch=epoch,
            version=1,
            nonce=nonce,
            highest_segment_id=NO_SEGMENT,
            highest_sequence_number=NO_SEQUENCE_NUMBER,
        )
        manifest.check()
        self._counters.puts += 1
        try:
            await self._store.put_if_absent(self._names.manifest, manifest.encode())
        except ObjectExistsError:
            return
        except StorageError as error:
            await self._expect_root(error)

    async def _expect_nothing(self) -> None:
        """Objects are written below a manifest only. What a listing shows was there, whatever it does not show."""
        listing = self._store.list(self._names.prefix)
        async with aclosing(listing):
            async for info in listing:
                if not self._names.is_immutable(info.key):
                    continue
                try:
                    await self._store.get(self._names.manifest)
                except ObjectNotFoundError:
                    raise CorruptedDataError(
                        f"the manifest is gone, and objects below it are left; {BRING_BACK}"
                        f" container={self._container_id} manifest={self._names.manifest} found={info.key}"
                    ) from None
                return

    async def _expect_root(self, cause: StorageError) -> None:
        try:
            await self._store.get(self._names.manifest)
        except ObjectNotFoundError:
            raise unknown_outcome(
                f"creating the manifest container={self._container_id}", cause
            ) from cause

    async def _take_over(self, manifest: Manifest, tag: str, epoch: Epoch, log_id: bytes) -> None:
        """Returns when it is worth reading the manifest again."""
        claimed = manifest.successor(nonce=self._new_nonce(), ssts=manifest.ssts, epoch=epoch)
        mine = replace(claimed, log_id=log_id)
        self._counters.puts += 1
        try:
            await self._store.put_if_match(self._names.manifest, mine.encode(), tag)
        except ObjectChangedError:
            return
        except StorageError as error:
            found = await self._store.get(self._names.manifest)
            if found.tag == tag:
                raise unknown_outcome(
                    f"claiming the manifest container={self._container_id}", error
                ) from error

    def _check_ownership(self, manifest: Manifest, log_id: bytes, follows: bytes) -> None:
        if follows and manifest.log_id == follows:
            log_id = follows
        for what, mine, recorded in (
            ("store id", self._store_id.hex(), manifest.store_id.hex()),
            ("log id", log_id.hex(), manifest.log_id.hex()),
            ("container id", self._container_id, manifest.container_id),
            ("container count", self._container_count, manifest.container_count),
        ):
            if mine != recorded:
                raise InvalidRequestError(
                    f"Tier 2 belongs to another store, or a recovery gave it to another data directory: {what}"
                    f" differs; use the data directory that belongs to it, or another bucket; {_WAY_OUT}"
                    f" container={self._container_id} ours={mine} recorded={recorded}"
                )

    async def _probe(self) -> None:
        """Race conditional puts on a key that is never used again. Raises InvalidRequestError, StorageError."""
        key = self._names.probe(random_id(self._random))
        self._counters.puts += 2 * _RACERS
        try:
            await require_compare_and_set(self._store, key, racers=_RACERS)
        except StorageFullError as error:
            raise unknown_outcome(f"racing puts container={self._container_id}", error) from error
        await self._store.delete(key)
