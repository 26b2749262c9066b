import asyncio
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from segmentstore.contracts.container_failures import is_corrupt
from segmentstore.contracts.containers import (
    ContainerFailure,
    ContainerState,
)
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    DurableDataLogError,
    LogDisabledError,
    LogNotPrimaryError,
    StorageError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.in_process_assignment import InProcessAssignmentSource
from segmentstore.host.settings import RestartSettings
from tests.host.managed_host import HOST, start_host
from tests.host.scripted_assignments import ScriptedAssignments
from tests.host.simple_container import SimpleContainer
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation
SETTINGS = RestartSettings(
    delay_initial_seconds=1.0,
    delay_max_seconds=8.0,
    forgive_after_seconds=60.0,
    same_failure_count=4,
)
ZERO = ContainerId(0)


def in_process(count: int = 4) -> InProcessAssignmentSource:
    return InProcessAssignmentSource(
        containers=[ContainerId(n) for n in range(count)], settings=SETTINGS
    )


def test_what_runs_converges_to_what_is_assigned() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0, 2)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        assert host.registry.running() == [0, 2]
        assignments.assign(1, 2)
        await asyncio.sleep(1)
        assert host.registry.running() == [1, 2]
        assert len(host.births_of(2)) == 1
        assignments.assign()
        await asyncio.sleep(1)
        assert host.registry.running() == []
        assert assignments.running[-1] == []
        await host.stop()

    run_simulation(1, main)


def test_a_container_that_is_assigned_again_while_it_closes_starts_after_it_has_closed() -> None:
    def slow(container_id: ContainerId) -> SimpleContainer:
        container = SimpleContainer(container_id)
        container.close_seconds = 30.0
        return container

    async def main(loop: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments, slow)
        await host.manager.wait_until_settled()
        assignments.assign()
        await asyncio.sleep(1)
        assignments.assign(0)
        await asyncio.sleep(20)
        assert host.registry.running() == []
        await asyncio.sleep(20)
        assert host.registry.running() == [0]
        assert host.births_of(0)[1] >= 30.0
        await host.stop()

    run_simulation(1, main)


def test_a_container_that_is_taken_away_while_it_recovers_is_closed_and_never_served() -> None:
    def slow(container_id: ContainerId) -> SimpleContainer:
        container = SimpleContainer(container_id)
        container.start_seconds = 30.0
        return container

    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments, slow)
        await asyncio.sleep(1)
        assignments.assign()
        await asyncio.sleep(1)
        assert host.newest(0).state is ContainerState.STOPPED
        assert assignments.failures == []
        await host.stop()

    run_simulation(1, main)


def test_h42_a_failed_container_is_reported_once_and_not_restarted_locally() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0, 1)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        cause = DurableDataLogError("disk gone")
        host.newest(0).fail(cause)
        await asyncio.sleep(100)
        assert [(each.container_id, each.cause) for each in assignments.failures] == [(0, cause)]
        assert host.registry.running() == [1]
        assert len(host.births_of(0)) == 1
        assignments.assign(0, 1)
        await asyncio.sleep(1)
        assert host.registry.running() == [0, 1]
        await host.stop()

    run_simulation(1, main)


def test_h42_a_container_that_ends_without_a_cause_is_reported_as_well() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        host.newest(0).end()
        await asyncio.sleep(1)
        assert [each.container_id for each in assignments.failures] == [0]
        await host.stop()

    run_simulation(1, main)


def test_h42_a_cancellation_that_leaks_out_of_a_container_is_a_failure_too() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        host.newest(0).fail(asyncio.CancelledError())
        await asyncio.sleep(1)
        assert [each.container_id for each in assignments.failures] == [0]
        await host.stop()

    run_simulation(1, main)


def test_h42_each_failure_doubles_the_pause_up_to_the_limit() -> None:
    async def main(_: SimLoop) -> list[float]:
        def broken(container_id: ContainerId) -> SimpleContainer:
            return SimpleContainer(container_id, fail_at_start=StorageError("down"))

        host = start_host(in_process(1), broken, 1)
        await host.manager.wait_until_settled()
        await asyncio.sleep(40)
        births = host.births_of(0)
        await host.stop()
        return [round(later - earlier, 3) for earlier, later in pairwise(births)]

    assert run_simulation(1, main).result[:6] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_h42_running_well_for_a_while_is_forgiven() -> None:
    async def main(loop: SimLoop) -> None:
        host = start_host(in_process(1), container_count=1)
        await host.manager.wait_until_settled()

        async def pause_after_failing() -> float:
            lives = len(host.births)
            host.newest(0).fail(StorageError("down"))
            failed_at = loop.time()
            while len(host.births) == lives or not host.registry.running():
                await asyncio.sleep(0.01)
            return round(host.births[-1][1] - failed_at, 1)

        pauses = [await pause_after_failing() for _ in range(3)]
        assert pauses == [1.0, 2.0, 4.0]
        await asyncio.sleep(SETTINGS.forgive_after_seconds)
        assert await pause_after_failing() == 1.0
        await host.stop()

    run_simulation(1, main)


@pytest.mark.parametrize(
    "cause",
    [
        DataCorruptionError("frame 7"),
        LogDisabledError("disabled"),
        ExceptionGroup(
            "parts", [StorageError("x"), ExceptionGroup("", [DataCorruptionError("y")])]
        ),
    ],
    ids=["corrupt", "disabled", "in a group"],
)
def test_h42_after_corruption_a_container_is_never_assigned_again(cause: Exception) -> None:
    async def main(_: SimLoop) -> None:
        assignments = in_process(2)
        host = start_host(assignments, container_count=2)
        await host.manager.wait_until_settled()
        host.newest(0).fail(cause)
        await asyncio.sleep(86400)
        assert host.births_of(0) == [0.0]
        assert host.registry.running() == [1]
        assert host.registry.health()[0].state is ContainerState.FAILED
        await host.stop()

    run_simulation(1, main)


def poison() -> Exception:
    """What a value that cannot be stored comes to, at every start."""
    try:
        struct.pack("<H", 1 << 16)
    except struct.error as error:
        return error
    raise AssertionError("it was packed")


def poison_elsewhere() -> Exception:
    try:
        struct.pack("<H", -1)
    except struct.error as error:
        return error
    raise AssertionError("it was packed")


def stopped_by(cause: Exception) -> Exception:
    stop = ContainerStoppedError("the container stopped")
    stop.__cause__ = cause
    return ExceptionGroup("parts", [stop])


@pytest.mark.parametrize("wrapped", [False, True])
def test_h42_one_cause_at_one_place_again_and_again_keeps_a_container_down(
    *, wrapped: bool
) -> None:
    async def main(_: SimLoop) -> None:
        def poisoned(container_id: ContainerId) -> SimpleContainer:
            if container_id:
                return SimpleContainer(container_id)
            error = stopped_by(poison()) if wrapped else poison()
            return SimpleContainer(container_id, fail_at_start=error)

        assignments = in_process(2)
        host = start_host(assignments, poisoned, 2)
        await host.manager.wait_until_settled()
        assert assignments.complaints() == []
        await asyncio.sleep(86400)
        assert len(host.births_of(0)) == SETTINGS.same_failure_count
        assert host.registry.running() == [1]
        assert host.registry.health()[0].state is ContainerState.FAILED
        (complaint,) = assignments.complaints()
        assert "container 0 stays down: it failed 4 times in a row at struct.error in" in complaint
        assert "test_container_manager.py" in complaint
        assert "format requires" in complaint or "argument out of range" in complaint
        assert "start the server again" in complaint
        await host.stop()

    run_simulation(1, main)


def test_h42_a_long_cause_does_not_push_what_to_do_out_and_is_told_in_full_behind_it() -> None:
    why = "the log is older than Tier 2" + 40 * " and so on" + ". Put the newest journals back"

    async def main(_: SimLoop) -> None:
        def damaged(container_id: ContainerId) -> SimpleContainer:
            return SimpleContainer(container_id, fail_at_start=DataCorruptionError(why))

        assignments = in_process(1)
        host = start_host(assignments, damaged, 1)
        await host.manager.wait_until_settled()
        (complaint,) = assignments.complaints()
        front = complaint.index("nothing is lost by waiting")
        assert front < 300
        assert " so on ...;" in complaint[:front]
        assert complaint.endswith(why)
        await host.stop()

    run_simulation(1, main)


@pytest.mark.parametrize("gives_way", [False, True])
def test_h42_a_container_that_another_process_took_is_taken_back_unless_its_log_is_shared(
    *, gives_way: bool
) -> None:
    async def main(_: SimLoop) -> None:
        def fenced(container_id: ContainerId) -> SimpleContainer:
            if container_id:
                return SimpleContainer(container_id)
            return SimpleContainer(
                container_id, fail_at_start=stopped_by(LogNotPrimaryError("taken over"))
            )

        assignments = InProcessAssignmentSource(
            containers=[ZERO, ContainerId(1)], settings=SETTINGS, gives_way=gives_way
        )
        host = start_host(assignments, fenced, 2)
        await host.manager.wait_until_settled()
        await asyncio.sleep(60)
        assert (len(host.births_of(0)) == 1) is gives_way
        assert len(assignments.complaints()) == gives_way
        assert host.registry.running() == [1]
        await host.stop()

    run_simulation(1, main)


@pytest.mark.parametrize(
    "causes",
    [
        [poison, poison, poison, poison_elsewhere],
        [poison, poison, poison, lambda: StorageError("down")],
        [lambda: StorageError("down")],
        [lambda: OSError(5, "the disk does not answer")],
        [lambda: stopped_by(StorageError("down"))],
        [lambda: asyncio.CancelledError()],
    ],
    ids=["two places", "with another", "tier 2", "disk", "stopped by tier 2", "cancelled"],
)
def test_h42_causes_that_differ_or_may_pass_are_tried_again_for_ever(
    causes: Sequence[Callable[[], BaseException]],
) -> None:
    async def main(_: SimLoop) -> None:
        source = in_process(1)
        watch = source.watch(HOST)
        for number in range(30):
            assert (await anext(watch)).containers == {ZERO}
            cause = causes[number % len(causes)]()
            await source.report(
                HOST, version=1, held={}, running=[], failed=[ContainerFailure(ZERO, 1, cause)]
            )
            assert (await anext(watch)).containers == set()
        assert source.complaints() == []
        await watch.aclose()

    run_simulation(1, main)


def test_h42_a_container_that_ran_well_in_between_is_counted_anew() -> None:
    async def main(_: SimLoop) -> None:
        source = in_process(1)
        watch = source.watch(HOST)
        for _life in range(3 * SETTINGS.same_failure_count):
            assert (await anext(watch)).containers == {ZERO}
            await source.report(HOST, version=1, held={ZERO: 1}, running=[ZERO])
            await asyncio.sleep(SETTINGS.forgive_after_seconds)
            await source.report(
                HOST, version=1, held={}, running=[], failed=[ContainerFailure(ZERO, 1, poison())]
            )
            assert (await anext(watch)).containers == set()
        await watch.aclose()

    run_simulation(1, main)


def test_what_a_person_can_do_stands_in_front_of_where_the_wire_cuts_a_long_cause() -> None:
    async def main(_: SimLoop) -> None:
        source = in_process(1)
        watch = source.watch(HOST)
        error = ValueError("x" * 10_000)
        for _life in range(SETTINGS.same_failure_count):
            await anext(watch)
            await source.report(
                HOST, version=1, held={}, running=[], failed=[ContainerFailure(ZERO, 1, error)]
            )
            await anext(watch)
            await asyncio.sleep(3600)
        (complaint,) = source.complaints()
        assert "start the server again when the cause is" in complaint[:380]
        await watch.aclose()

    run_simulation(1, main)


def test_h42_corruption_is_seen_behind_another_error() -> None:
    failure = RuntimeError("recovery failed")
    failure.__cause__ = DataCorruptionError("frame 7")
    assert is_corrupt(failure)
    assert not is_corrupt(StorageError("down"))


def test_a_close_under_way_is_not_cut_short_by_an_assignment_or_by_shutdown() -> None:
    async def main(_: SimLoop) -> None:
        assignments = ScriptedAssignments(0)
        host = start_host(assignments)
        await host.manager.wait_until_settled()
        host.newest(0).close_seconds = 10.0
        host.newest(0).fail(StorageError("down"))
        await asyncio.sleep(1)
        assignments.assign()
        await asyncio.sleep(1)
        assert host.newest(0).state is ContainerState.STOPPING
        await host.stop()

    run_simulation(1, main)


def test_one_failing_container_does_not_disturb_the_others() -> None:
    async def main(_: SimLoop) -> None:
        host = start_host(in_process())
        await host.manager.wait_until_settled()
        for _failure in range(5):
            host.newest(3).fail(StorageError("down"))
            await asyncio.sleep(40)
        assert host.registry.running() == [0, 1, 2, 3]
        assert [len(host.births_of(n)) for n in range(4)] == [1, 1, 1, 6]
        await host.stop()

    run_simulation(1, main)


def test_versions_only_grow_and_a_reported_container_is_missing_from_the_next_one() -> None:
    async def main(_: SimLoop) -> None:
        source = in_process(2)
        watch = source.watch(HOST)
        first = await anext(watch)
        assert first.containers == {0, 1}
        await source.report(
            HOST,
            version=1,
            held={},
            running=[],
            failed=[ContainerFailure(ZERO, 1, StorageError("down"))],
        )
        second = await anext(watch)
        assert second.containers == {1}
        third = await anext(watch)
        assert third.containers == {0, 1}
        assert first.version < second.version < third.version
        # What was out in between says so, also to a watcher that saw the first and the third only (K3).
        assert first.since == {0: first.version, 1: first.version}
        assert third.since == {0: third.version, 1: first.version}
        await watch.aclose()

    run_simulation(1, main)


@pytest.mark.parametrize("seed", range(10))
def test_any_mix_of_failures_and_assignments_ends_with_what_is_assigned(seed: int) -> None:
    async def main(loop: SimLoop) -> None:
        assignments = ScriptedAssignments(0, 1, 2, 3)

        def moody(container_id: ContainerId) -> SimpleContainer:
            fails = loop.random.random() < 0.2
            container = SimpleContainer(
                container_id, fail_at_start=StorageError("down") if fails else None
            )
            container.start_seconds = loop.random.random()
            container.close_seconds = loop.random.random()
            return container

        host = start_host(assignments, moody)
        for _ in range(200):
            await asyncio.sleep(loop.random.random())
            running = host.registry.running()
            if running and loop.random.random() < 0.5:
                victim = host.newest(loop.random.choice(list(running)))
                if victim.state is ContainerState.RUNNING:
                    victim.fail(StorageError("down"))
            else:
                assignments.assign(*[n for n in range(4) if loop.random.random() < 0.7])
            host.registry.check()
        wanted = [0, 2, 3]
        for _ in range(20):
            assignments.assign(*wanted)
            await asyncio.sleep(5)
        assert host.registry.running() == wanted
        await host.stop()

    run_simulation(seed, main)
