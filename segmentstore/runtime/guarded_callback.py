"""Callbacks of the event loop whose failure is their owner's end.

A task that fails tells the one that awaits it. A callback that is run by `call_soon`, `call_at`, `add_reader` or a
future's `add_done_callback` tells no task: the loop logs the exception and goes on, and what the callback was to do
next is never done. A task that waits for that waits for ever.

Rule: a callback that does more than set a future, an event or a number is scheduled as `guarded(callback, fail)`, with
a `fail` that ends its owner as a failed task of that owner would.
"""

from collections.abc import Callable
from typing import ParamSpec

_Arguments = ParamSpec("_Arguments")


def guarded(
    callback: Callable[_Arguments, None], fail: Callable[[Exception], None]
) -> Callable[_Arguments, None]:
    """The callback for the loop. Make it once where it has to be found again (`remove_done_callback`)."""

    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except Exception as bug:  # noqa: BLE001  # the top of a callback, as of a task: its owner ends
            fail(bug)

    return run


def raise_again(bug: Exception) -> None:
    """A `fail` for parts without an owner, as in tests of one part: the loop reports the exception."""
    raise bug
