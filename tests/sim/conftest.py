"""Conformance suites that are written for a real loop run in virtual time here."""

from tests.sim.loop_factories import virtual_time_in

pytest_asyncio_loop_factories = virtual_time_in("test_object_store_suite.py")
