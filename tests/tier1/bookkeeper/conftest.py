"""The suite of every log runs on the real loop; what needs time and trouble runs in virtual time."""

from tests.sim.loop_factories import virtual_time_in

pytest_asyncio_loop_factories = virtual_time_in(
    "test_conformance_in_virtual_time.py",
    "test_steps.py",
    "test_faults.py",
    "test_read_ahead.py",
    "test_rehearsal.py",
    "test_unrecorded_ledgers.py",
)
