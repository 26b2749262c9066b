"""What other processes import of Tier 2: every name is there, and reads of segments do not pay for proofs."""

import json
import subprocess
import sys

from tier2 import outside_access

_LOADED = """
import json, sys
from tier2 import outside_access
print(json.dumps(sorted(sys.modules)))
"""


def test_every_name_that_is_shown_is_there() -> None:
    assert all(getattr(outside_access, name) is not None for name in outside_access.__all__)


def test_what_reads_of_segments_do_not_need_is_not_loaded() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True
    )
    modules = json.loads(shown.stdout)
    assert "tier2.store_reader" in modules
    assert [
        each for each in modules if each.startswith(("tier2.offline.", "tier2.maintenance."))
    ] == []
    assert "tier2.read.record_file_index" not in modules
