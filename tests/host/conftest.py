"""Tests whose steps are told apart by time run in virtual time: no pause of the machine comes between them."""

from tests.sim.loop_factories import virtual_time_in

pytest_asyncio_loop_factories = virtual_time_in(
    "test_containers_that_leave.py",
    "test_node_membership.py",
)
