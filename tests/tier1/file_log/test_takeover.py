"""Another process takes the log while its owner stands still, dies, or has writes on their way (H33, H46, H47)."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.errors import (
    DurableDataLogError,
    LogInUseError,
    LogNotPrimaryError,
)
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import Boundary
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.history import History, work
from tests.tier1.file_log.worlds import TINY, SimulatedLogWorld
from tier1.file_log.directory import LogDirectory, parse_journal_name
from tier1.file_log.log import FileDurableDataLog


async def own(world: SimulatedLogWorld, history: History, seed: int) -> None:
    """A process: take the log over, read it, write until fenced."""
    log = world.take_over()
    try:
        before = history.snapshot()
        await log.initialize()
        served = await entries(log)
        # It may be fenced by now: then it has missed what came after it began, but nothing from before.
        before.submitted = history.submitted
        before.truncation_asked = history.truncation_asked
        before.judge(served)
        history.served = [*history.served, *served]
        await work(log, history, Random(seed), rounds=400)
    except DurableDataLogError:
        pass
    finally:
        await log.close()


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(60))
def test_h47_a_paused_owner_acknowledges_nothing_that_its_successor_does_not_have(
    seed: int,
) -> None:
    """Owners are paused, taken over and resumed at any moment; a recovery holds all that was acknowledged before it."""

    async def main(loop: SimLoop) -> None:
        world, history = SimulatedLogWorld(TINY, seed=seed), History()
        nodes = []
        for number in range(6):
            node = loop.start(f"owner{number}", own(world, history, seed * 100 + number))
            nodes.append(node)
            await asyncio.sleep(loop.random.expovariate(20))
            loop.pause(node)
            if number and loop.random.random() < 0.7:
                loop.resume(nodes[number - 1])
        for node in nodes[:-1]:
            loop.resume(node)
        await asyncio.sleep(0.1)
        for node in nodes:
            loop.crash(node)
        world.disk.lose_power(loop.random)
        last = SimulatedLogWorld(TINY, disk=world.disk, seed=seed + 1).log()
        await last.initialize()
        history.judge(await entries(last))
        await last.close()

    run_simulation(seed, main)


def test_h46_a_process_writes_and_recycles_only_files_that_it_created() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(TINY)
        epoch = 0

        def check(boundary: Boundary) -> None:
            name = parse_journal_name(boundary.path.rpartition("/")[2])
            if name is not None and boundary.kind in ("write", "truncate"):
                assert name.epoch == epoch, f"epoch {epoch} made {boundary}"

        world.disk.on_boundary = check
        history = History()
        for number in range(4):
            log = world.log()
            epoch = number + 1
            await log.initialize()
            await work(log, history, Random(number), rounds=20)
            await log.close()

    run_simulation(1, main)


def test_h46_a_new_owner_removes_the_files_of_earlier_ones_once_they_are_truncated() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(TINY)
        old = world.log()
        await old.initialize()
        addresses = [await old.append([bytes(5000)]) for _ in range(30)]
        await world.kill(old)
        new = world.log()
        await new.initialize()
        inspector = world.disk.mount("inspector")
        await new.truncate(addresses[-1])
        names = [parse_journal_name(name) for name in inspector.list(world.path)]
        assert {name.epoch for name in names if name is not None} == {2}
        await new.close()

    run_simulation(1, main)


def test_a_second_process_is_refused_in_words_while_the_first_stands_still() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        first = world.log()
        await first.initialize()
        with pytest.raises(LogInUseError, match="pid 1"):
            await world.log().initialize()
        assert await first.append([b"not disturbed"])
        await world.kill(first)
        assert await world.log().initialize() == 2

    run_simulation(1, main)


def test_h40_h79_a_write_of_a_dead_process_that_lands_late_is_ignored() -> None:
    """It dies in the write of a frame; the next owner sees the end without it; then it lands, whole and valid."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(TINY)
        old = world.log()
        await old.initialize()
        first = await old.append([b"acknowledged"])
        world.mount_of(old).dies_in_next_write = True
        with pytest.raises(DurableDataLogError):
            await old.append([b"never acknowledged"])
        await old.close()
        new = world.log()
        await new.initialize()
        assert await entries(new) == [(first, b"acknowledged")]
        second = await new.append([b"of the new owner"])
        world.disk.land_writes_of_the_dead()
        assert not world.disk.writes_of_the_dead
        await world.kill(new)
        for _ in range(2):
            third = world.log()
            await third.initialize()
            assert await entries(third) == [
                (first, b"acknowledged"),
                (second, b"of the new owner"),
            ]
            await world.kill(third)

    run_simulation(1, main)


def test_h33_epochs_grow_even_if_somebody_tidied_the_epoch_files_up() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        for _ in range(3):
            log = world.log()
            await log.initialize()
            await log.append([b"x"])
            await log.close()
        tidy = world.disk.mount("tidy")
        tidy.remove(f"{world.path}/epoch-{3:010d}")
        assert await world.log().initialize() == 4

    run_simulation(1, main)


def test_h33_addresses_continue_above_those_of_frames_that_were_cut() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(TINY)
        log = world.log()
        await log.initialize()
        await log.append([b"kept"])
        mount = world.mount_of(log)
        # The second page of the last frame is torn off: its header says 2, its body is broken.
        lost = await log.append([bytes(range(256)) * 31])
        journal = log._writer.journals[-1]  # type: ignore[union-attr] # initialised above
        assert journal.file is not None
        journal.file.write_at(journal.position - 4096, [bytes(4096)])
        mount.kill(late_writes=0)
        await log.close()
        successor = world.log()
        await successor.initialize()
        assert [payload for _, payload in await entries(successor)] == [b"kept"]
        assert successor.statistics().cut_frames == 1
        assert await successor.append([b"next"]) > lost
        await successor.close()

    run_simulation(1, main)


@pytest.mark.parametrize("moment", ["write", "sync"])
def test_h47_an_epoch_claimed_while_the_owner_writes_or_syncs_takes_its_ack(moment: str) -> None:
    """The check counts only if it is made after the sync."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        owner = world.log()
        await owner.initialize()
        await owner.append([b"x"])
        other = LogDirectory(
            world.path, files=world.disk.mount("other"), random=Random(9), owner=""
        )
        claimed = False

        def claim(boundary: Boundary) -> None:
            nonlocal claimed
            if boundary.kind == moment and "journal" in boundary.path and not claimed:
                claimed = True
                other.claim_epoch(floor=0)

        world.disk.on_boundary = claim
        with pytest.raises(LogNotPrimaryError):
            await owner.append([b"y"])
        await owner.close()

    run_simulation(1, main)


def test_h47_an_owner_whose_unfinished_file_is_removed_under_it_reports_the_takeover() -> None:
    """The new owner tidies up what the old one is still filling: no disk has failed."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(replace(TINY, spare_journals=2))
        other_files = world.disk.mount("other")
        other = LogDirectory(world.path, files=other_files, random=Random(9), owner="")
        removed: list[str] = []

        def tidy(boundary: Boundary) -> None:
            if boundary.kind == "write" and boundary.path.endswith("-000003") and not removed:
                removed.append(boundary.path)
                other.claim_epoch(floor=0)
                other_files.remove(boundary.path)

        world.disk.on_boundary = tidy
        owner = world.log()
        await owner.initialize()
        await asyncio.sleep(1)
        assert removed
        with pytest.raises(LogNotPrimaryError):
            await owner.append([b"x"])
        await owner.close()

    run_simulation(1, main)


def test_h47_two_processes_never_claim_one_epoch() -> None:
    """Both list the epochs before either creates its own: exclusive creation lets one of them through."""
    world = SimulatedLogWorld()
    directories = [
        LogDirectory(world.path, files=world.disk.mount(f"p{n}"), random=Random(n), owner="")
        for n in range(2)
    ]
    directories[0].lock(takeover=True)
    raced = False

    def race(boundary: Boundary) -> None:
        nonlocal raced
        if boundary.kind == "create" and not raced:
            raced = True
            assert directories[1].claim_epoch(floor=0) == 2

    world.disk.on_boundary = race
    with pytest.raises(LogNotPrimaryError):
        directories[0].claim_epoch(floor=0)
    directories[1].check_epoch()


def test_h47_a_fenced_owner_notices_also_when_two_epochs_have_passed() -> None:
    world = SimulatedLogWorld()
    first, second, third = (
        LogDirectory(world.path, files=world.disk.mount(f"p{n}"), random=Random(n), owner="")
        for n in range(3)
    )
    first.lock(takeover=True)
    first.claim_epoch(floor=0)
    first.check_epoch()
    second.claim_epoch(floor=0)
    with pytest.raises(LogNotPrimaryError):
        first.check_epoch()
    third.claim_epoch(floor=0)
    for fenced in (first, second):
        with pytest.raises(LogNotPrimaryError):
            fenced.check_epoch()
    third.check_epoch()


def test_h47_whoever_claims_has_fenced_every_earlier_owner_before_it_reads() -> None:
    """One look at its own name tells an owner that it may have been read: the name goes before the claim is given."""
    world = SimulatedLogWorld()
    first, second = (
        LogDirectory(world.path, files=world.disk.mount(f"p{n}"), random=Random(n), owner="")
        for n in range(2)
    )
    first.lock(takeover=True)
    first.claim_epoch(floor=0)
    alive: list[str] = []

    def look(boundary: Boundary) -> None:
        if boundary.kind in ("create", "remove"):
            try:
                first.check_epoch()
            except LogNotPrimaryError:
                alive.append("fenced")
            else:
                alive.append("owner")

    world.disk.on_boundary = look
    second.claim_epoch(floor=0)
    world.disk.on_boundary = None
    assert alive[0] == "owner", "a claim that has not begun fences nobody"
    with pytest.raises(LogNotPrimaryError):
        first.check_epoch()
    second.check_epoch()


def test_a_log_closed_while_it_opens_stays_closed_and_frees_the_lock() -> None:
    async def main(loop: SimLoop) -> None:
        for steps in range(1, 60):
            world = SimulatedLogWorld(seed=steps)
            log: FileDurableDataLog = world.log()
            opening = loop.create_task(log.initialize())
            for _ in range(steps):
                await asyncio.sleep(0.0005)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await log.close()
            successor = world.log()
            assert await successor.initialize() <= 2
            await successor.close()

    run_simulation(1, main)


def test_h47_an_owner_that_was_taken_over_while_it_opened_reports_that_and_no_damage() -> None:
    """Its successor has removed the files that it is about to read, and nobody is to disable a log for that."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(replace(TINY, copy_bytes_max=1 << 20))
        first = world.take_over()
        await first.initialize()
        for number in range(20):
            await first.append([number.to_bytes(4, "little")])
        await first.close()
        late = world.take_over()
        await late.initialize()
        successor = world.take_over()
        await successor.initialize()
        assert len(await entries(successor)) == 20
        with pytest.raises(LogNotPrimaryError):
            await entries(late)
        await late.disable("it missed something")
        await late.close()
        await successor.close()
        again = world.take_over()
        await again.initialize()
        await again.close()

    run_simulation(1, main)
