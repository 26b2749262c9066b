"""Where everything in a process that seems to stand still is waiting: for people, on a signal.

    kill -USR1 PID

writes to the log one line for each task and each thread, innermost call last. Those that are at the same place share a
line, so that ten thousand long polls are one of them.

It only looks: nothing is stopped, and what is written names places in the code, never data.
"""

import asyncio
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

_DEPTH_MAX = 60
"""Calls of a task that are followed."""


def report_stacks_on_signal(report: Callable[[str], None]) -> None:
    """From now on SIGUSR1 has every line of stack_lines() given to `report`, on the running loop."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        for line in stack_lines(loop):
            report(line)

    loop.add_signal_handler(signal.SIGUSR1, on_signal)


def stack_lines(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Tasks of the loop, then threads. O(tasks)."""
    tasks = Counter(
        (_kind(task.get_name()), " > ".join(_awaited(task))) for task in asyncio.all_tasks(loop)
    )
    for (name, place), count in sorted(tasks.items()):
        yield f"task {name!r} count={count} at {place}"
    threads = Counter(" > ".join(_called(frame)) for frame in sys._current_frames().values())
    for place, count in sorted(threads.items()):
        yield f"thread count={count} at {place}"


def _kind(name: str) -> str:
    """`Task-17` is only a number that asyncio gave it."""
    return "Task" if name.startswith("Task-") else name


def _awaited(task: "asyncio.Task[object]") -> Iterator[str]:
    """From the task's own coroutine to what it waits for in the end."""
    waiting: object = task.get_coro()
    for _ in range(_DEPTH_MAX):
        for kind in ("cr", "ag", "gi"):
            code = getattr(waiting, f"{kind}_code", None)
            if isinstance(code, CodeType):
                frame = getattr(waiting, f"{kind}_frame", None)
                line = frame.f_lineno if isinstance(frame, FrameType) else code.co_firstlineno
                yield _place(code, line)
                within = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
                waiting = getattr(waiting, within, None)
                break
        else:
            if waiting is not None:
                yield type(waiting).__name__
            return


def _called(frame: FrameType) -> list[str]:
    return [_place(each.f_code, line) for each, line in traceback.walk_stack(frame)][::-1]


def _place(code: CodeType, line: int) -> str:
    file = "/".join(code.co_filename.rsplit("/", 2)[-2:])
    return f"{code.co_qualname}({file}:{line})"
