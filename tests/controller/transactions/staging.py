"""Small words for what a distributed job does: stage, commit, ask again."""

from collections.abc import Mapping, Sequence

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.controller_records.transaction_records import TransactionState
from segmentstore.codec.stream_names import transaction_halves, transaction_segment
from segmentstore.controller.transactions.transaction_states import UNFINISHED, Phase
from tests.controller.transactions.feature_cluster import FeatureCluster, framed

LEASE_MS = 3_600_000


async def begin(cluster: FeatureCluster, *, lease_ms: int = LEASE_MS) -> own_api.BeginStageResponse:
    return await cluster.components.staged_commits.begin(
        own_api.BeginStageRequest(scope="s", stream="a", lease_ms=lease_ms)
    )


async def stage(cluster: FeatureCluster, events: Sequence[bytes]) -> bytes:
    """A stage with event n in the n-th of its segments, and round again; its id."""
    begun = await begin(cluster)
    history = await cluster.streams.operations.history("s", "a")
    for place, event in enumerate(events):
        parent = history.segment_name(begun.ranges[place % len(begun.ranges)].segment_id)
        name = transaction_segment(parent, int.from_bytes(begun.transaction_id, "big"))
        async with cluster.memory_segments.open_segment(name) as segment:
            await segment.append(framed(event), events=1)
    return begun.transaction_id


async def commit(
    cluster: FeatureCluster,
    stages: Sequence[bytes],
    *,
    version: int,
    application: str = "job",
    forgettable: bool = False,
) -> own_api.CommitStagesResponse:
    return await cluster.components.staged_commits.commit(
        own_api.CommitStagesRequest(
            scope="s",
            stream="a",
            application_id=application,
            version=version,
            transaction_ids=stages,
            forgettable=forgettable,
        )
    )


async def abort(cluster: FeatureCluster, stage_id: bytes) -> api.TxnStatus.Status:
    return await cluster.abort("a", txn(stage_id))


async def last_version(cluster: FeatureCluster, application: str = "job") -> int | None:
    answer = await cluster.components.staged_commits.last_version(
        own_api.LastVersionRequest(scope="s", stream="a", application_id=application)
    )
    return answer.version if answer.known else None


def txn(stage_id: bytes) -> api.TxnId:
    high, low = transaction_halves(int.from_bytes(stage_id, "big"))
    return api.TxnId(highBits=high, lowBits=low)


def state_counts(cluster: FeatureCluster) -> Mapping[TransactionState, int]:
    """How many transactions of the stream are in each state."""
    states = cluster.components.transaction_states.known("s", "a")
    counts: dict[TransactionState, int] = {}
    if states is not None:
        finished = (Phase.MERGED, Phase.COMMITTED, Phase.ABORTED)
        for record in states.records(*UNFINISHED, *finished).values():
            counts[record.state] = counts.get(record.state, 0) + 1
    return counts
