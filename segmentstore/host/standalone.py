"""The whole store in one process: start, say so, work, stop when told.

    stdout   one line: `ready http://HOST:PORT wire=HOST:PORT controller=HOST:PORT ...`, or `partial http://...` if some
             container could not recover
    stderr   the log
    SIGUSR1  the log gets a line for every place where a task or a thread waits
    exit     0 after SIGTERM or SIGINT; 1 if it broke or did not stop in time; 2 for settings that cannot work;
             4 if another process has the data directory; 130 for a second signal while stopping

Invariants:

- Nothing listens before the data directory is ours; nothing is announced before every container has recovered or said
  why it cannot.
- Stopping goes outside in: no new requests, requests under way end, containers close their logs, the directory is
  released. A second signal ends the process at once: what was acknowledged is safe either way.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.runtime.process import (
    configure_logging,
    freeze_long_lived_objects,
    loop_factory,
    report_stacks_on_signal,
    stop_signals,
    tune_for_serving,
)

logger = logging.getLogger(__name__)

_FACES_SECONDS_MAX = 5.0
"""A controller that has not recovered by then goes on trying; the rest is announced without it."""
_EXIT_BROKEN = 1


class StandaloneRefusedError(InvalidRequestError):
    """The process cannot serve as it was started."""


def run_standalone(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal. `announce` gets the ready line. Raises SegmentStoreError when it cannot start."""
    if not __debug__:
        raise StandaloneRefusedError(
            "the store does not run under python -O: its assertions are what stops it before it loses data"
        )
    log = resolved.settings.log
    configure_logging(level=log.level, json_lines=log.format == "json")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(resolved, announce))


async def serve(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Start, announce, and stop on SIGTERM or SIGINT."""
    stopping = _stop_signals(resolved.settings.shutdown.grace_seconds)
    report_stacks_on_signal(logger.warning)
    tune_for_serving()
    async with open_service(resolved) as service:
        await _listen(service)
        try:
            async with asyncio.TaskGroup() as group:
                managing = group.create_task(service.manager.run(), name="container manager")
                facing = group.create_task(service.servers.run(), name="faces")
                announcing = group.create_task(_announce_when_ready(service, announce))
                caching = group.create_task(service.containers.preallocate_cache(), name="cache")
                await stopping.wait()
                logger.info("stopping")
                announcing.cancel()
                caching.cancel()
                facing.cancel()
                await service.servers.close()
                managing.cancel()
        finally:
            await service.servers.close()
    logger.info("stopped")


async def _listen(service: Service) -> None:
    try:
        await service.servers.start()
    except OSError as error:
        raise StandaloneRefusedError(f"cannot listen: {error.strerror or error}") from error
    except InvalidRequestError as error:
        raise StandaloneRefusedError(f"cannot listen: {error}") from error


async def _announce_when_ready(service: Service, announce: Callable[[str], None]) -> None:
    started = asyncio.get_running_loop().time()
    await service.manager.wait_until_settled()
    with suppress(TimeoutError):
        async with asyncio.timeout(_FACES_SECONDS_MAX):
            await service.servers.wait_until_ready()
    seconds = asyncio.get_running_loop().time() - started
    freeze_long_lived_objects()
    containers = service.registry.health()
    running = [each for each in containers if each.state is ContainerState.RUNNING]
    addresses = service.servers.addresses()
    servers = "".join(
        f" {name}={address}"
        for name, address in (("wire", addresses.wire), ("controller", addresses.controller))
        if address
    )
    word = "ready" if len(running) == len(containers) else "partial"
    announce(
        f"{word} http://{addresses.http}{servers} containers={len(running)}/{len(containers)} "
        f"active_segments={sum(each.active_segments for each in running)} "
        f"unflushed={sum(each.unflushed_bytes for each in running) / 1e6:.1f}MB "
        f"recovered_in={seconds:.2f}s data={service.data_directory or 'memory'}"
    )


def _stop_signals(grace_seconds: float) -> asyncio.Event:
    """Set by the first signal; the second one, or the end of the grace period, ends the process."""
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        logger.error("not stopped within the grace period grace_seconds=%g", grace_seconds)
        os._exit(_EXIT_BROKEN)

    stopping = stop_signals(on_first=lambda: loop.call_later(grace_seconds, give_up))
    # A terminal that is gone must not end a store that others rely on.
    with suppress(ValueError):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return stopping
