"""Bits flip on the platter: what was known to be synced is never served altered, and never silently missing (H45)."""

import asyncio
import logging
from random import Random

import crc32c
import pytest

from segmentstore.contracts.errors import LogCorruptedError
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import PAGE_BYTES, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_image
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.history import History, work
from tests.tier1.file_log.worlds import TINY, SimulatedLogWorld
from tier1.file_log.directory import parse_journal_name
from tier1.file_log.frames import HEADER_BYTES, FrameHeader, FrameKind
from tier1.file_log.recovery import FoundFrame, scan_journal

FLIPS = 6000


def flip(disk: SimulatedDisk, path: str, bit: int) -> None:
    """Turn one bit over; on the platter and in every cache."""
    inode = disk.names[path]
    assert inode is not None
    page, bit_in_page = divmod(bit, PAGE_BYTES * 8)
    content = bytearray(inode.pages[page])
    content[bit_in_page // 8] ^= 1 << bit_in_page % 8
    inode.pages[page] = inode.durable_pages[page] = bytes(content)


async def filled_world(seed: int) -> tuple[SimulatedLogWorld, History]:
    """A log of three epochs, truncated now and then, ended by a mark."""
    world, history, random = SimulatedLogWorld(TINY, seed=seed), History(), Random(seed)
    for _ in range(3):
        log = world.log()
        await log.initialize()
        await work(log, history, random, rounds=6)
        await log.close()
    world.disk = power_cut_image(world.disk, Persistence.EVERYTHING, random)
    return world, history


def current_frames(disk: SimulatedDisk) -> list[FoundFrame]:
    """Frames of each file's newest life, by number; read beside the owner, who is not disturbed."""
    files, path = disk.mount("inspector"), SimulatedLogWorld.path
    found: list[FoundFrame] = []
    for name in files.list(path):
        if parse_journal_name(name) is None:
            continue
        frames = scan_journal(files, f"{path}/{name}", log_id=None).frames
        newest = max(((f.header.epoch, f.header.generation) for f in frames), default=None)
        found += [f for f in frames if (f.header.epoch, f.header.generation) == newest]
    return sorted(found, key=lambda frame: frame.header.number)


def live_frames(disk: SimulatedDisk) -> list[FoundFrame]:
    """Frames whose entries are needed and lie nowhere else; the mark at the end vouches for all of them."""
    found = current_frames(disk)
    frames = [frame.header for frame in found]
    newest = frames[-1]
    assert newest.kind is FrameKind.MARK
    assert newest.synced_number == frames[-2].number
    epochs = [frame for frame in frames if frame.kind is FrameKind.EPOCH]

    def is_needed(frame: FrameHeader) -> bool:
        return (
            frame.entry_count > 0
            and frame.last_address > newest.truncated_up_to
            and all(
                frame.epoch >= later.epoch or frame.number <= later.previous_number
                for later in epochs
            )
        )

    return [frame for frame in found if is_needed(frame.header)]


async def judge_flip(disk: SimulatedDisk, history: History) -> str:
    """What the next owner makes of it."""
    world = SimulatedLogWorld(TINY, disk=disk)
    log = world.log()
    try:
        await log.initialize()
        found = await entries(log)
    except LogCorruptedError:
        return "refused"
    finally:
        await world.kill(log)
    history.judge(found)
    return "harmless"


@pytest.mark.slow
@pytest.mark.simulation
def test_h45_no_flipped_bit_up_to_the_last_mark_is_ever_served() -> None:
    async def main(loop: SimLoop) -> dict[str, int]:
        outcomes = {"refused": 0, "harmless": 0}
        world, history = await filled_world(4)
        random = Random(5)
        frames = [(frame.path, frame.header) for frame in live_frames(world.disk)]
        bits = [
            (path, frame.offset * 8 + bit)
            for path, frame in frames
            for bit in range(frame.length * 8)
        ]
        headers = [
            (path, frame.offset * 8 + bit)
            for path, frame in frames
            for bit in range(HEADER_BYTES * 8)
        ]
        for path, bit in random.sample(headers, FLIPS // 3) + random.sample(bits, FLIPS * 2 // 3):
            damaged = power_cut_image(world.disk, Persistence.EVERYTHING, random)
            flip(damaged, path, bit)
            outcomes[await judge_flip(damaged, history)] += 1
        return outcomes

    outcomes = run_simulation(1, main).result
    assert outcomes == {"refused": FLIPS, "harmless": 0}


def test_h45_a_flip_in_the_mark_itself_costs_nothing() -> None:
    async def main(loop: SimLoop) -> None:
        world, history = await filled_world(4)
        mark = current_frames(world.disk)[-1]
        for bit in range(0, mark.header.length * 8, 97):
            damaged = power_cut_image(world.disk, Persistence.EVERYTHING, Random(bit))
            flip(damaged, mark.path, mark.header.offset * 8 + bit)
            assert await judge_flip(damaged, history) == "harmless"

    run_simulation(1, main)


def test_h45_a_cut_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The frame after the last mark is damaged: that cannot be told from a torn tail, so it must at least be seen."""

    async def main(loop: SimLoop) -> int:
        world = SimulatedLogWorld(TINY)
        log = world.log()
        await log.initialize()
        address = await log.append([b"before"])
        await log.append([b"last"])
        await world.kill(log)
        last = current_frames(world.disk)[-1]
        flip(world.disk, last.path, last.header.offset * 8 + 500)
        successor = world.log()
        await successor.initialize()
        assert await entries(successor) == [(address, b"before")]
        await successor.close()
        return successor.statistics().cut_frames

    with caplog.at_level(logging.WARNING):
        assert run_simulation(1, main).result == 1
    assert "cut a torn tail" in caplog.text


def test_an_idle_log_vouches_for_its_last_entry_within_a_second() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        log = world.log()
        await log.initialize()
        await log.append([b"x"])
        await asyncio.sleep(1)
        await world.kill(log)
        frames = [frame.header for frame in current_frames(world.disk)]
        assert frames[-1].kind is FrameKind.MARK
        assert frames[-1].synced_number == frames[-2].number

    run_simulation(1, main)


def test_a_lost_identity_is_corruption_not_a_new_log() -> None:
    async def main(loop: SimLoop) -> None:
        world, _ = await filled_world(1)
        flip(world.disk, f"{world.path}/identity", 70)
        log = world.log()
        with pytest.raises(LogCorruptedError):
            await log.initialize()

    run_simulation(1, main)


@pytest.mark.parametrize("of_another", [False, True])
def test_h7_journals_without_their_identity_are_kept_and_refused(of_another: bool) -> None:
    """Somebody tidied up, or put the identity of another store's log beside them."""

    async def main(loop: SimLoop) -> None:
        world, _ = await filled_world(1)
        identity = f"{world.path}/identity"
        if of_another:
            other, _ = await filled_world(2)
            world.disk.names[identity] = other.disk.names[identity]
        else:
            del world.disk.names[identity]
        journals = {frame.path for frame in live_frames(world.disk)}
        for _ in range(2):
            with pytest.raises(LogCorruptedError, match="segmentstore recover --from-tier2"):
                await world.log().initialize()
        assert journals <= world.disk.names.keys()

    run_simulation(1, main)


def write_as_another_release(disk: SimulatedDisk, path: str, magic_and_version: bytes) -> None:
    """The frame at the start of a file, in a format that begins like this; the file's other frames are gone."""
    inode = disk.names[path]
    assert inode is not None
    for page, content in list(inode.pages.items()):
        written = bytes(len(content))
        if page == 0:
            fields = magic_and_version + content[len(magic_and_version) : HEADER_BYTES - 4]
            checksum = crc32c.crc32c(fields).to_bytes(4, "little")
            written = fields + checksum + content[HEADER_BYTES:]
        inode.pages[page] = inode.durable_pages[page] = written


@pytest.mark.parametrize("magic_and_version", [b"SJF1\x02", b"SJF2\x01"])
@pytest.mark.parametrize("which", ["all", "newest"])
def test_h7_journals_of_another_release_are_kept_and_refused(
    magic_and_version: bytes, which: str
) -> None:
    """A newer one was here, and the one before it is put back."""

    async def main(loop: SimLoop) -> None:
        world, _ = await filled_world(1)
        journals = sorted({frame.path for frame in current_frames(world.disk)})
        for path in journals if which == "all" else journals[-1:]:
            write_as_another_release(world.disk, path, magic_and_version)
        for _ in range(2):
            with pytest.raises(LogCorruptedError, match="another release"):
                await world.log().initialize()
        assert set(journals) <= world.disk.names.keys()

    run_simulation(1, main)


def test_a_missing_file_in_the_middle_is_corruption() -> None:
    async def main(loop: SimLoop) -> None:
        world, _ = await filled_world(4)
        paths = sorted({frame.path for frame in live_frames(world.disk)})
        for path in paths[:-1]:
            damaged = power_cut_image(world.disk, Persistence.EVERYTHING, Random(1))
            del damaged.names[path]
            log = SimulatedLogWorld(TINY, disk=damaged).log()
            with pytest.raises(LogCorruptedError, match="segmentstore recover --from-tier2"):
                await log.initialize()
        assert len(paths) > 1

    run_simulation(1, main)
