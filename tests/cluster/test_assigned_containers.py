"""What a node reports, over a store whose answers get lost."""

import asyncio
from random import Random

from segmentstore.cluster.assigned_containers import AssignedContainers
from segmentstore.cluster.records import NodeReport, decode_report, encode_report, report_path
from segmentstore.contracts.cluster import Tier2State
from segmentstore.contracts.containers import HostId
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network

NODE = HostId("n-1")


def test_a_report_that_is_again_what_it_was_is_written_behind_one_whose_answer_was_lost() -> None:
    """The store has the one in between, for all that the node knows."""

    async def main(_: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        network = Network(Random(1), message_seconds=0.01, timeout_seconds=1.0)
        session = await SimulatedSession.connect(world, network)
        await session.create(report_path(NODE), encode_report(NodeReport()), ephemeral=True)
        state = Tier2State.REACHED
        assignments = AssignedContainers(
            session, node_id=NODE, random=Random(2), tier2_state=lambda: state
        )

        async def report() -> None:
            await assignments.report(NODE, version=0, held={}, running=[])
            await asyncio.sleep(0.3)

        def written() -> Tier2State:
            return decode_report(world.values[report_path(NODE)].value, NODE).tier2

        async with asyncio.TaskGroup() as group:
            running = group.create_task(assignments.run())
            await report()
            assert written() is Tier2State.REACHED
            network.lost_answer, state = 1.0, Tier2State.UNKNOWN
            await report()
            assert written() is Tier2State.UNKNOWN, "it has arrived; its answer is waited for"
            network.lost_answer, state = 0.0, Tier2State.REACHED
            await report()
            await asyncio.sleep(10.0)
            assert written() is Tier2State.REACHED
            running.cancel()

    run_simulation(1, main)
