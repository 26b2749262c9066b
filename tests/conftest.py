"""What all tests share: processes that start quickly."""

import os
import sys
from pathlib import Path

from hypothesis import settings

if sys.dont_write_bytecode:
    # The tests start some hundred processes of ours. Where nothing compiled may be left beside the sources, each would
    # compile half a thousand modules again: as much as the rest of its start. So it is left among what tests leave.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compiled = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(compiled))

# Timings decide no test: an example that is slow on a busy machine is not wrong.
settings.register_profile("store", deadline=None)
settings.load_profile("store")
