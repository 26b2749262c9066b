"""A callback of the loop that fails is its owner's end, or it does so little that it cannot fail.

Every call_soon, call_later, call_at, add_reader, call_soon_threadsafe and add_done_callback of the tree is looked at:
it is given what `guarded` made, or one of those below.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("containers", "segmentstore", "tier1", "tier2")

SCHEDULERS = {
    "call_soon": 0,
    "call_soon_threadsafe": 0,
    "call_later": 1,
    "call_at": 1,
    "add_reader": 1,
    "add_writer": 1,
    "add_done_callback": 0,
}
"""Which of their arguments is the callback."""

HARMLESS = {
    "retrieve_exception": "takes an exception",
    "self._hurry.set": "an event",
    "event.set": "an event",
    "lambda _: self._wake.set()": "an event",
    "self._queue.wake": "an event",
}
"""Callbacks that set an event, and nothing else."""

LOOKED_AT = {
    "containers/held_changes.py:self._merges.discard": "takes out of a set",
    "containers/log/in_memory_log.py:self._delay_over": "sets a future",
    "containers/log/operation_processor.py:unpin": "counts",
    "containers/read_index/segment_read_index.py:self._waiter_left": "counts",
    "containers/read_index/tail_waiters.py:_wake_slice": "sets futures",
    "containers/tables/table_handle.py:appended": "what it raises is its caller's answer",
    "segmentstore/cli/pipes.py:announce": "sets a future",
    "segmentstore/client/event_writer.py:self._wake_again": "counts, and sets futures",
    "segmentstore/controller/metadata/metadata_table.py:self._abandoned.pop": "takes out of a dictionary",
    "segmentstore/host/serving.py:give_up": "ends the process",
    "segmentstore/runtime/cancellation.py:wake": "sets a future",
    "segmentstore/runtime/process.py:insist": "ends the process",
    "segmentstore/runtime/task_set.py:self._ended": "tells its owner by itself, and once",
    "segmentstore/runtime/thread_pool.py:report": "sets a future",
    "segmentstore/topics/api/grpc_server.py:lambda _: room.give_back()": "counts, and sets futures",
    "tier1/file_log/frame_flush.py:self._report": "fails the log by itself",
    "tier1/memory_log.py:self._complete": "of tests: sets futures",
    "tier2/background_pace.py:self._look": "reads the clock",
    "tier2/volumes/engine.py:_close_opened": "closes what no one waits for",
    "tier2/volumes/opening.py:_close_opened": "closes what no one waits for",
}
"""Callbacks by file, and why they are not guarded."""


def callbacks(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every callback that a file gives to the loop."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        place = SCHEDULERS.get(node.func.attr)
        if place is not None:
            yield node.lineno, ast.unparse(node.args[place])


def guarded_names(path: Path) -> set[str]:
    """What a file assigns from guarded()."""
    return {
        ast.unparse(target)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and is_guarded(ast.unparse(node.value))
        for target in node.targets
    }


def is_guarded(text: str) -> bool:
    return text.split("(")[0].split(".")[-1] == "guarded"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_callback_of_the_loop_is_guarded_or_cannot_fail(package: str) -> None:
    found: list[str] = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        made = guarded_names(path)
        found += [
            f"{name}:{line} {text}"
            for line, text in callbacks(path)
            if not is_guarded(text)
            and text not in made
            and text not in HARMLESS
            and f"{name}:{text}" not in LOOKED_AT
        ]
    assert not found, "\n".join(found)
