"""What a cluster of one directory keeps, though it was made by an earlier version; how its processes are started."""

import json
from itertools import pairwise
from pathlib import Path

from segmentstore.demo.local_cluster import ClusterPlan, LocalCluster
from segmentstore.host.setting_sources import resolve_settings


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


def settings_of(command: list[str]) -> dict[str, str]:
    given = [value for word, value in pairwise(command) if word == "--set"]
    return dict(each.split("=", 1) for each in given)


def test_a_process_gives_up_its_start_no_sooner_than_the_cluster_is_given_up(
    tmp_path: Path,
) -> None:
    for role in ("node", "controller"):
        cluster = LocalCluster(tmp_path / role, ClusterPlan(nodes=1, controllers=1, bookies=1))
        resolved = resolve_settings(
            flags=settings_of(cluster.command(f"{role}0")), environment={}
        ).settings
        assert resolved.bookkeeper.start_seconds == 120.0


def test_a_setting_of_the_plan_overrides_what_the_cluster_sets(tmp_path: Path) -> None:
    plan = ClusterPlan(settings=("bookkeeper.start_seconds=7",))
    cluster = LocalCluster(tmp_path, plan)
    assert settings_of(cluster.command("node0"))["bookkeeper.start_seconds"] == "7"
