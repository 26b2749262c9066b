"""Tier 2 of one container, as its owner uses it: segmentstore/contracts/storage.py over an object store.

- Nothing is read or written before claim(); afterwards every manifest change goes through one OwnedManifest and its
  lock.
- A merge of SSTs works beside publications and takes the lock for its commit only.
- After StorageNotPrimaryError or ServiceHaltError nothing is ever published again by this object.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.errors import (
    SegmentStoreError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView, ContainerId, Epoch
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import (
    ClaimedManifest,
    KeptBytes,
    Publication,
    SnapshotInfo,
    StorageStatistics,
    SwapProposal,
)
from segmentstore.runtime.clock import WallClock
from tier2.maintenance.chunk_swap import ExternalSwaps
from tier2.maintenance.compaction import Compactor
from tier2.maintenance.compaction_candidates import CompactionCandidates
from tier2.maintenance.garbage_collection import (
    collect_garbage,
    repack_one,
    sweep_orphans,
)
from tier2.maintenance.scrub import Scrubber
from tier2.maintenance.sst_merge import merge_ssts
from tier2.manifest.claim import Claim, ManifestClaimer
from tier2.manifest.view import ManifestView
from tier2.publish.owned_manifest import (
    OwnedManifest,
    drop_snapshot,
    prove_snapshot,
    take_snapshot,
)
from tier2.publish.publish import publish
from tier2.read.components import Components
from tier2.read.published_segments import PublishedSegments
from tier2.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a claim makes, all at once."""

    owned: OwnedManifest
    compactor: Compactor
    external_swaps: ExternalSwaps
    scrubber: Scrubber


class TieredStorage(PublishedSegments):
    """The owner's Storage. `store_id`: sixteen bytes that name the whole store, the same for all its containers."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        store_id: bytes,
        container_id: ContainerId,
        container_count: int,
        settings: StorageSettings,
        wall_clock: WallClock,
        random: Random,
        executor: Executor | None,
        readers: Executor | None = None,
    ) -> None:
        self._container_id = container_id
        self._settings = settings
        super().__init__(
            components=Components(
                object_store=object_store,
                container_id=container_id,
                settings=settings,
                executor=executor,
                readers=readers,
            )
        )
        self._wall_clock = wall_clock
        self._random = random
        self._claimer = ManifestClaimer(
            object_store=object_store,
            names=self._components.names,
            counters=self._components.counters,
            store_id=store_id,
            container_id=container_id,
            container_count=container_count,
            random=random,
        )
        self._claim: _Claim | None = None
        self._claim_failure = ""
        self._merging = asyncio.Lock()

    @property
    def view(self) -> ManifestView:
        """What readers look through now."""
        return self._claimed().view

    async def refresh(self) -> ManifestView:
        """The owner's view is the newest, unless it is fenced: then what it misses was the new owner's to delete.

        Raises StorageNotPrimaryError.
        """
        owned = self._claimed()
        await owned.publisher.require_owner()
        return owned.view

    def _claimed(self) -> OwnedManifest:
        return self._require_claim().owned

    def _require_claim(self) -> _Claim:
        if self._claim is None:
            raise StorageError(
                f"Tier 2 has not answered since the start container={self._container_id}"
                f" (it is asked again and again): {self._claim_failure or 'not asked yet'}"
            )
        return self._claim

    async def claim(self, *, epoch: Epoch, log_id: bytes, follows: bytes = b"") -> ClaimedManifest:
        assert self._claim is None, f"claimed twice container={self._container_id} epoch={epoch}"
        try:
            claim = await self._claimed_in_time(epoch, log_id, follows)
        except SegmentStoreError as error:
            self._claim_failure = str(error)
            raise
        manifest = claim.manifest
        candidates = CompactionCandidates(self._settings)
        owned = OwnedManifest(
            components=self._components,
            segments=self,
            claim=claim,
            wall_clock=self._wall_clock,
            random=self._random,
            grew=candidates.grew,
        )
        self._claim = _Claim(
            owned=owned,
            compactor=Compactor(
                owned=owned,
                candidates=candidates,
                segments=self,
                components=self._components,
            ),
            external_swaps=ExternalSwaps(owned=owned, segments=self, components=self._components),
            scrubber=Scrubber(
                owned=owned,
                segments=self,
                components=self._components,
                wall_clock=self._wall_clock,
            ),
        )
        return ClaimedManifest(
            created=claim.created,
            was_ours=claim.was_ours,
            epoch=manifest.epoch,
            version=manifest.version,
            changes=manifest.changes,
            highest_segment_id=manifest.highest_segment_id,
            highest_sequence_number=manifest.highest_sequence_number,
        )

    async def _claimed_in_time(self, epoch: Epoch, log_id: bytes, follows: bytes) -> Claim:
        """Requests whose answers are lost on the way would hold a start up for minutes, and the container has a log."""
        seconds_max = self._settings.claim_seconds_max
        try:
            async with asyncio.timeout(seconds_max):
                return await self._claimer.claim(epoch=epoch, log_id=log_id, follows=follows)
        except TimeoutError as error:
            # What was sent may still arrive: the claimer knows it by its nonce.
            raise StorageUnavailableError(
                f"the manifest was not claimed in time seconds_max={seconds_max:g}"
                f" container={self._container_id}",
                state="unavailable",
            ) from error

    @property
    def root_changes(self) -> int:
        return self._claimed().manifest.changes

    async def publish(self, publication: Publication) -> None:
        owned = self._claimed()
        if len(owned.manifest.ssts) >= self._settings.sst_count_max:
            await self.maintain()
        async with owned.lock:
            await publish(
                publication,
                owned=owned,
                segments=self,
                components=self._components,
            )

    async def collect_garbage(self) -> int:
        return await collect_garbage(owned=self._claimed(), components=self._components)

    async def sweep_orphans(self) -> None:
        await sweep_orphans(owned=self._claimed(), components=self._components)

    async def maintain(self) -> bool:
        async with self._merging:
            claim, components = self._require_claim(), self._components
            owned = claim.owned
            return (
                await merge_ssts(owned=owned, components=components)
                or await repack_one(owned=owned, segments=self, components=components)
                or await claim.compactor.step()
            )

    async def scrub(self, kept: KeptBytes) -> bool:
        scrubber = self._require_claim().scrubber
        async with self._merging:
            return await scrubber.step(kept)

    def reserve_object_keys(self, count: int) -> list[str]:
        """Keys under which a process beside the owner may upload chunks for a proposal. Raises StoreFullError."""
        return self._require_claim().external_swaps.reserve(count)

    def release_object_keys(self, keys: Sequence[str]) -> None:
        """Keys that were given out and will not be used; whatever lies under them is garbage."""
        self._require_claim().external_swaps.release(keys)

    async def upload_reserved(self, key: str, content: BufferView) -> None:
        """Store an object under a key that was given out and not used yet. Raises SwapRefusedError, StorageError."""
        await self._require_claim().external_swaps.upload(key, content)

    async def propose_swap(self, proposal: SwapProposal) -> None:
        """Check a swap that another process prepared, and publish it.

        Raises SwapRefusedError with the reason, and what publish() raises.
        """
        await self._require_claim().external_swaps.propose(proposal)

    async def create_snapshot(self, name: str, *, is_proved: bool = True) -> SnapshotInfo:
        snapshot = await take_snapshot(
            name, owned=self._claimed(), now_ms=self._wall_clock.now_ms(), is_proved=is_proved
        )
        return snapshot.described()

    async def prove_snapshot(self, name: str, version: int) -> bool:
        return await prove_snapshot(name, version, owned=self._claimed())

    async def delete_snapshot(self, name: str) -> bool:
        return await drop_snapshot(name, owned=self._claimed())

    async def snapshots(self) -> Sequence[SnapshotInfo]:
        return [snapshot.described() for snapshot in await self._claimed().snapshots()]

    async def close(self) -> None:
        """Nothing to finish: what was published is durable, and an open attempt belongs to the next claim."""

    def statistics(self) -> StorageStatistics:
        owned = None if self._claim is None else self._claim.owned
        return self._components.counters.snapshot(
            root_version=0 if owned is None else owned.manifest.version,
            run_count=0 if owned is None else len(owned.manifest.ssts),
            garbage_objects=0 if owned is None else owned.garbage_count,
        )

    def check(self) -> None:
        """Prove the manifest's and the caches' invariants. O(what is cached)."""
        self._components.check()
        super().check()
        if self._claim is not None:
            owned = self._claim.owned
            owned.manifest.check()
            assert owned.view.manifest is owned.manifest, "view and manifest are different versions"
