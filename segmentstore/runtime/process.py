"""What every serving process of this project does alike.

It chooses its loop (loop_factory, pass_over_lost_writes), ends on signals (stop_signals), and changes Python's defaults
where they cost a loop its punctuality (tune_for_serving, collections_put_off, freeze_long_lived_objects):

- A full garbage collection walks every object; what start-up and recovery made lives long, so it is set aside once, and
  collections of the young run less often, during recovery as well: a process that serves already shares the loop with
  it.
- A thread that computes holds the interpreter for up to the switch interval after the loop asks for it: 5 ms by
  default, many times the latency of an append.
- The files that a process may have open are fewer by default than the connections that its servers take.
- glibc gives buffers above 128 KB back to the system as soon as they are free, and the next one is made of fresh pages,
  whose first touch costs more than filling them. Told to keep some, it hands the same pages out again.

Its log goes to stderr (configure_logging), one line an event, for people as key=value, for machines as JSON. Messages
carry their facts as key=value at the end, in both forms, and never break their line:

    2026-11-21T09:30:00.123Z INFO segmentstore.host.standalone ready containers=4
    {"time":"2026-11-21T09:30:00.123Z","level":"info","logger":"...","message":"ready containers=4"}

On a signal it says where everything in a process that seems to stand still is waiting (report_stacks_on_signal):

    kill -USR1 PID

writes to the log one line for each task and each thread, innermost call last. Those that are at the same place share a
line, so that ten thousand long polls are one of them. It only looks: nothing is stopped, and what is written names
places in the code, never data.
"""

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import CodeType, FrameType
from typing import Any, TextIO

_SAME_SIGNAL_SECONDS = 1.0
"""Supervisors send a signal to a process and to its group: one wish, not two."""
_EXIT_AT_ONCE = 130

YOUNG_OBJECTS = 20_000
"""Allocations between two collections of the youngest generation (default 700)."""

MIDDLE_COLLECTIONS, FULL_COLLECTIONS = 4, 250
"""Collections of the younger generation between two of the next (default 10 and 10). The middle one walks at most
80,000 objects then, 5 to 18 ms under a backlog; with twenty it was 400,000 and 27 to 51 ms, as long in all."""

SWITCH_SECONDS = 0.0005

OPEN_FILES_MAX = 65_536
"""Where the system allows it: what a shell gives is often 1024, a tenth of the connections that one server may have."""

_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES_MAX = 64 << 20
_MAPPED_BYTES_MIN = 32 << 20
"""The largest that glibc takes; larger buffers are still mapped and unmapped one by one."""

_AWAITED_DEPTH_MAX = 60
"""Calls of a task that are followed."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    if sys.platform == "win32":
        return None
    return uvloop.new_event_loop


def pass_over_lost_writes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A loop's exception handler: the default, but for what aiohttp leaves behind each time a connection breaks.

    The request that was being written fails, and its caller says what follows of it. The task that wrote it fails as
    well, and is never asked: asyncio would log a traceback for each request to a server that is away.
    """
    future = context.get("future")
    if isinstance(future, asyncio.Task) and isinstance(context.get("exception"), ConnectionError):
        coroutine = future.get_coro()
        if getattr(coroutine, "__qualname__", "") == "ClientRequest.write_bytes":
            logging.getLogger(__name__).debug("a request was not written: %s", context["exception"])
            return
    loop.default_exception_handler(context)


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


def tune_for_serving() -> None:
    """Call once, before the process begins to recover or serve."""
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_COLLECTIONS, FULL_COLLECTIONS)
    sys.setswitchinterval(SWITCH_SECONDS)
    _keep_freed_memory()
    _allow_open_files()


@contextmanager
def collections_put_off() -> Iterator[None]:
    """No garbage collection meanwhile: for imports, whose objects nearly all stay, and would be walked 200 times."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_long_lived_objects() -> None:
    """Call once, when everything that lasts has been made: no collection walks it any more."""
    gc.collect()
    gc.freeze()


def _allow_open_files() -> None:
    """Connections of clients take descriptors, and so do journals: without one no journal begins, and the log fails."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if most == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, most)
    if given != resource.RLIM_INFINITY and given < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _keep_freed_memory() -> None:
    if sys.platform != "linux":
        return
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:  # other C libraries have none
        tune(_MALLOC_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        tune(_MALLOC_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def configure_logging(
    *, level: str, json_lines: bool = False, stream: TextIO | None = None
) -> None:
    """Send everything to one stream (default stderr), a line an event. Replaces what was configured before."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_JsonLines() if json_lines else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("asyncio", "aiobotocore", "botocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # One line per request is the business of metrics; at DEBUG it drowns everything else.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class _TextLines(logging.Formatter):
    """time LEVEL logger message."""

    def format(self, record: logging.LogRecord) -> str:
        message = _one_line(record.getMessage())
        line = f"{_time(record)} {record.levelname} {record.name} {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonLines(logging.Formatter):
    """One JSON object; a traceback is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, separators=(",", ":"))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(message: str) -> str:
    return message.replace("\n", "\\n") if "\n" in message else message


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
        (_task_kind(task.get_name()), " > ".join(_awaited_places(task)))
        for task in asyncio.all_tasks(loop)
    )
    for (name, place), count in sorted(tasks.items()):
        yield f"task {name!r} count={count} at {place}"
    threads = Counter(" > ".join(_called_places(frame)) for frame in sys._current_frames().values())
    for place, count in sorted(threads.items()):
        yield f"thread count={count} at {place}"


def _task_kind(name: str) -> str:
    """`Task-17` is only a number that asyncio gave it."""
    return "Task" if name.startswith("Task-") else name


def _awaited_places(task: "asyncio.Task[object]") -> Iterator[str]:
    """From the task's own coroutine to what it waits for in the end."""
    waiting: object = task.get_coro()
    for _ in range(_AWAITED_DEPTH_MAX):
        for kind in ("cr", "ag", "gi"):
            code = getattr(waiting, f"{kind}_code", None)
            if isinstance(code, CodeType):
                frame = getattr(waiting, f"{kind}_frame", None)
                line = frame.f_lineno if isinstance(frame, FrameType) else code.co_firstlineno
                yield _code_place(code, line)
                within = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
                waiting = getattr(waiting, within, None)
                break
        else:
            if waiting is not None:
                yield type(waiting).__name__
            return


def _called_places(frame: FrameType) -> list[str]:
    return [_code_place(each.f_code, line) for each, line in traceback.walk_stack(frame)][::-1]


def _code_place(code: CodeType, line: int) -> str:
    file = "/".join(code.co_filename.rsplit("/", 2)[-2:])
    return f"{code.co_qualname}({file}:{line})"
