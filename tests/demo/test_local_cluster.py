"""What a cluster of one directory keeps, though it was made by an earlier version."""

import json
from pathlib import Path

from segmentstore.demo.local_cluster import LocalCluster


def test_nodes_of_a_version_without_topics_get_a_kafka_port_that_they_keep(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path)
    rows = json.loads(made.processes_path.read_text())
    for row in rows:
        del row["kafka"]
    made.processes_path.write_text(json.dumps(rows))
    again = LocalCluster(tmp_path)
    given = [each.kafka for each in again.with_role("node")]
    assert len(set(given)) == again.plan.nodes
    assert all(given)
    ports = [port for each in again.processes().values() for port in each.ports]
    assert len(set(ports)) == len(ports) == 2 + 4 + 3 * 3 + 2 * 2
    assert {each.kafka for each in again.processes().values() if each.role != "node"} == {""}
    assert [each.kafka for each in LocalCluster(tmp_path).with_role("node")] == given
    assert again.kafka == ",".join(given)
