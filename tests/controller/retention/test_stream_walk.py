"""What looks at streams in the background gets round to all of them, whatever state other scopes are in."""

from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace

import pytest

from segmentstore.codec.controller_records.scope_records import ScopeState
from segmentstore.codec.controller_records.stream_records import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfigurationRecord,
)
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import Table
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import scope_key
from segmentstore.controller.retention import cuts_key
from segmentstore.controller.streams.stream_history import all_streams
from tests.controller.transactions.feature_cluster import FeatureCluster


def unexpected(scope: str, error: SegmentStoreError) -> None:
    raise AssertionError(f"scope {scope} does not answer") from error


async def test_a_scope_whose_deletion_does_not_end_puts_off_no_other() -> None:
    cluster = FeatureCluster()
    await cluster.start()
    for scope in ("a", "s"):
        await cluster.scopes.create(scope)
    await cluster.create("x")
    known = await cluster.metadata.scopes.read(scope_key("a"))
    assert known.record is not None
    batch = Batch()
    batch.put(scope_key("a"), replace(known.record, state=ScopeState.DELETING), known)
    await cluster.metadata.scopes.commit(batch)
    async with aclosing(all_streams(cluster.metadata, on_unreadable=unexpected)) as streams:
        found = [(walked.scope, walked.stream) async for walked in streams]
    assert ("s", "x") in found
    await cluster.components.watermarks.look_at_all()


async def test_a_scope_whose_table_does_not_answer_puts_off_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FeatureCluster()
    await cluster.start()
    for scope in ("a", "s"):
        await cluster.scopes.create(scope)
    policy = RetentionPolicy(type=RetentionType.SIZE, limit=0)
    by_rate = ScalingPolicy(
        type=ScalingType.EVENTS_PER_SECOND, target_rate=1000, scale_factor=2, segment_count_min=1
    )
    for scope in ("a", "s"):
        await cluster.streams.create(
            scope, "x", StreamConfigurationRecord(scaling=by_rate, retention=policy)
        )
    watched = cluster.components.auto_scale
    await watched.look_at_all()
    await cluster.components.writer_marks.note_time("s", "x", "writer", 1, {0: 0})
    open_table = cluster.tables.open_table

    def open_or_refuse(name: str) -> AbstractAsyncContextManager[Table]:
        if name.startswith("_system/_tables/a/"):
            raise ContainerNotFoundError(ContainerId(3), "failed: will not be restarted")
        return open_table(name)

    monkeypatch.setattr(cluster.tables, "open_table", open_or_refuse)
    await cluster.components.retention.look_at_all()
    history = await cluster.streams.operations.history("s", "x")
    assert (await history.table.read(cuts_key("x"))).record is not None
    watched._refreshed_at = None
    await watched.look_at_all()
    assert sorted(watched._watched) == [("a", "x"), ("s", "x")]
    await cluster.components.watermarks.look_at_all()
    assert cluster.memory_segments.content("s/_MARKx/0.#epoch.0")
