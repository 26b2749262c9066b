"""`log inspect` sees a log as it lies on the disk, also while somebody writes it."""

from segmentstore.runtime.files import FileSystem
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.worlds import SimulatedLogWorld
from tier1.file_log.frames import FrameKind
from tier1.file_log.inspection import inspect_files, inspect_log


def test_a_log_is_inspected_while_its_owner_writes() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        log = world.log()
        await log.initialize()
        for number in range(3):
            await log.append([bytes([number])])
        files: FileSystem = world.disk.mount("inspector")
        boundaries = world.disk.boundaries
        seen = inspect_log(files, world.path)
        assert (seen.log_id, seen.epoch, seen.disabled, seen.owner) == (
            log.log_id,
            1,
            False,
            "pid 1",
        )
        frames = [frame for file in inspect_files(files, world.path) for frame in file.frames]
        assert frames[0].kind is FrameKind.EPOCH
        assert all(frame.valid and frame.current for frame in frames)
        entries = [frame for frame in frames if frame.kind is FrameKind.ENTRIES]
        assert [(f.first_address, f.last_address, f.entry_count) for f in entries] == [
            (1, 1, 1),
            (2, 2, 1),
            (3, 3, 1),
        ]
        assert world.disk.boundaries == boundaries, "inspection changed the disk"
        assert await log.append([b"not disturbed"]) == 4
        await log.close()

    run_simulation(1, main)


def test_a_broken_frame_shows_as_invalid_and_a_disabled_log_as_disabled() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        log = world.log()
        await log.initialize()
        await log.append([b"x" * 10_000])
        await log.disable()
        await log.close()
        files = world.disk.mount("inspector")
        (name,) = [n for n in inspect_log(files, world.path).journal_names if n.endswith("000001")]
        frames = [f for file in inspect_files(files, world.path) for f in file.frames]
        broken = next(frame for frame in frames if frame.kind is FrameKind.ENTRIES)
        file = files.open(f"{world.path}/{name}")
        file.write_at(broken.offset + 5000, [b"\xff"])
        again = [f for file in inspect_files(files, world.path) for f in file.frames]
        assert [frame.offset for frame in again if not frame.valid] == [broken.offset]
        assert inspect_log(files, world.path).disabled

    run_simulation(1, main)


def test_an_empty_directory_holds_no_log() -> None:
    world = SimulatedLogWorld()
    files = world.disk.mount("inspector")
    files.make_directories(world.path)
    seen = inspect_log(files, world.path)
    assert (seen.log_id, seen.epoch, seen.journal_names) == (None, 0, ())
    assert list(inspect_files(files, world.path)) == []
