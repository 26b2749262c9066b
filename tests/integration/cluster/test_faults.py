"""Whatever single process of a cluster dies or stands still, no answer was wrong, and appends go on soon.

All faults, for minutes each: `python -m tests.integration.cluster.faults`.
"""

from random import Random

import pytest

from segmentstore.demo.local_cluster import LocalCluster
from tests.integration.cluster import faults
from tests.integration.cluster.processes import Processes

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SHORT = faults.FaultSettings(before_seconds=2.0, after_seconds=1.0, s3_seconds=5.0)
PAUSE_SECONDS_MAX = 20.0
"""Between two acknowledged appends to one segment, when one process dies. On a machine of its own it is below 15 s."""


@pytest.mark.parametrize(
    "fault",
    [
        faults.kill_node,
        faults.stop_node,
        faults.kill_leader,
        faults.kill_bookie,
        faults.lose_zookeeper,
        faults.lose_s3,
        faults.rolling_restart,
    ],
)
async def test_a_fault_costs_no_acknowledged_operation(
    cluster: LocalCluster, fault: faults.Fault
) -> None:
    report = await faults.report_of(
        fault,
        Processes(cluster.processes_path),
        random=Random(1),
        prefix=f"faults/{fault.__name__}",
        settings=SHORT,
    )
    assert not report.violations, report.violations[0]
    assert report.longest_pause_seconds < PAUSE_SECONDS_MAX, report
    assert report.history.checked_count > 200, report
