"""Compaction by key as older versions did it: the last record of a partition may go, and leaves a gap at its end."""

from typing import Any

import pytest

from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics.record_files.record_files import MadeFile


def keep_no_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are compacted from now on."""
    surviving = Tier2RecordFiles.surviving

    async def without_last(self: Tier2RecordFiles, *args: Any, **more: Any) -> MadeFile | None:
        return await surviving(self, *args, **{**more, "keeps_last": False})

    monkeypatch.setattr(Tier2RecordFiles, "surviving", without_last)
