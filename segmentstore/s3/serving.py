"""The endpoint as a process: start, say so, serve until SIGTERM or SIGINT, end.

    stdout   one line: `ready http://HOST:PORT data=DIR ...`, and where the keys are if they are new
    stderr   the log

A second signal ends the process at once: what was acknowledged is safe either way.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from segmentstore.contracts.errors import InvalidRequestError, StorageError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.runtime.interpreter import set_aside_what_lasts, tune_for_serving
from segmentstore.runtime.process import loop_factory, stop_signals
from segmentstore.s3.credentials import FILE_NAME, Credentials, kept_credentials
from segmentstore.s3.endpoint import open_endpoint
from segmentstore.s3.settings import EndpointSettings
from tier2.volumes.settings import VolumeSettings

_LOGGER = logging.getLogger(__name__)


def run_endpoint(
    directory: Path,
    *,
    credentials: Credentials | None,
    settings: EndpointSettings,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal. Raises SegmentStoreError when it cannot start."""
    if not __debug__:
        raise InvalidRequestError(
            "the endpoint does not run under python -O: its assertions are what stops it before it loses data"
        )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(directory, credentials, settings, announce))


async def _serve(
    directory: Path,
    credentials: Credentials | None,
    settings: EndpointSettings,
    announce: Callable[[str], None],
) -> None:
    files, random = SystemFileSystem(), system_random()
    stopping = stop_signals()
    try:
        files.make_directories(str(directory))
        keys = "keys=environment"
        if credentials is None:
            credentials, are_new = kept_credentials(str(directory), random)
            keys = f"{'new ' if are_new else ''}keys={directory / FILE_NAME}"
    except OSError as error:
        raise StorageError(f"the data directory cannot be used: {error}") from error
    try:
        endpoint = open_endpoint(
            str(directory),
            credentials=credentials,
            files=files,
            wall_clock=SystemWallClock(),
            random=random,
            settings=settings,
            volume_settings=VolumeSettings(),
        )
        tune_for_serving()
        async with endpoint as server:
            set_aside_what_lasts()
            host, port = server.address
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            announce(f"ready {url} data={directory} {keys}; use: aws --endpoint-url {url} s3 ls")
            await stopping.wait()
            _LOGGER.info("stopping")
    except OSError as error:
        raise StorageError(f"cannot serve: {error.strerror or error}") from error
