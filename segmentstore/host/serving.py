"""What every serving process of the host does alike: log, signals, the time it has to stop, how it announces itself.

    stdout   one line, which begins with `ready` or, if some container that should run does not, with `partial`; it ends
             with `recovering=controller,topics` where servers do not answer yet
    stderr   the log
    SIGUSR1  the log gets a line for every place where a task or a thread waits
    exit     0 after SIGTERM or SIGINT; 1 if it broke or did not stop in time; 130 for a second signal while stopping

Invariants:

- The process refuses to run without assertions: they are what stops it before it loses data.
- A second signal ends the process at once, and so does the end of its grace: what was acknowledged is safe either way.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from segmentstore.contracts.containers import ContainerHealth, ContainerState
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.host.servers import ServerAddresses
from segmentstore.host.settings import LogSettings
from segmentstore.runtime.process import (
    configure_logging,
    loop_factory,
    pass_over_lost_writes,
    report_stacks_on_signal,
    stop_signals,
    tune_for_serving,
)

logger = logging.getLogger(__name__)

_EXIT_BROKEN = 1


class ServingRefusedError(InvalidRequestError):
    """The process cannot serve as it was started."""


def run_process(serve: Coroutine[None, None, None], log: LogSettings) -> None:
    """Run it to its end on a loop of its own. Raises SegmentStoreError when it cannot start."""
    if not __debug__:
        serve.close()
        raise ServingRefusedError(
            "the store does not run under python -O: its assertions are what stops it before it loses data"
        )
    configure_logging(level=log.level, json_lines=log.format == "json")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.get_loop().set_exception_handler(pass_over_lost_writes)
        runner.run(serve)


def begin_serving(grace_seconds: float) -> asyncio.Event:
    """Set by the first signal; the second one, or the end of the grace period, ends the process."""
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        logger.error("not stopped within the grace period grace_seconds=%g", grace_seconds)
        os._exit(_EXIT_BROKEN)

    stopping = stop_signals(on_first=lambda: loop.call_later(grace_seconds, give_up))
    # A terminal that is gone must not end a store that others rely on.
    with suppress(ValueError):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    report_stacks_on_signal(logger.warning)
    tune_for_serving()
    return stopping


async def listen(start: Coroutine[None, None, None]) -> None:
    """Await what begins to listen. Raises ServingRefusedError if an address cannot be listened on."""
    try:
        await start
    except OSError as error:
        raise ServingRefusedError(f"cannot listen: {error.strerror or error}") from error
    except InvalidRequestError as error:
        raise ServingRefusedError(f"cannot listen: {error}") from error


def ready_line(
    addresses: ServerAddresses,
    containers: Sequence[ContainerHealth],
    *facts: str,
    seconds: float,
    recovering: Sequence[str],
) -> str:
    """What a process announces; `containers`: those that should run in it; `recovering`: servers that go on trying."""
    running = [each for each in containers if each.state is ContainerState.RUNNING]
    servers = [
        f"{name}={address}"
        for name, address in (
            ("wire", addresses.wire),
            ("controller", addresses.controller),
            ("kafka", addresses.kafka),
            ("topics_grpc", addresses.topics_grpc),
        )
        if address
    ]
    words = [
        "ready" if len(running) == len(containers) else "partial",
        f"http://{addresses.http}",
        *servers,
        f"containers={len(running)}/{len(containers)}",
        f"active_segments={sum(each.active_segments for each in running)}",
        f"unflushed={sum(each.unflushed_bytes for each in running) / 1e6:.1f}MB",
        f"recovered_in={seconds:.2f}s",
        *facts,
        *recovering_words(recovering),
    ]
    return " ".join(words)


def recovering_words(names: Sequence[str]) -> list[str]:
    """The last word of a ready line, if it has one."""
    return [f"recovering={','.join(names)}"] if names else []
