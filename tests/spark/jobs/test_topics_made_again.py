"""Goal: nothing of a topic that was made again is exported as records of the one before it."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jobs import topic_export
from segmentstore.spark.topics.topic_source import TopicPartition
from segmentstore.topics.topic_records import partition_segment_name
from tests.spark.jobs.test_accepted_losses import TopicExports


def make_again(exports: TopicExports) -> None:
    """With as many records, so that all offsets fit."""
    exports.source.all = [
        replace(each, segment_name=partition_segment_name("logs", UUID(int=2), each.index))
        for each in exports.source.all
    ]


@pytest.mark.parametrize("accept", [False, True])
def test_a_batch_that_was_read_while_its_topic_was_made_again_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, accept: bool
) -> None:
    exports = TopicExports(tmp_path, monkeypatch)

    def read(*_: object, **__: object) -> int:
        make_again(exports)
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(topic_export, "staged_rows", read)
        with pytest.raises(InvalidRequestError, match="was made again"):
            exports.run(accept=accept)
    assert not list(tmp_path.glob("_batches/*"))


def test_a_topic_that_is_made_again_before_a_run_is_planned_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = TopicExports(tmp_path, monkeypatch)
    partitions = exports.source.partitions
    looks = 0

    async def partitions_then() -> list[TopicPartition]:
        nonlocal looks
        looks += 1
        if looks == 2:
            make_again(exports)
        return await partitions()

    with monkeypatch.context() as patched:
        patched.setattr(exports.source, "partitions", partitions_then)
        with pytest.raises(InvalidRequestError, match="was made again"):
            exports.run()
    assert not list(tmp_path.glob("_batches/*"))
    assert exports.run() == 1
