"""What a process that does not own Tier 2 may know of it: the one module of this package that Spark imports.

| question | answered by |
|---|---|
| which containers, segments, layouts and bytes there are | StoreReader, ContainerReader, SegmentLayout, LayoutEntry |
| the same under one manifest | SnapshotReader |
| what a block's bytes say | decode_block, decode_records, read_record_file_index and what it gives |
| where objects are, and where the bytes of one lie | open_place, locate_objects, ObjectLocation |
| whether images, files and containers are sound | prove_images, damages_of_registered_file, verify_container |
| chunks in the place of chunks | rewrite_chunks, proposed_images |

Invariants:

- Nothing here changes a manifest. What is written are objects under keys that the owner gave out.
- What reads of segments need is imported with this module. What else there is, is imported when it is first asked for:
  together it would cost each Python process of Spark 60 ms of CPU more (measured beside 500 ms of a task's imports).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tier2.format.block import decode_block
from tier2.format.chunk_format import (
    BLOCK_CHECKSUM_BYTES,
    BlockEntry,
    ChunkIndex,
    Compression,
    EventInformation,
)
from tier2.format.records import decode_records
from tier2.layout_entry import LayoutEntry
from tier2.object_stores.object_locations import ObjectLocation, locate_objects
from tier2.object_stores.places import holds_volumes, is_remote, open_place
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader, SegmentLayout, SnapshotReader, StoreReader

if TYPE_CHECKING:
    from tier2.maintenance.chunk_rewriting import proposed_images, rewrite_chunks
    from tier2.offline.image_proof import ExamineBlock, ImageProof, SegmentImage, prove_images
    from tier2.offline.record_file_proof import damages_of_registered_file
    from tier2.offline.verify import VerifyReport, verify_container
    from tier2.read.record_file_index import (
        ReadChecked,
        RecordFileIndex,
        batches_of_stored_block,
        read_checked,
        read_record_file_index,
    )

__all__ = [
    "BLOCK_CHECKSUM_BYTES",
    "BlockEntry",
    "ChunkIndex",
    "Compression",
    "ContainerReader",
    "EventInformation",
    "ExamineBlock",
    "ImageProof",
    "LayoutEntry",
    "ObjectLocation",
    "ReadChecked",
    "RecordFileIndex",
    "SegmentImage",
    "SegmentLayout",
    "SnapshotReader",
    "StorageSettings",
    "StoreReader",
    "VerifyReport",
    "batches_of_stored_block",
    "damages_of_registered_file",
    "decode_block",
    "decode_records",
    "holds_volumes",
    "is_remote",
    "locate_objects",
    "open_place",
    "proposed_images",
    "prove_images",
    "read_checked",
    "read_record_file_index",
    "rewrite_chunks",
    "verify_container",
]

_IMPORTED_WHEN_USED: Final = {
    "tier2.maintenance.chunk_rewriting": ("proposed_images", "rewrite_chunks"),
    "tier2.offline.image_proof": ("ExamineBlock", "ImageProof", "SegmentImage", "prove_images"),
    "tier2.offline.record_file_proof": ("damages_of_registered_file",),
    "tier2.offline.verify": ("VerifyReport", "verify_container"),
    "tier2.read.record_file_index": (
        "ReadChecked",
        "RecordFileIndex",
        "batches_of_stored_block",
        "read_checked",
        "read_record_file_index",
    ),
}
_MODULE_OF: Final = {
    name: module for module, names in _IMPORTED_WHEN_USED.items() for name in names
}


def __getattr__(name: str) -> object:
    """A name that is imported when it is first asked for."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
