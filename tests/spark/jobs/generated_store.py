"""A Tier 2 of plain files with streams of events in it, as its owners publish them: what the jobs work on."""

import asyncio
import copy
import shutil
import struct
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from segmentstore.contracts.identifiers import ContainerId, Epoch, SegmentId, SequenceNumber
from segmentstore.contracts.storage import (
    DataPiece,
    Publication,
    RunEvents,
    SegmentPublication,
    SegmentRecord,
)
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

R = TypeVar("R")

START_MS = 1_760_000_000_000
CONTAINERS = 2
LOG_ID = b"\x22" * 16
STORE_ID = b"\x33" * 16
SETTINGS = StorageSettings(
    chunk_bytes_max=64 << 10,
    solo_chunk_bytes_min=32 << 10,
    pack_bytes_max=64 << 10,
    compaction_bytes_per_second=0,
)


def frame(content: bytes) -> bytes:
    return struct.pack(">ii", 0, len(content)) + content


@dataclass
class GeneratedSegment:
    """What was published of one segment."""

    container: int
    segment_id: int
    name: str
    events: list[bytes] = field(default_factory=list)
    content: bytes = b""
    sealed: bool = False


class GeneratedStore:
    """Owners of two containers over one directory; every call opens and closes what it needs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segments: dict[str, GeneratedSegment] = {}
        self._sequence = 0
        self._epoch = 0
        self._random = Random(20_261_121)

    @property
    def place(self) -> str:
        return str(self.directory)

    def fill(self, *, streams: int = 2, segments: int = 2, rounds: int = 6) -> None:
        """Some rounds of appends to each segment of each stream; events of 20 to 3,000 bytes, some times apart."""
        names = [
            (f"demo/stream{stream}/{number}.#epoch.0", (stream + number) % CONTAINERS)
            for stream in range(streams)
            for number in range(segments)
        ]
        rounds_of: dict[int, list[Publication]] = {}
        for round_number in range(rounds):
            for name, container in names:
                batch = [
                    self._random.randbytes(self._random.randrange(10, 1500)).hex().encode()
                    for _ in range(self._random.randrange(5, 40))
                ]
                at_ms = START_MS + round_number * 60_000
                rounds_of.setdefault(container, []).append(
                    self._appended(name, container, [frame(event) for event in batch], at_ms, batch)
                )
        for container, publications in rounds_of.items():
            self._publish(container, publications)

    def append(
        self, name: str, container: int, events: Sequence[bytes], *, at_ms: int, seal: bool = False
    ) -> None:
        """One flush round."""
        runs = [frame(event) for event in events]
        self._publish(container, [self._appended(name, container, runs, at_ms, events, seal=seal)])

    def append_raw(self, name: str, container: int, run: bytes, *, at_ms: int) -> None:
        """Bytes that are said to be one event, whatever they are."""
        self._publish(container, [self._appended(name, container, [run], at_ms, [run])])

    def _publish(self, container: int, publications: Sequence[Publication]) -> None:
        async def publish(owner: TieredStorage) -> None:
            for publication in publications:
                await owner.publish(publication)

        self.with_owner(container, publish)

    def _appended(
        self,
        name: str,
        container: int,
        runs: Sequence[bytes],
        at_ms: int,
        events: Sequence[bytes],
        *,
        seal: bool = False,
    ) -> Publication:
        segment = self.segments.setdefault(
            name, GeneratedSegment(container, len(self.segments) + 1, name)
        )
        first = len(segment.events)
        described = [
            RunEvents(first + number, at_ms + number, at_ms + number + 5)
            for number in range(len(runs))
        ]
        piece = DataPiece(len(segment.content), runs, described)
        segment.events += events
        segment.content += b"".join(runs)
        segment.sealed = seal
        self._sequence += 1
        record = SegmentRecord(
            segment_id=SegmentId(segment.segment_id),
            name=name,
            start_offset=0,
            length=len(segment.content),
            sealed=seal,
            last_modified_ms=at_ms,
            sequence_number=SequenceNumber(self._sequence),
        )
        return Publication(
            segments=[SegmentPublication(record=record, pieces=[piece] if runs else [])],
            highest_segment_id=SegmentId(100),
            highest_sequence_number=SequenceNumber(self._sequence),
        )

    def with_owner(
        self,
        container: int,
        work: Callable[[TieredStorage], Awaitable[R]],
        settings: StorageSettings = SETTINGS,
    ) -> R:
        """Under a new claim."""

        async def run() -> R:
            with ThreadPoolExecutor(2) as executor:
                store = FilesystemObjectStore(
                    str(self.directory),
                    files=SystemFileSystem(),
                    executor=executor,
                    random=system_random(),
                )
                await store.start()
                self._epoch += 1
                owner = TieredStorage(
                    object_store=store,
                    store_id=STORE_ID,
                    container_id=ContainerId(container),
                    container_count=CONTAINERS,
                    settings=settings,
                    wall_clock=SystemWallClock(),
                    random=system_random(),
                    executor=executor,
                )
                await owner.claim(epoch=Epoch(self._epoch), log_id=LOG_ID)
                try:
                    return await work(owner)
                finally:
                    await owner.close()
                    await store.close()

        return asyncio.run(run())

    def copied_to(self, directory: Path) -> "GeneratedStore":
        """The same store elsewhere, to be damaged at will."""
        shutil.copytree(self.directory, directory)
        other = GeneratedStore(directory)
        other.segments = copy.deepcopy(self.segments)
        other._sequence, other._epoch = self._sequence, self._epoch
        return other

    @property
    def epoch(self) -> int:
        """Of the last claim."""
        return self._epoch

    def chunk_files(self) -> list[Path]:
        return sorted(self.directory.glob("objects/containers/*/chunks/*"))
