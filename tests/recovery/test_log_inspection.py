"""A log is looked at while its owner writes it: what it has moved on to meanwhile is no damage."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from containers.log.data_frame import encode_frame
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import Epoch, SequenceNumber
from segmentstore.recovery import log_inspection
from segmentstore.recovery.log_inspection import LogInspection, log_directories
from segmentstore.runtime.files import FileSystem, SystemFileSystem
from tests.tier1.file_log.worlds import TINY
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.recovery import FoundFrame, ScannedJournal, read_frame, scan_journal


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[FileDurableDataLog]:
    """With a spare file."""
    path = tmp_path / "container-0000"
    log = FileDurableDataLog(
        str(path), files=SystemFileSystem(), executor=None, random=Random(1), settings=TINY
    )
    await log.initialize()
    while len(list(path.glob("journal-*"))) < 2:
        await asyncio.sleep(0.001)
    yield log
    await log.close()


async def test_frames_that_were_written_behind_the_look_at_their_file_are_no_damage(
    tmp_path: Path, log: FileDurableDataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner fills one file, which was looked at, and goes on in the next one, which was not."""
    await log.append([bytes(4000)])
    loop = asyncio.get_running_loop()
    looked_at: list[str] = []

    async def go_on() -> None:
        for _ in range(8):
            await log.append([bytes(4000)])

    def scan(files: FileSystem, path: str, *, log_id: bytes | None) -> ScannedJournal:
        found = scan_journal(files, path, log_id=log_id)
        looked_at.append(path)
        if len(looked_at) == 1:
            asyncio.run_coroutine_threadsafe(go_on(), loop).result(60)
        return found

    monkeypatch.setattr(log_inspection, "scan_journal", scan)
    inspection = await asyncio.to_thread(LogInspection, tmp_path / "container-0000")
    rows = list(inspection.frame_rows())
    assert sum(int(row["entries"] or 0) for row in rows) == 9


async def test_operations_go_on_behind_files_that_were_given_up_since_the_first_was_read(
    tmp_path: Path, log: FileDurableDataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = []
    for number in range(24):
        frame = encode_frame(
            [],
            payload_length=0,
            leading_bytes=0,
            frame_number=number,
            epoch=Epoch(1),
            last_started=SequenceNumber(1),
        )
        addresses.append(await log.append(frame))
    inspection = await asyncio.to_thread(LogInspection, tmp_path / "container-0000")
    loop = asyncio.get_running_loop()
    read: list[FoundFrame] = []
    gone: list[FoundFrame] = []

    def read_and_truncate(
        files: FileSystem, frame: FoundFrame
    ) -> list[tuple[int, memoryview]] | None:
        found = read_frame(files, frame)
        (gone if found is None else read).append(frame)
        if len(read) == 1:
            truncation = log.truncate(addresses[18])
            asyncio.run_coroutine_threadsafe(truncation, loop).result(60)
        return found

    monkeypatch.setattr(log_inspection, "read_frame", read_and_truncate)
    assert await asyncio.to_thread(list, inspection.operation_rows()) == []
    assert gone
    assert read[-1].header.last_address == addresses[-1]


def test_a_container_that_a_store_does_not_have_is_named(tmp_path: Path) -> None:
    """The directory is the right one: it was told to be none with logs."""
    (tmp_path / "tier1" / "container-0000").mkdir(parents=True)
    with pytest.raises(InvalidRequestError, match="there is no log of this container container=99"):
        log_directories(tmp_path, 99)
