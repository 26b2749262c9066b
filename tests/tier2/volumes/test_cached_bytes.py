"""What the system is asked to keep in memory of the volumes that are written."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File, SystemFileSystem
from tests.tier2.object_stores.failing_files import CallLog, FailingFile
from tier2.volumes.volume_files import OpenVolume, VolumeFiles

MIB = 1 << 20
PIECE = bytes(4 * MIB)


class NotedFile(FailingFile):
    """Notes which bytes the system was told to forget, and what was not synced then."""

    def __init__(self, file: File, log: CallLog) -> None:
        super().__init__(file, "volume", log)
        self.forgotten: list[tuple[int, int]] = []
        self.begun: list[int] = []
        self.written_end = self.synced_end = 0

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        super().write_at(offset, buffers)
        self.written_end = offset + sum(map(len, buffers))

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        super().write_synced(offset, buffers)
        self.written_end = self.synced_end = offset + sum(map(len, buffers))

    def sync_data(self) -> None:
        super().sync_data()
        self.synced_end = self.written_end

    def start_writeback(self, start: int, length: int) -> None:
        assert start + length == self.written_end, f"{start=} {length=} {self.written_end=}"
        self.begun.append(start)
        super().start_writeback(start, length)

    def drop_page_cache(self, start: int = 0, length: int = 0) -> None:
        assert start + length <= self.synced_end, f"{start=} {length=} {self.synced_end=}"
        self.forgotten.append((start, start + length))
        super().drop_page_cache(start, length)


def opened(tmp_path: Path, *, cached_bytes_max: int) -> tuple[OpenVolume, NotedFile, CallLog]:
    volumes = VolumeFiles(
        str(tmp_path), files=SystemFileSystem(), random=Random(1), engine_id=bytes(16)
    )
    volume = volumes.create(now_ms=0, sequence_first=1)
    log = CallLog()
    file = NotedFile(volume.file, log)
    number, secret = volume.number, volume.secret
    return (
        OpenVolume(number=number, secret=secret, file=file, cached_bytes_max=cached_bytes_max),
        file,
        log,
    )


def test_only_the_newest_bytes_of_a_volume_stay_in_memory(tmp_path: Path) -> None:
    volume, file, _ = opened(tmp_path, cached_bytes_max=16 * MIB)
    for _ in range(10):
        volume.write([PIECE], len(PIECE))
    begins = [begin for begin, _ in file.forgotten]
    ends = [end for _, end in file.forgotten]
    assert begins == [0, *ends[:-1]], "what is forgotten has no gap"
    assert 16 * MIB <= volume.end - ends[-1] < 16 * MIB + 8 * MIB + len(PIECE)
    volume.close()
    assert file.forgotten[-1] == (ends[-1], volume.end)


def test_a_system_that_does_not_take_the_advice_fails_no_write(tmp_path: Path) -> None:
    volume, file, log = opened(tmp_path, cached_bytes_max=0)
    log.fail_verb = "drop_page_cache"
    for _ in range(4):
        volume.write([PIECE], len(PIECE))
    assert file.forgotten
    assert volume.end > 4 * len(PIECE)
    volume.close()


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize(
    ("lengths", "piece_bytes"),
    [
        ([100, 9 * MIB, 0, 3 * MIB + 3, 1, 4 * MIB], 2 * MIB + 13),
        ([16, MIB, 0, 1, 700_000], MIB // 2),
    ],
    ids=["long", "a MB"],
)
def test_the_disk_begins_with_a_long_group_while_the_rest_is_copied(
    tmp_path: Path, lengths: list[int], piece_bytes: int, *, failing: bool
) -> None:
    volume, file, log = opened(tmp_path, cached_bytes_max=1 << 30)
    if failing:
        log.fail_verb = "start_writeback"
    begin, random = volume.end, Random(1)
    buffers = [random.randbytes(length) for length in lengths]
    volume.write([memoryview(buffer) for buffer in buffers], sum(lengths))
    assert file.begun == list(range(begin, volume.end, piece_bytes))
    assert file.synced_end == volume.end == begin + sum(lengths)
    assert file.read_at(begin, sum(lengths)) == b"".join(buffers)
    volume.write([b"short"], 5)
    assert file.begun[-1] < volume.end - 5
    assert file.read_at(volume.end - 5, 10) == b"short"
