"""What looks at streams in the background gets round to all of them, whatever state other scopes are in."""

from contextlib import aclosing
from dataclasses import replace

from segmentstore.codec.controller_records.scope_records import ScopeState
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import scope_key
from segmentstore.controller.streams.stream_history import all_streams
from tests.controller.transactions.feature_cluster import FeatureCluster


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
    async with aclosing(all_streams(cluster.metadata)) as streams:
        found = [(walked.scope, walked.stream) async for walked in streams]
    assert ("s", "x") in found
    await cluster.components.watermarks.look_at_all()
