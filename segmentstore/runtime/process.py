"""What every serving process of this project does alike: the loop it runs on, and the signals that end it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

_SAME_SIGNAL_SECONDS = 1.0
"""Supervisors send a signal to a process and to its group: one wish, not two."""
_EXIT_AT_ONCE = 130


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    if sys.platform == "win32":
        return None
    return uvloop.new_event_loop


def stop_signals(on_first: Callable[[], object] | None = None) -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT, which also calls `on_first`; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def insist() -> None:
        for number in numbers:
            loop.add_signal_handler(number, os._exit, _EXIT_AT_ONCE)

    def on_signal() -> None:
        if not stopping.is_set():
            stopping.set()
            loop.call_later(_SAME_SIGNAL_SECONDS, insist)
            if on_first is not None:
                on_first()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    return stopping
