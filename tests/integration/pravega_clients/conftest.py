"""A test that fails shows what its server was doing: where its tasks stood, and the end of its log."""

import signal
import time
from collections.abc import Generator

import pytest

from tests.integration.pravega_clients.store_process import StoreProcess

_LOG_BYTES = 20_000
_REPORT_SECONDS = 0.5


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    server = item.funcargs.get("server")
    if call.when == "call" and report.failed and isinstance(server, StoreProcess):
        report.sections.append(("the server", last_words(server)))
    return report


def last_words(server: StoreProcess) -> str:
    """Its lives up to now, and the end of its log, with the stacks of its tasks if it still runs."""
    lives = [*server.history, f"{time.monotonic():.3f} now"]
    if server.is_running:
        server.signal(signal.SIGUSR1)
        time.sleep(_REPORT_SECONDS)
    log = server.log_path.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    return "\n".join([*lives, log])
