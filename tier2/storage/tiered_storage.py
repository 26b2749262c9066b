"""Tier 2 of one container, in the hands of its owner: the door segmentstore/contracts/storage.py over an object store.

A publication goes through in this order; each step depends on the one before being durable:

    settle an open attempt -> look up what is published -> plan (pure) -> upload chunks -> find what lost its last
    reference -> upload one run with every change -> replace the root -> forget what changed in the caches

- Root changes happen under one lock. A merge of runs works beside publications and takes the lock for its commit only.
- The view that readers use is replaced in the same stretch in which the root is known to be published.
- After StorageError the objects of an open attempt are left alone (H4, H5); those of a round that never became an
  attempt are recorded as garbage by the next version.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
    Epoch,
    SegmentId,
)
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import (
    ClaimedRoot,
    Publication,
    SegmentRecord,
    StorageRead,
    StorageStatistics,
)
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from tier2.storage.chunk_reads import ChunkReads
from tier2.storage.claim import Claim, RootClaimer
from tier2.storage.container_objects import ContainerObjects
from tier2.storage.counters import StorageCounters
from tier2.storage.garbage import GarbageWatch, OrphanSweep, is_named
from tier2.storage.identity_source import IdentitySource
from tier2.storage.object_names import ObjectNames
from tier2.storage.publication_facts import gather_facts
from tier2.storage.publication_plan import Plan, make_plan
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.root import Root, Run
from tier2.storage.root_publisher import Attempt, ObjectReference, RootPublisher
from tier2.storage.run_files import RunFiles
from tier2.storage.run_keys import garbage_key
from tier2.storage.run_merge import RunMerge
from tier2.storage.run_part import PartImage, RunBuilder
from tier2.storage.run_tiers import MergeChoice, choose_merge
from tier2.storage.run_values import encode_garbage
from tier2.storage.run_view import RunView
from tier2.storage.settings import StorageSettings
from tier2.storage.upload import Uploader, run_bounded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Round:
    """The publication that an attempt carries."""

    publication: Publication
    records: Mapping[SegmentId, bytes | None]


class _Owned:
    """What exists from the claim on."""

    def __init__(
        self,
        publisher: RootPublisher,
        view: RunView,
        identities: IdentitySource,
        sweep: OrphanSweep,
    ) -> None:
        self.publisher = publisher
        self.view = view
        self.identities = identities
        self.sweep = sweep
