"""What the system is asked to keep in memory of the volumes that are written."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

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
        self.written_end = self.synced_end = 0

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        super().write_at(offset, buffers)
        self.written_end = offset + sum(map(len, buffers))

    def sync_data(self) -> None:
        super().sync_data()
        self.synced_end = self.written_end

    def forget_cached(self, start: int = 0, length: int = 0) -> None:
        assert start + length <= self.synced_end, f"{start=} {length=} {self.synced_end=}"
        self.forgotten.append((start, start + length))
        super().forget_cached(start, length)


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
    log.fail_verb = "forget_cached"
    for _ in range(4):
        volume.write([PIECE], len(PIECE))
    assert file.forgotten
    assert volume.end > 4 * len(PIECE)
    volume.close()
