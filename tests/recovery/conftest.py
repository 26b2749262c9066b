import os

import pytest

from tests.preloaded_command import servers_are_forks

__all__ = ["servers_are_forks"]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SEGMENTSTORE_")]:
        monkeypatch.delenv(name)
