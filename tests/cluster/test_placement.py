"""What the leader decides: by examples, and for random histories of nodes, failures and wishes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from segmentstore.cluster.placement import (
    Observed,
    PlacementSettings,
    first_assignment,
    next_assignment,
)
from segmentstore.cluster.records import (
    AssignmentMap,
    FailureReport,
    NodeReport,
    Wishes,
    decode_assignment,
    decode_report,
    decode_wishes,
    encode_assignment,
    encode_report,
    encode_wishes,
)
from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId

SETTINGS = PlacementSettings(same_failure_count=3, moves_at_once=2)
EPOCH = 1


def node(name: str, capacity: int = 0) -> ClusterNode:
    return ClusterNode(HostId(f"{name}-1"), f"{name}:80", f"{name}:81", capacity, "1")


A, B, C = node("a"), node("b"), node("c")


@dataclass
class Cluster:
    """Nodes that follow the map as soon as they are told to, and a leader that decides when it is told to."""

    map: AssignmentMap
    nodes: dict[HostId, ClusterNode] = field(default_factory=dict)
    followed: dict[HostId, AssignmentMap] = field(default_factory=dict)
    held: dict[HostId, dict[ContainerId, int]] = field(default_factory=dict)
    failed: dict[HostId, dict[ContainerId, FailureReport]] = field(default_factory=dict)
    loads: Mapping[ContainerId, float] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)
    tier2: dict[HostId, Tier2State] = field(default_factory=dict)
    moves: int = 0

    @classmethod
    def of(cls, container_count: int, *nodes: ClusterNode) -> "Cluster":
        made = cls(first_assignment(container_count, epoch=EPOCH))
        for each in nodes:
            made.join(each)
        return made

    def join(self, joined: ClusterNode) -> None:
        self.nodes[joined.node_id] = joined
        self.held[joined.node_id] = {}
        self.failed[joined.node_id] = {}

    def leave(self, node_id: HostId) -> None:
        for values in (self.nodes, self.followed, self.held, self.failed):
            values.pop(node_id, None)

    def follow(self, node_id: HostId) -> None:
        """The node takes the present map: what was taken away is closed, what was given is started."""
        self.followed[node_id] = self.map
        given = self.map.given_to(node_id)
        failed = {c: each for c, each in self.failed[node_id].items() if given.get(c) == each.since}
        self.failed[node_id] = failed
        self.held[node_id] = {c: since for c, since in given.items() if c not in failed}
        self.check()

    def fail(self, node_id: HostId, container: ContainerId, kind: str = "passing") -> None:
        since = self.held[node_id].pop(container, None)
        if since is not None:
            self.failed[node_id][container] = FailureReport(since, "a cause", kind)

    def decide(
        self,
        held_back: frozenset[ContainerId] = frozenset(),
        suspects: frozenset[HostId] = frozenset(),
        forgiven: frozenset[ContainerId] = frozenset(),
    ) -> bool:
        reports = {
            node_id: NodeReport(
                self.followed[node_id].version if node_id in self.followed else 0,
                dict(self.held[node_id]),
                sorted(self.held[node_id]),
                dict(self.failed[node_id]),
                tier2=self.tier2.get(node_id, Tier2State.UNKNOWN),
            )
            for node_id in self.nodes
        }
        reports = {n: decode_report(encode_report(each), n) for n, each in reports.items()}
        observed = Observed(
            nodes=list(self.nodes.values()),
            reports=reports,
            wishes=decode_wishes(encode_wishes(self.wishes)),
            loads=self.loads,
            held_back=held_back,
            forgiven=forgiven,
            suspects=suspects,
        )
        found = next_assignment(self.map, observed, epoch=EPOCH, settings=SETTINGS)
        if found is None:
            return False
        assert found.version == self.map.version + 1
        for container, each in found.containers.items():
            before = self.map.containers[container]
            if (each.node, each.since) != (before.node, before.since):
                assert each.since == found.version, "a change that keeps its since"
            assert each.node is None or each.node in self.nodes
            self.moves += each.leaving is not None and before.leaving is None
        self.map = decode_assignment(encode_assignment(found))
        assert self.map == found, "a value that is read as another"
        self.check()
        return True

    def settle(
        self,
        held_back: frozenset[ContainerId] = frozenset(),
        suspects: frozenset[HostId] = frozenset(),
    ) -> None:
        """Everything that is to happen happens, with no fault."""
        for _ in range(20 + 6 * len(self.map.containers)):
            changed = self.decide(held_back, suspects)
            for node_id in self.nodes:
                self.follow(node_id)
            if not changed and not self.decide(held_back, suspects):
                return
        raise AssertionError(f"it does not settle {self.map=}")

    def check(self) -> None:
        """No container is held by two, or held by one and given to another."""
        for container, each in self.map.containers.items():
            holders = [n for n, held in self.held.items() if container in held]
            assert len(holders) <= 1, f"two hold {container=} {holders=}"
            if each.node is not None and holders:
                assert holders == [each.node], f"given while another holds it {container=} {each=}"
        self.map.check()

    def counts(self) -> list[int]:
        return sorted(len(self.map.given_to(n)) for n in self.nodes)


def cid(number: int) -> ContainerId:
    return ContainerId(number)


def test_containers_are_spread_evenly() -> None:
    cluster = Cluster.of(8, A, B, C)
    cluster.settle()
    assert cluster.counts() == [2, 3, 3]
    assert cluster.moves == 0


def test_a_dead_node_loses_its_containers_and_no_other_container_moves() -> None:
    cluster = Cluster.of(9, A, B, C)
    cluster.settle()
    before = cluster.map
    cluster.leave(A.node_id)
    cluster.settle()
    assert cluster.moves == 0
    for container, each in before.containers.items():
        if each.node != A.node_id:
            assert cluster.map.containers[container] == each
    assert cluster.counts() == [4, 5]


def test_a_new_node_gets_its_share_by_as_few_moves_as_are_needed() -> None:
    cluster = Cluster.of(9, A, B)
    cluster.settle()
    cluster.join(C)
    cluster.settle()
    assert cluster.counts() == [3, 3, 3]
    assert cluster.moves == 3


def test_h85_a_container_is_given_away_only_when_its_old_node_has_closed_it() -> None:
    cluster = Cluster.of(2, A, B)
    cluster.settle()
    moved = next(iter(cluster.map.given_to(A.node_id)))
    cluster.wishes = Wishes(drained=["a"])
    assert cluster.decide()
    assert cluster.map.containers[moved].leaving == A.node_id
    assert not cluster.decide(), "the old node has not followed"
    cluster.follow(B.node_id)
    assert not cluster.decide(), "the old node has not followed"
    cluster.follow(A.node_id)
    assert cluster.decide()
    assert cluster.map.containers[moved].node == B.node_id
    assert cluster.map.containers[moved].since == cluster.map.version


def test_h85_a_report_of_an_older_version_does_not_show_that_a_container_has_gone() -> None:
    cluster = Cluster.of(1, A)
    assert cluster.decide()  # it is given, and the node has not heard
    cluster.join(B)
    cluster.wishes = Wishes(drained=["a"])
    assert cluster.decide()
    assert cluster.map.containers[cid(0)].leaving == A.node_id
    assert not cluster.decide(), "the node may be about to start it"


def test_moves_are_made_few_at_once() -> None:
    cluster = Cluster.of(8, A, B)
    cluster.settle()
    cluster.wishes = Wishes(drained=["a-1"])
    assert cluster.decide()
    assert sum(each.node is None for each in cluster.map.containers.values()) == 2
    cluster.settle()
    assert cluster.counts() == [0, 8]


def test_moves_are_made_few_at_once_also_of_containers_that_have_failed() -> None:
    cluster = Cluster.of(8, A, B)
    cluster.settle()
    for container in list(cluster.held[A.node_id]):
        cluster.fail(A.node_id, container)
    for container in list(cluster.held[B.node_id]):
        cluster.fail(B.node_id, container)
    cluster.settle()
    assert all(each.failure is not None for each in cluster.map.containers.values())
    cluster.wishes = Wishes(drained=["a"])
    while cluster.decide():
        # Its node has not closed any yet.
        given_to_none = sum(each.node is None for each in cluster.map.containers.values())
        assert given_to_none <= SETTINGS.moves_at_once
    cluster.settle()
    assert cluster.counts() == [0, 8]


def test_what_is_on_a_drained_node_stays_if_no_other_node_takes_it() -> None:
    cluster = Cluster.of(4, A)
    cluster.settle()
    cluster.wishes = Wishes(drained=["a"])
    cluster.settle()
    assert cluster.counts() == [4]
    cluster.join(node("d", capacity=1))
    cluster.settle()
    assert cluster.counts() == [1, 3]


def test_containers_of_a_node_that_is_alone_without_tier2_go_to_those_that_reach_it() -> None:
    cluster = Cluster.of(9, A, B, C)
    cluster.wishes = Wishes(pinned={cid(0): "a"})
    cluster.settle()
    cluster.tier2 = {A.node_id: Tier2State.SILENT, B.node_id: Tier2State.REACHED}
    cluster.settle()
    # C says nothing: it may have had no reason to ask.
    assert cluster.counts() == [0, 4, 5]
    assert cluster.moves == 3
    assert not cluster.map.given_to(A.node_id)
    cluster.tier2[A.node_id] = Tier2State.REACHED
    cluster.settle()
    assert cluster.counts() == [3, 3, 3]
    assert cid(0) in cluster.map.given_to(A.node_id), "it is pinned there"


def test_a_tier2_that_is_away_for_all_moves_nothing() -> None:
    cluster = Cluster.of(9, A, B, C)
    cluster.settle()
    for states in (
        [Tier2State.SILENT] * 3,
        [Tier2State.SILENT, Tier2State.SILENT, Tier2State.UNKNOWN],
        [Tier2State.SILENT, Tier2State.UNKNOWN, Tier2State.UNKNOWN],
    ):
        cluster.tier2 = dict(zip(cluster.nodes, states, strict=True))
        cluster.settle()
    assert cluster.moves == 0


def test_what_finds_no_room_where_tier2_is_reached_stays_where_it_is_not() -> None:
    cluster = Cluster.of(6, A, node("b", capacity=4))
    cluster.settle()
    cluster.tier2 = {A.node_id: Tier2State.SILENT, HostId("b-1"): Tier2State.REACHED}
    cluster.settle()
    assert cluster.counts() == [2, 4]
    cluster.leave(HostId("b-1"))
    cluster.settle()
    assert cluster.counts() == [6], "without Tier 2 is better than nowhere"


def test_a_pinned_container_goes_to_its_node_and_stays_there() -> None:
    cluster = Cluster.of(6, A, B, C)
    cluster.settle()
    cluster.wishes = Wishes(pinned={cid(n): "b" for n in range(5)})
    cluster.settle()
    assert {cid(n) for n in range(5)} <= cluster.map.given_to(B.node_id).keys()
    cluster.leave(B.node_id)
    cluster.settle()
    assert cluster.counts() == [3, 3]
    cluster.join(replace(B, node_id=HostId("b-2")))
    cluster.settle()
    assert {cid(n) for n in range(5)} <= cluster.map.given_to(HostId("b-2")).keys()


def test_a_container_that_fails_where_it_is_pinned_runs_elsewhere_until_that_node_is_trusted() -> (
    None
):
    cluster = Cluster.of(4, A, B)
    cluster.wishes = Wishes(pinned={cid(0): "a"})
    cluster.settle()
    cluster.fail(A.node_id, cid(0))
    suspects = frozenset([A.node_id])
    cluster.settle(suspects=suspects)
    assert cid(0) in cluster.map.given_to(B.node_id), "it failed at the other one"
    other = min(cluster.map.given_to(B.node_id).keys() - {cid(0)})
    cluster.wishes = Wishes(pinned={cid(0): "a", other: "a"})
    cluster.settle(suspects=suspects)
    assert other in cluster.map.given_to(A.node_id), "it has not failed there"
    assert cid(0) in cluster.map.given_to(B.node_id)
    # Nor when it has run elsewhere for long: that says nothing of the node.
    cluster.decide(suspects=suspects, forgiven=frozenset([cid(0)]))
    cluster.settle(suspects=suspects)
    assert cid(0) in cluster.map.given_to(B.node_id)
    cluster.settle()
    assert cid(0) in cluster.map.given_to(A.node_id), "it is trusted with it again"


def test_a_container_that_fails_at_the_only_node_is_tried_there_though_it_is_pinned_to_it() -> None:
    cluster = Cluster.of(1, A)
    cluster.wishes = Wishes(pinned={cid(0): "a"})
    cluster.settle()
    cluster.fail(A.node_id, cid(0))
    cluster.settle(suspects=frozenset([A.node_id]))
    assert cid(0) in cluster.map.given_to(A.node_id)


def test_a_drained_node_keeps_nothing_that_is_pinned_to_a_full_one() -> None:
    b = node("b", capacity=1)
    cluster = Cluster.of(2, A, b)
    cluster.settle()
    (there,) = cluster.map.given_to(b.node_id)
    (pinned,) = cluster.map.given_to(A.node_id)
    cluster.wishes = Wishes(pinned={there: "b", pinned: "b"}, drained=["a"])
    cluster.join(C)
    cluster.settle()
    assert pinned in cluster.map.given_to(C.node_id)
    cluster.wishes = Wishes(pinned={pinned: "b"}, drained=["a"])
    cluster.settle()
    assert cluster.counts() == [0, 1, 1]


def test_capacity_is_kept_and_what_finds_no_room_waits() -> None:
    cluster = Cluster.of(5, node("a", capacity=2), node("b", capacity=1))
    cluster.settle()
    assert cluster.counts() == [1, 2]
    cluster.join(C)
    cluster.settle()
    assert sum(cluster.counts()) == 5
    assert cluster.counts() == [1, 2, 2]


def test_a_failed_container_starts_at_once_where_none_has_just_failed() -> None:
    """The pause is for what fails everywhere: a node without bookies has told by this failure that it is one."""
    cluster = Cluster.of(3, A, B, C)
    cluster.settle()
    failed_at: list[HostId] = []
    for attempt in range(3):
        at = cluster.map.containers[cid(0)].node
        assert at is not None, f"{attempt=}"
        assert at not in failed_at
        cluster.fail(at, cid(0))
        assert cluster.decide(suspects=frozenset(failed_at))
        failed_at.append(at)
        for node_id in cluster.nodes:
            cluster.follow(node_id)
    assert cluster.map.containers[cid(0)].node is None, "it has failed at each of them"
    record = cluster.map.containers[cid(0)].failure
    assert record is not None
    assert (record.count, record.node) == (3, failed_at[-1])
    assert not cluster.decide(frozenset([cid(0)]), frozenset(failed_at))


def test_what_fails_the_same_way_again_waits_also_where_none_has_just_failed() -> None:
    """For a reason that does not pass by itself: five such failures keep a container down, until a person comes."""
    cluster = Cluster.of(3, A, B, C)
    cluster.settle()
    failed_at: list[HostId] = []
    for _ in range(2):
        at = cluster.map.containers[cid(0)].node
        assert at is not None
        cluster.fail(at, cid(0), "not_found")
        assert cluster.decide(suspects=frozenset(failed_at))
        failed_at.append(at)
        for node_id in cluster.nodes:
            cluster.follow(node_id)
    assert cluster.map.containers[cid(0)].node is None
    assert not cluster.decide(frozenset([cid(0)]), frozenset(failed_at))
    assert cluster.decide(suspects=frozenset(failed_at)), "its pause is over"
    assert cluster.map.containers[cid(0)].node not in (None, *failed_at)


def test_a_failed_container_waits_for_its_pause_and_starts_elsewhere() -> None:
    cluster = Cluster.of(2, A, B)
    cluster.settle()
    failed = next(iter(cluster.map.given_to(A.node_id)))
    cluster.fail(A.node_id, failed)
    held_back = frozenset([failed])
    assert cluster.decide(held_back, frozenset([B.node_id]))
    assert cluster.map.containers[failed].node is None
    assert not cluster.decide(held_back, frozenset([A.node_id, B.node_id]))
    cluster.settle()
    assert cluster.map.containers[failed].node == B.node_id
    record = cluster.map.containers[failed].failure
    assert record is not None
    assert (record.count, record.node, record.kind) == (1, A.node_id, "passing")


def test_nothing_is_moved_to_a_node_that_has_just_failed_a_container() -> None:
    cluster = Cluster.of(6, A, B)
    cluster.settle()
    suspects = frozenset([A.node_id])
    for container in cluster.map.given_to(A.node_id):
        cluster.fail(A.node_id, container)
        # Also not by the decision that takes notice of the failure, which makes it the emptier one.
        cluster.decide()
        cluster.follow(B.node_id)
        cluster.follow(A.node_id)
        while cluster.decide(suspects=suspects):
            cluster.follow(B.node_id)
    assert cluster.moves == 0
    assert len(cluster.map.given_to(B.node_id)) == 6


def test_a_node_where_all_containers_failed_gets_its_share_when_it_is_trusted_again() -> None:
    cluster = Cluster.of(6, A, B, C)
    cluster.settle()
    for node_id in (A.node_id, B.node_id):
        cluster.leave(node_id)
    cluster.settle()
    for container in cluster.map.given_to(C.node_id):
        cluster.fail(C.node_id, container)
    cluster.decide()
    cluster.join(A)
    cluster.join(B)
    suspects = frozenset([C.node_id])
    while cluster.decide(suspects=suspects):
        for node_id in cluster.nodes:
            cluster.follow(node_id)
    assert cluster.counts() == [0, 3, 3]
    cluster.settle()
    assert cluster.counts() == [2, 2, 2]
    assert cluster.moves == 2


def test_a_node_is_given_no_more_to_make_loads_even_than_it_starts() -> None:
    """One that cannot start any says so late: the bookies that it does not reach are waited for."""
    cluster = Cluster.of(12, A, B)
    cluster.settle()
    cluster.join(C)
    for _ in range(20):
        cluster.decide()
        cluster.follow(A.node_id)
        cluster.follow(B.node_id)
        assert cluster.moves <= SETTINGS.moves_at_once
    assert cluster.counts() == [2, 5, 5]
    cluster.follow(C.node_id)
    cluster.settle()
    assert cluster.counts() == [4, 4, 4]
    assert cluster.moves == 4


def test_what_has_not_failed_at_a_node_is_moved_there_first() -> None:
    cluster = Cluster.of(6, A, B)
    cluster.settle()
    failed = next(iter(cluster.map.given_to(A.node_id)))
    cluster.fail(A.node_id, failed)
    cluster.settle()
    assert cluster.counts() == [3, 3]
    assert cluster.moves == 1
    assert cluster.map.containers[failed].node == B.node_id


def test_a_node_that_is_full_of_pinned_containers_keeps_no_others_from_being_made_even() -> None:
    cluster = Cluster.of(9, A, B)
    cluster.wishes = Wishes(pinned={cid(n): "a" for n in range(5)})
    cluster.settle()
    assert cluster.counts() == [4, 5]
    cluster.join(C)
    cluster.settle()
    assert cluster.counts() == [2, 2, 5]


def test_a_wish_for_rebalancing_waits_for_a_node_that_has_just_failed_a_container() -> None:
    cluster = Cluster.of(6, A)
    cluster.settle()
    cluster.join(B)
    cluster.wishes = Wishes(rebalance=1)
    assert not cluster.decide(suspects=frozenset([B.node_id]))
    cluster.settle()
    assert cluster.counts() == [3, 3]
    assert cluster.map.rebalanced == 1


def test_a_wish_for_rebalancing_is_met_though_a_container_fails_everywhere_without_end() -> None:
    """It keeps all nodes suspects, which tells none of them from another."""
    cluster = Cluster.of(7, A, B)
    cluster.settle()
    nodes = [each.node_id for each in (A, B, C)]
    cluster.join(C)

    def attempts(count: int) -> None:
        for _ in range(count):
            cluster.decide(suspects=frozenset(nodes))
            for node_id in nodes:
                cluster.follow(node_id)
                cluster.fail(node_id, cid(0))

    attempts(20)
    assert cluster.moves == 0, "in an outage each move would be one more container without a node"
    cluster.wishes = Wishes(rebalance=1)
    attempts(20)
    assert cluster.map.rebalanced == 1
    others = [len(cluster.map.given_to(n).keys() - {cid(0)}) for n in nodes]
    # The one that fails counts at one of them.
    assert sorted(others) in ([2, 2, 2], [1, 2, 3])
    moves = cluster.moves
    attempts(20)
    assert cluster.moves == moves


def test_a_container_that_is_held_back_moves_no_others_to_and_fro() -> None:
    """Where it will be depends on what moves: each move to make loads even could be the reason for the next one."""
    cluster = Cluster.of(9, B, C)
    cluster.settle()
    failed = next(iter(cluster.map.given_to(C.node_id)))
    cluster.fail(C.node_id, failed)
    suspects = frozenset([B.node_id, C.node_id])
    cluster.wishes = Wishes(pinned={failed: "b"})
    cluster.decide(suspects=suspects)
    cluster.join(A)
    cluster.settle(held_back=frozenset([failed]), suspects=suspects)
    assert cluster.moves == 0
    cluster.settle()
    assert cluster.counts() == [3, 3, 3]
    assert 0 < cluster.moves < 5


def test_nothing_is_moved_to_make_loads_even_by_the_decision_that_takes_notice_of_a_failure() -> (
    None
):
    cluster = Cluster.of(9, B, C)
    cluster.settle()
    cluster.join(A)
    failed = next(iter(cluster.map.given_to(C.node_id)))
    cluster.fail(C.node_id, failed)
    cluster.wishes = Wishes(pinned={failed: "b"})
    cluster.decide(suspects=frozenset([B.node_id]))
    assert cluster.map.containers[failed].node is None, "it waits for its pause"
    assert cluster.moves == 0


def test_what_has_no_node_goes_to_a_suspect_only_if_there_is_no_other() -> None:
    cluster = Cluster.of(6, A, B, C)
    cluster.settle()
    suspects = frozenset([B.node_id])
    cluster.leave(A.node_id)
    while cluster.decide(suspects=suspects):
        cluster.follow(C.node_id)
    assert len(cluster.map.given_to(C.node_id)) == 4
    cluster.leave(C.node_id)
    while cluster.decide(suspects=suspects):
        cluster.follow(B.node_id)
    assert len(cluster.map.given_to(B.node_id)) == 6


def test_a_drained_node_s_containers_go_rather_to_a_node_that_is_no_suspect() -> None:
    cluster = Cluster.of(6, A, B, C)
    cluster.settle()
    cluster.wishes = Wishes(drained=["a"])
    suspects = frozenset([B.node_id])
    while cluster.decide(suspects=suspects):
        for node_id in cluster.nodes:
            cluster.follow(node_id)
    assert len(cluster.map.given_to(C.node_id)) == 4


def test_a_corrupt_container_stays_down_until_a_person_asks() -> None:
    cluster = Cluster.of(2, A, B)
    cluster.settle()
    failed = next(iter(cluster.map.given_to(A.node_id)))
    cluster.fail(A.node_id, failed, "corrupt")
    cluster.settle()
    assert cluster.map.containers[failed].node is None
    cluster.wishes = Wishes(retries={failed: 1})
    cluster.settle()
    assert cluster.map.containers[failed].node is not None


def test_what_a_person_asked_for_before_a_container_failed_does_not_start_it_again() -> None:
    cluster = Cluster.of(1, A)
    cluster.wishes = Wishes(retries={cid(0): 1})
    cluster.settle()
    cluster.fail(A.node_id, cid(0), "corrupt")
    cluster.settle()
    assert cluster.map.containers[cid(0)].node is None
    cluster.wishes = Wishes(retries={cid(0): 2})
    cluster.settle()
    assert cluster.map.containers[cid(0)].node == A.node_id
    cluster.decide(forgiven=frozenset([cid(0)]))
    assert cluster.map.containers[cid(0)].failure is None, "it has run well for long"
    cluster.fail(A.node_id, cid(0), "corrupt")
    cluster.settle()
    assert cluster.map.containers[cid(0)].node is None
    cluster.wishes = Wishes(retries={cid(0): 3})
    cluster.settle()
    assert cluster.map.containers[cid(0)].node == A.node_id


def test_the_same_lasting_failure_again_and_again_keeps_a_container_down() -> None:
    cluster = Cluster.of(1, A, B)
    for _ in range(SETTINGS.same_failure_count):
        cluster.settle()
        at = cluster.map.containers[cid(0)].node
        assert at is not None
        cluster.fail(at, cid(0), "lasting: ValueError in codec.py:3")
    cluster.settle()
    assert cluster.map.containers[cid(0)].node is None


def test_a_failure_of_an_earlier_time_at_the_node_is_not_counted() -> None:
    cluster = Cluster.of(1, A)
    cluster.settle()
    cluster.fail(A.node_id, cid(0))
    late = dict(cluster.failed[A.node_id])
    cluster.settle()
    cluster.failed[A.node_id] = late
    assert not cluster.decide()


def test_loads_decide_where_a_container_goes_and_small_differences_move_nothing() -> None:
    cluster = Cluster.of(6, A, B)
    cluster.settle()
    on_a, on_b = (sorted(cluster.map.given_to(n)) for n in (A.node_id, B.node_id))
    cluster.loads = {on_a[0]: 1.2, on_a[1]: 1.0, on_a[2]: 1.0, **dict.fromkeys(on_b, 1.0)}
    cluster.settle()
    assert cluster.moves == 0
    cluster.loads = {on_a[0]: 5.0, on_a[1]: 4.0, on_a[2]: 1.0, **dict.fromkeys(on_b, 1.0)}
    cluster.settle()
    assert cluster.moves == 1
    assert (cluster.map.containers[on_a[0]].node, cluster.map.containers[on_a[1]].node) in (
        (A.node_id, B.node_id),
        (B.node_id, A.node_id),
    )


def test_rebalancing_is_done_once_for_each_time_it_is_asked_for() -> None:
    cluster = Cluster.of(6, A, B)
    cluster.settle()
    on_a, on_b = (sorted(cluster.map.given_to(n)) for n in (A.node_id, B.node_id))
    cluster.loads = {on_a[0]: 1.3, on_a[1]: 1.3, on_a[2]: 0.1, **dict.fromkeys(on_b, 0.8)}
    cluster.settle()
    assert cluster.moves == 0
    cluster.wishes = Wishes(rebalance=1)
    cluster.settle()
    assert cluster.moves == 1
    assert cluster.map.rebalanced == 1


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["join", "leave", "follow", "follow", "decide", "decide", "fail", "wish", "load"]
        ),
        st.integers(0, 4),
        st.integers(0, 6),
    ),
    max_size=60,
)


@given(EVENTS)
def test_h85_in_any_history_no_container_is_at_two_nodes_and_all_of_them_find_a_place(
    events: list[tuple[str, int, int]],
) -> None:
    cluster = Cluster.of(7)
    incarnations = 0
    for what, number, other in events:
        living = sorted(cluster.nodes)
        at = living[number % len(living)] if living else None
        match what:
            case "join" if len(living) < 4:
                incarnations += 1
                name = HostId(f"n{number}-{incarnations}")
                cluster.join(ClusterNode(name, "", "", [0, 0, 3][number % 3], ""))
            case "leave" if at is not None:
                cluster.leave(at)
            case "follow" if at is not None:
                cluster.follow(at)
            case "decide":
                cluster.decide(
                    frozenset([cid(other)]) if number else frozenset(),
                    frozenset(n for n in living if n.startswith(f"n{other}")),
                )
            case "fail" if at is not None:
                cluster.fail(at, cid(other), ["passing", "corrupt", "lasting: x"][number % 3])
            case "wish":
                cluster.wishes = Wishes(
                    drained=[f"n{number}"] if other % 2 else [],
                    pinned={cid(other): f"n{number}"} if other > 3 else {},
                    rebalance=cluster.wishes.rebalance + (other == 2),
                    retries={cid(other): number},
                )
            case "load":
                cluster.loads = {**cluster.loads, cid(other): float(number)}
    cluster.join(ClusterNode(HostId("last-1"), "", "", 0, ""))
    failed = [c for c, each in cluster.map.containers.items() if each.failure is not None]
    cluster.settle(held_back=frozenset(failed), suspects=frozenset(list(cluster.nodes)[:1]))
    cluster.settle()
    for each in cluster.map.containers.values():
        assert each.leaving is None
        is_down = each.failure is not None and each.failure.stays_down
        assert (each.node is None) == is_down, f"{each=}"
    settled = cluster.map
    assert not cluster.decide()
    assert cluster.map is settled
