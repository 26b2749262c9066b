"""What a process imports before it serves: half of the CPU of its start."""

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys
import segmentstore.host.standalone
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
def test_a_process_that_serves_no_topics_imports_no_message_of_kafkas_protocol() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, check=True, text=True
    )
    modules = json.loads(done.stdout)
    assert "segmentstore.wire.server" in modules
    assert [name for name in modules if "kafka_protocol" in name] == []
