"""A deterministic event loop: virtual time, inline executors, and processes that can die or stop in the middle.

The loop is the clock and the machine of a simulation. `sleep`, `timeout`, queues, locks, task groups and
`to_thread` all go through the running loop, so production code is simulated without knowing it.

Words: a *node* is one incarnation of one simulated process; the *world* is the code that runs outside every node
(clients, fault injectors, checkers). Every callback carries the node in its context.

Invariants:

- Time moves only when nothing is ready, and then exactly to the next timer.
- Ready callbacks run first in, first out, as asyncio documents it; variety comes from seeded delays.
- A dead node never runs another callback, not even a `finally`; what it left behind is buried in
  GRAVEYARD, which outlives every run, because a coroutine that is garbage collected runs its `finally`.
- A paused node keeps everything that should have run, and runs it in that order when it is resumed: the zombie.
- Sets of tasks iterate alike in every process: a task hashes by its birth number, not by its address.
- A run fails on everything asyncio only logs: exceptions never retrieved, callbacks that raise, generators left
  half consumed.

A run is made of ten thousand to a million steps, most of which do next to nothing, so what the loop does for a step is
kept short: handles of its own (`SimHandle`, `SimTimer`) instead of asyncio's, one comparison for all that is to be
looked at now and then (`_look_at`).

Leans on internals of CPython 3.11 to 3.13 (`_ready`, `_scheduled`, `_run_once`, `Task._log_destroy_pending`,
`tasks._unregister_task`); tests/sim/test_loop.py and test_determinism.py tell when that ends.
"""

import asyncio
import ctypes
import hashlib
import heapq
import itertools
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import Any, TypeVar

from tests.sim.node import (
    CURRENT_NODE,
    DeadlockError,
    LivelockError,
    Node,
    NodeDiedError,
    SimExecutor,
    SimulationError,
    current_node,
)

Result = TypeVar("Result")

GRAVEYARD: list[object] = []
# One reference that nobody gives back: else interpreter shutdown would wake the dead.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(GRAVEYARD))

_STEPS_MAX = 5_000_000
_STEPS_PER_INSTANT_MAX = 500_000
_TRACE_TAIL_LINES = 400
_LATE_JOB_PROBABILITY = 0.5


class SimTask(asyncio.Task[Any]):
    """A task that remembers its node and hashes by birth number."""

    def __init__(self, coroutine: Any, *, birth: int, **rest: Any) -> None:
        self._birth = birth
        self.node = current_node()
        super().__init__(coroutine, **rest)

    def __hash__(self) -> int:
        return self._birth


class SimFuture(asyncio.Future[Any]):
    """A future that remembers its node."""

    __slots__ = ("node",)
    node: Node | None


class OrderedFuture(SimFuture):
    """A future of a shuffled loop, whose callbacks do not tell the order: it remembers when it was over."""

    _ends = itertools.count(1)
    end = 0
    """Grows from one future that is over to the next."""

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        self.end = next(self._ends)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self.end = next(self._ends)

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self.end = next(self._ends)
        return cancelled


class SimHandle:
    """A callback that is to run: asyncio.Handle without its debug mode."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., Any], args: Sequence[Any], context: Context) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args: Sequence[Any] = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled


class SimTimer(float):
    """A callback that is to run at a time, which it is itself: so a heap of timers compares numbers."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    callback: Callable[..., Any] | None
    args: Sequence[Any]
    context: Context
    is_cancelled: bool

    def when(self) -> float:
        return float(self)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one simulated world. `random` is the only source of randomness of its edges."""

    def __init__(self, seed: int, *, verbose: bool = False, shuffled: bool = False) -> None:
        super().__init__()
        self.seed = seed
        self.random = Random(seed)
        self.verbose = verbose
        self.steps = 0
        """Callbacks that have run."""
        self.executor_delay: Callable[[Random], float] = _executor_delay
        self._steps_max = self._steps_max_now = _STEPS_MAX
        self._steps_before_now = 0
        self._look_at = sys.maxsize
        self._generator_nodes: dict[int, Node | None] = {}
        self._watchers: list[tuple[int, Callable[[], None]]] = []
        self._shuffled = shuffled
        self._now = 0.0
        self._births = itertools.count(1)
        self._failures: list[BaseException] = []
        self._trace_tail: deque[str] = deque(maxlen=_TRACE_TAIL_LINES)
        self._trace_hash = hashlib.sha256()
        self.set_task_factory(self._new_task)
        self.set_exception_handler(self._on_complaint)

    # --- time and order ---------------------------------------------------------------------------

    @property
    def steps_max(self) -> int:
        """A run that needs more callbacks has failed."""
        return self._steps_max

    @steps_max.setter
    def steps_max(self, steps: int) -> None:
        self._steps_max = steps
        self._limit_steps()

    def _limit_steps(self) -> None:
        self._steps_max_now = min(self._steps_max, self._steps_before_now + _STEPS_PER_INSTANT_MAX)

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = SimHandle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        timer = SimTimer(when)
        timer.callback = callback
        timer.args = args
        timer.context = copy_context() if context is None else context
        timer.is_cancelled = False
        heapq.heappush(self._scheduled, timer)
        return timer

    def _run_once(self) -> None:
        """One turn, as asyncio's own: due timers become ready, then what was ready at the start runs."""
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            self._advance()
        while scheduled and scheduled[0] <= self._now:
            ready.append(heapq.heappop(scheduled))
        for _ in range(len(ready)):
            if self._shuffled:
                ready.rotate(-self.random.randrange(len(ready)))
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            node = handle.context.get(CURRENT_NODE)
            if node is not None:
                if not node.alive:
                    GRAVEYARD.append(handle)
                    continue
                if node.paused:
                    node.held.append(handle)
                    continue
            self.steps = steps = self.steps + 1
            if steps > self._steps_max_now:
                raise LivelockError(
                    f"steps={steps} in this instant={steps - self._steps_before_now}"
                )
            try:
                handle.context.run(handle.callback, *handle.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, the run has failed
                self.call_exception_handler(
                    {"message": f"Exception in callback {handle.callback}", "exception": error}
                )
            if steps >= self._look_at:
                self._look()
            if self._failures:
                self.raise_failure()

    def _advance(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0].is_cancelled:
            heapq.heappop(scheduled)
        if scheduled:
            if scheduled[0] > self._now:
                self._now = float(scheduled[0])
                self._steps_before_now = self.steps
                self._limit_steps()
        elif not self._stopping:
            raise DeadlockError(f"nothing can happen any more\n{self.describe_tasks()}")

    def watch(self, every_steps: int, callback: Callable[[], None]) -> None:
        """Call back between two steps, in the world, every so many steps. What it raises ends the run."""
        self._watchers.append((every_steps, callback))
        self._look_at = 0

    def _look(self) -> None:
        for every, callback in self._watchers:
            if self.steps % every == 0:
                callback()
        self._look_at = min(
            (self.steps + every - self.steps % every for every, _ in self._watchers),
            default=sys.maxsize,
        )

    # --- executors --------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run the call inline later, in the world: a job in a thread goes on while its process stands still.

        If the node has died meanwhile, the job still happens or not, by the seed (H79). If it is paused, the
        job happens now (it was in the kernel) or when the node wakes (H46).
        """
        future = self.create_future()
        node = current_node()
        seconds = self.executor_delay(self.random)
        done_at = self._now + seconds
        if isinstance(executor, SimExecutor):
            done_at = executor.occupy(self._now, seconds)
        self._in_world(self.call_at, done_at, self._run_job, future, node, func, args)
        return future

    def _run_job(
        self,
        future: "asyncio.Future[Any]",
        node: Node | None,
        func: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        if node is not None and node.paused and self.random.random() < _LATE_JOB_PROBABILITY:
            late = SimHandle(self._run_job, (future, node, func, args), Context())
            node.held.append(late)
            return
        if node is not None and not node.alive:
            GRAVEYARD.append((future, func, args))
            if self.random.random() >= _LATE_JOB_PROBABILITY:
                return
        try:
            result = func(*args)
        except (KeyboardInterrupt, SystemExit, SimulationError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run has failed
            if not future.done() and (node is None or node.alive):
                future.set_exception(error)
        else:
            if not future.done() and (node is None or node.alive):
                future.set_result(result)

    def _in_world(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args, context=Context())

    # --- nodes ------------------------------------------------------------------------------------

    def start(self, name: str, main: Coroutine[Any, Any, Any]) -> Node:
        """Boot a process: everything that `main` starts belongs to it. An exception out of `main` fails the run."""
        node = self.new_node(name)
        node.main = self._spawn(node, main)
        node.main.add_done_callback(self._on_main_done, context=Context())
        return node

    def new_node(self, name: str) -> Node:
        """A process in which nothing runs yet; invoke() gives it work."""
        node = Node(name, next(self._births))
        node.context.run(CURRENT_NODE.set, node)
        return node

    def submit(self, node: Node, work: Coroutine[Any, Any, Result]) -> "asyncio.Future[Result]":
        """Send `work` into the node, like a request over a connection; requests arrive in the order of the calls.

        The answer fails with NodeDiedError when the node crashes first. Cancelling it cancels the work.
        """
        answer: asyncio.Future[Result] = self.create_future()
        if not node.alive:
            work.close()
            answer.set_exception(NodeDiedError(node.name))
            return answer
        node.callers[answer] = None
        spawn = self._spawn_behind_earlier_requests if self._shuffled else self._spawn
        task = spawn(node, work)
        task.add_done_callback(lambda done: _hand_over(done, answer), context=copy_context())
        answer.add_done_callback(lambda _: self._answered(node, task, answer))
        return answer

    def _spawn_behind_earlier_requests(
        self, node: Node, work: Coroutine[Any, Any, Result]
    ) -> "asyncio.Task[Result]":
        """A shuffled loop begins tasks in any order, and a connection still keeps that of its requests."""
        before, arrived = node.newest_arrival, self.create_future()
        node.newest_arrival = arrived

        async def arrive() -> Result:
            if before is not None:
                await asyncio.shield(before)
            arrived.set_result(None)
            return await work

        def ended(_: "asyncio.Task[Result]") -> None:
            work.close()  # it may not have begun
            if arrived.done():
                return
            if before is None or before.done():
                arrived.set_result(None)
            else:
                before.add_done_callback(lambda _: arrived.set_result(None))

        task = self._spawn(node, arrive())
        task.add_done_callback(ended, context=copy_context())
        return task

    def _answered(
        self, node: Node, task: "asyncio.Task[Any]", answer: "asyncio.Future[Any]"
    ) -> None:
        node.callers.pop(answer, None)
        if answer.cancelled() and node.alive:
            task.cancel()

    async def invoke(self, node: Node, work: Coroutine[Any, Any, Result]) -> Result:
        """submit() and wait for the answer."""
        return await self.submit(node, work)

    def crash(self, node: Node) -> None:
        """Kill -9: no `finally`, no flush, no goodbye. Callers from outside see NodeDiedError."""
        assert current_node() is not node, f"a node cannot outlive its own crash {node}"
        if not node.alive:
            return
        node.alive = False
        node.paused = False
        tasks = [task for task in asyncio.all_tasks(self) if getattr(task, "node", None) is node]
        _lay_down(tasks)
        timers = [timer for timer in self._scheduled if timer.context.get(CURRENT_NODE) is node]
        self._scheduled = [t for t in self._scheduled if t.context.get(CURRENT_NODE) is not node]
        heapq.heapify(self._scheduled)
        jobs = [handle for handle in node.held if handle.context.get(CURRENT_NODE) is None]
        self._ready.extend(jobs)
        GRAVEYARD.append((node, tasks, timers, node.held, node.main))
        node.held = []
        for caller in list(node.callers):
            if not caller.done():
                caller.set_exception(NodeDiedError(node.name))
        self.trace("crash", node)

    def pause(self, node: Node) -> None:
        """Stop the process as SIGSTOP or a long collection does: it keeps its files and its beliefs."""
        assert current_node() is not node, f"a node cannot pause itself {node}"
        node.paused = node.alive
        node.pause_count += node.alive
        self.trace("pause", node)

    def resume(self, node: Node) -> None:
        """Let it go on as if no time had passed. Nothing happens to a dead node."""
        if not node.paused:
            return
        node.paused = False
        held, node.held = node.held, []
        self._ready.extend(held)
        self.trace("resume", node)

    def bury(self, thing: object) -> None:
        """Keep an object of a dead node from ever being collected."""
        GRAVEYARD.append(thing)

    def _spawn(self, node: Node, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return node.context.copy().run(self.create_task, work)

    def _new_task(self, loop: Any, coroutine: Any, **rest: Any) -> Any:
        return SimTask(coroutine, loop=loop, birth=next(self._births), **rest)

    def create_future(self) -> Any:
        future = OrderedFuture(loop=self) if self._shuffled else SimFuture(loop=self)
        future.node = CURRENT_NODE.get()
        return future

    def _on_main_done(self, main: "asyncio.Task[Any]") -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            self.fail(error)

    # --- what fails a run -------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """End the run with this error after the present step."""
        self._failures.append(error)

    def raise_failure(self) -> None:
        """Raise what fail() was given first, if anything."""
        if self._failures:
            raise self._failures[0]

    def _on_complaint(self, loop: Any, complaint: dict[str, Any]) -> None:
        owner = complaint.get("task") or complaint.get("future")
        node = getattr(owner, "node", None)
        if node is not None and not node.alive:
            return
        error = SimulationError(f"{complaint.get('message')} {owner!r} {node or ''}")
        error.__cause__ = complaint.get("exception")
        self.fail(error)

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._generator_nodes[id(agen)] = current_node()

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        GRAVEYARD.append(agen)
        node = self._generator_nodes.pop(id(agen), None)
        if node is not None and not node.alive:
            return
        self.fail(
            SimulationError(f"a generator was left half consumed, hold it in aclosing {agen!r}")
        )

    def describe_tasks(self) -> str:
        """Every unfinished task with the line where it waits."""
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=hash):
            stack = task.get_stack(limit=1)
            where = f"{stack[0].f_code.co_qualname}:{stack[0].f_lineno}" if stack else "?"
            lines.append(f"  {getattr(task, 'node', None) or 'world'} {task.get_name()} at {where}")
        return "\n".join(lines)

    def end(self) -> None:
        """The world stops: nothing of it runs again."""
        tasks = list(asyncio.all_tasks(self))
        _lay_down(tasks)
        GRAVEYARD.append((tasks, list(self._ready), list(self._scheduled)))
        self.close()

    # --- trace ------------------------------------------------------------------------------------

    def trace(self, *words: object) -> None:
        """One short line with the virtual time and the node. Words must print alike in every process."""
        node = current_node()
        line = f"{self._now:.6f} {node.name if node else '-'} {' '.join(map(str, words))}"
        self._trace_tail.append(line)
        self._trace_hash.update(line.encode())
        self._trace_hash.update(b"\n")
        if self.verbose:
            print(line)  # noqa: T201

    def trace_tail(self, lines: int = 40) -> list[str]:
        """The last lines of the trace, the latest last."""
        return list(self._trace_tail)[-lines:]

    def fingerprint(self) -> str:
        """Equal in two runs only if they did the same: trace, time, callbacks and random numbers."""
        end = f"{self._now!r} {self.steps} {self.random.getstate()[1][-1]} {self.random.random()!r}"
        return hashlib.sha256(self._trace_hash.digest() + end.encode()).hexdigest()

    # --- what does not exist here -----------------------------------------------------------------

    async def getaddrinfo(self, *args: Any, **rest: Any) -> Any:
        raise NotImplementedError("there is no network in a simulation")

    async def getnameinfo(self, *args: Any, **rest: Any) -> Any:
        raise NotImplementedError("there is no network in a simulation")


def _lay_down(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """They never run again: they complain of nothing, and no later all_tasks() of any run goes through them."""
    for task in tasks:
        task._log_destroy_pending = False
        asyncio.tasks._unregister_task(task)


def _executor_delay(random: Random) -> float:
    """Half a millisecond on average; now and then a long one."""
    seconds = random.expovariate(2000)
    return seconds * 100 if random.random() < 0.01 else seconds


def _hand_over(done: "asyncio.Task[Any]", answer: "asyncio.Future[Any]") -> None:
    if done.cancelled():
        answer.cancel()
        return
    error = done.exception()
    if answer.done():
        if error is None and not answer.cancelled() and answer.exception() is not None:
            GRAVEYARD.append(done.result())  # finished in the moment in which its node died
        return
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
