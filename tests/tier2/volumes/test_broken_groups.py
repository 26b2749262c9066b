"""A group that fails in a way that nobody expects: nothing is answered on top of a state that is not known."""

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import (
    CorruptedDataError,
    StorageError,
    StorageUnavailableError,
)
from tests.tier2.volumes.engines import open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.index import VOLUME
from tier2.volumes.mutations import Mutation
from tier2.volumes.write_batch import Outcome, PreparedBatch


def fail_after(
    monkeypatch: pytest.MonkeyPatch, *errors: BaseException | None
) -> list[BaseException | None]:
    """Of the next attempts to commit each raises one of these; those that are left."""
    left = list(errors)
    commit = GroupCommit._commit

    def attempt(
        self: GroupCommit,
        mutations: Sequence[Mutation],
        now_ms: int,
        ahead: Sequence[PreparedBatch | None],
        *,
        full: bool,
    ) -> list[Outcome]:
        outcomes = commit(self, mutations, now_ms, ahead, full=full)
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        return outcomes

    monkeypatch.setattr(GroupCommit, "_commit", attempt)
    return left


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("error", [AssertionError("x"), KeyError("x"), ValueError("x")])
async def test_h48_after_an_error_that_nobody_expects_no_change_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int, error: Exception
) -> None:
    opened = await open_small(str(tmp_path))
    await opened.engine.put(b"key", [b"old"])
    full = OSError(errno.ENOSPC, "as the test says")
    left = fail_after(monkeypatch, *[full] * (attempts - 1), error)
    with pytest.raises(StorageError):
        await opened.engine.delete(b"no such key")
    assert not left
    for _ in range(3):
        with pytest.raises(StorageUnavailableError, match="stopped"):
            await opened.engine.put(b"key", [b"new"])
        with pytest.raises(StorageUnavailableError, match="stopped"):
            await opened.engine.delete(b"key")
    assert (await opened.engine.get(b"key")).content == b"old"
    await opened.close()
    again = await open_small(str(tmp_path))
    assert (await again.engine.get(b"key")).content == b"old"
    await again.engine.put(b"key", [b"new"])
    await again.engine.check()
    await again.close()


@pytest.mark.parametrize("error", [CorruptedDataError("x"), OSError(errno.EIO, "x")])
@pytest.mark.parametrize("metadata", [{}, {"a": "b"}], ids=["sealed", "judged"])
async def test_h48_what_follows_a_group_that_met_a_bad_index_leaves_no_hole(
    tmp_path: Path, error: Exception, metadata: dict[str, str]
) -> None:
    """Its records are written, and the row of their volume cannot be read: they are cut off before others follow."""

    class Failing(MemoryIndex):
        failures = 0

        def get(self, key: bytes) -> bytes | None:
            if key.startswith(VOLUME) and self.failures:
                self.failures -= 1
                raise error
            return super().get(key)

    index = Failing()
    opened = await open_small(str(tmp_path), open_index=lambda _: index)
    engine = opened.engine
    contents = {b"%d" % number: Random(number).randbytes(900) for number in range(6)}
    refused: list[bytes] = []
    for key, content in contents.items():
        # The row is in memory as long as it is not in the database.
        engine._index.flush()
        index.failures = int(key in (b"1", b"4"))
        try:
            await engine.put(key, [content], metadata=metadata)
        except (StorageError, CorruptedDataError):
            refused.append(key)
    assert refused == [b"1", b"4"]
    stored = {key: content for key, content in contents.items() if key not in refused}
    await engine.check()
    await opened.close()
    again = await open_small(str(tmp_path), open_index=lambda _: MemoryIndex())
    assert again.replay.rebuilt
    assert not again.replay.damaged
    found = [one.key for one in await again.engine.list(b"", limit=10)]
    assert found == list(stored)
    for key, content in stored.items():
        assert (await again.engine.get(key)).content == content
    await again.engine.check()
    await again.close()
