"""The parent of a store in several processes: starts them, watches them, restarts them; serves no data itself.

    parent       the data directory and its lock, the listening sockets, who runs; /health and /metrics of its own
    volumes      Tier 2, if it is in volumes: one process has them, the nodes ask it by a socket (`volumes_process.py`)
    node 0 .. N  containers, by number modulo N; all servers (`node_process.py`); node 0 has the controller too

    stdout   one line: `ready http://HOST:PORT wire=... controller=... containers=4/4 ... processes=2 status=http://...`,
             or another one of those that `serving.py` names
    exit     as `serving.py`; 2 for what cannot work, 4 if another process has the data directory

Invariants:

- **No container is open in two processes.** The next process of a place is started when the kernel has reported the end
  of the one before. If a parent dies, a second guard stands: the lock of the data directory belongs to every process of
  the store, by a descriptor that it inherits, so a new parent waits until the last one has ended, or gives up. A third
  one is the lock on the directory of each log.
- The processes end when the parent does, however it does: each has one end of a channel that the kernel closes then.
- What can never work ends the start, as in a store of one process: a place that has never served, and whose process
  says why it cannot, is not tried again. One that has served is: what is in its way may go.
- Sockets are bound once, by the parent: what connects to a process that is away waits for the next one.
- Told to end, it ends the nodes first, which flush nothing but may, and then the volumes.
- One more process than there are places has loaded the program and waits for orders, so that a place is filled within
  the time that its containers take to recover. It has nothing of the store, not even its lock.
- What is on the disk does not depend on the number of processes.
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from segmentstore.host.data_directory import (
    DataDirectory,
    DataDirectoryError,
    DataDirectoryInUseError,
    DirectoryIdentity,
)
from segmentstore.host.object_stores import tier2_place
from segmentstore.host.processes.orders import (
    NODE,
    VOLUMES,
    Message,
    NodeAddresses,
    Orders,
    States,
    process_count,
    states_message,
)
from segmentstore.host.processes.started_process import Launcher, StartedProcess
from segmentstore.host.servers import address_text
from segmentstore.host.serving import (
    ServingRefusedError,
    begin_serving,
    listen,
    recovering_words,
    run_process,
)
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.host.settings import MIB, ServiceSettings, SettingsError, split_address
from segmentstore.http.status_server import ProcessHealth, StatusServer
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_OFF = "off"
_BACKLOG = 1024
_CACHE_BYTES_MIN = 4 * MIB
_DIRECTORY_SECONDS_MAX = 3.0
"""Processes of a parent that was killed end at once; a store that goes on for longer is another one."""
_LOOK_SECONDS = 0.05
_PORTS_TRIED_MAX = 1_000
_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX = 0.05, 10.0
_LAST_WORDS_SECONDS = 5.0
"""For a process whose channel has ended to say why, and to end."""
_FORGIVEN_SECONDS = 30.0
"""A process that ran for so long is started again without a pause."""


def run_processes(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal. `announce` gets the ready line. Raises SegmentStoreError when it cannot start."""
    run_process(serve_processes(resolved, announce), resolved.settings.log)


async def serve_processes(resolved: ResolvedSettings, announce: Callable[[str], None]) -> None:
    """Start, announce, and stop on SIGTERM or SIGINT."""
    # The nodes take their grace one beside the other, and the volumes theirs.
    stopping = begin_serving(2 * resolved.settings.shutdown.grace_seconds + 1)
    async with _open_supervisor(resolved) as supervisor:
        await supervisor.serve(stopping, announce)
    logger.info("stopped")


@dataclass(slots=True)
class _Place:
    """A process that should run, and the one that does."""

    name: str
    index: int
    """Of a node; -1 for the volumes."""
    process: StartedProcess | None = None
    start: int = 0
    """Number of the start of the process that serves; 0 while none does."""
    starts: int = 0
    has_served: bool = False
    """Some process of it."""
    refusal: str = ""
    """Why the process cannot serve, as it says."""
    is_ready: bool = False
    summary: Mapping[str, int] = field(default_factory=dict)
    complaints: Sequence[str] = ()
    recovering: Sequence[str] = ()
    """Servers that did not answer yet when it was ready otherwise."""


class Supervisor:
    """serve() once."""

    def __init__(
        self,
        *,
        orders: Orders,
        sockets: Sequence[Sequence[socket.socket]],
        volumes_listening: socket.socket | None,
        lock_descriptor: int,
        status_address: str,
        http_address: str,
        kafka_address: str,
    ) -> None:
        """`orders`: those of node 0 at its first start; the others differ in what they name.

        `kafka_address`: what Kafka's clients are given to begin with; empty without one.
        """
        self._orders = orders
        self._sockets = sockets
        self._volumes_listening = volumes_listening
        self._lock_descriptor = lock_descriptor
        self._http_address = http_address
        self._kafka_address = kafka_address
        self._topics_grpc_address = orders.settings.get("kafka.grpc_address", _OFF)
        self._controller_address = orders.controller_address
        self._starts = 0
        self._ends = [0] * orders.container_count
        self._nodes = [_Place(f"node {index}", index) for index in range(len(orders.nodes))]
        self._volumes = None if volumes_listening is None else _Place("volumes", -1)
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()
        self._refusal = ""
        """Of the place that cannot serve at all; then the start has failed."""
        self._is_stopping = False
        self._launcher = Launcher()
        self._status = StatusServer(
            *split_address(status_address), health=self.health, metrics=self._metrics
        )

    async def serve(self, stopping: asyncio.Event, announce: Callable[[str], None]) -> None:
        """Until the event is set; every process has ended then. Raises ServingRefusedError: the start has failed."""
        began = asyncio.get_running_loop().time()
        await listen(self._status.start())
        try:
            async with asyncio.TaskGroup() as nodes, asyncio.TaskGroup() as others:
                announcing = others.create_task(self._announce(announce, began))
                watching = others.create_task(self._end_behind(stopping))
                below = [] if self._volumes is None else [self._volumes]
                kept_below = [
                    others.create_task(self._keep(place), name=place.name) for place in below
                ]
                kept = [
                    nodes.create_task(self._keep(place), name=place.name) for place in self._nodes
                ]
                await self._ending.wait()
                logger.info("stopping")
                self._is_stopping = True
                announcing.cancel()
                watching.cancel()
                await _end(self._nodes, kept)
                await _end(below, kept_below)
        finally:
            await self._kill_all()
            await self._launcher.close()
            await self._status.close()
        if self._refusal:
            raise ServingRefusedError(self._refusal)

    async def _end_behind(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._ending.set()

    def health(self) -> ProcessHealth:
        """What runs of it."""
        complaints = [
            f"{place.name} is not there: it is started again"
            for place in self._places()
            if not place.is_ready
        ]
        for place in self._places():
            complaints += place.complaints
        return ProcessHealth(
            ready=not any(not place.is_ready for place in self._places()),
            complaints=complaints,
            facts={
                "processes": len(self._nodes),
                "container_count": self._orders.container_count,
                "launcher_process_id": self._launcher.process_id,
                **{
                    f"{place.name.replace(' ', '_')}_{name}": value
                    for place in self._places()
                    for name, value in self._facts_of(place).items()
                },
            },
        )

    def _facts_of(self, place: _Place) -> Mapping[str, str | int | bool | None]:
        facts: dict[str, str | int | bool | None] = {
            "process_id": None if place.process is None else place.process.pid,
            "ready": place.is_ready,
            "starts": place.starts,
        }
        if place.index >= 0:
            addresses = self._orders.nodes[place.index]
            facts |= {"http": addresses.http, "wire": addresses.wire, "kafka": addresses.kafka}
        return facts

    def _metrics(self) -> Mapping[str, float]:
        return {
            "processes": len(self._nodes),
            "processes_ready": sum(place.is_ready for place in self._nodes),
            "process_starts_total": self._starts,
        }

    def _places(self) -> list[_Place]:
        return [*([] if self._volumes is None else [self._volumes]), *self._nodes]

    async def _keep(self, place: _Place) -> None:
        """Start its process, again and again, until told to end."""
        loop = asyncio.get_running_loop()
        pauses = Backoff(seconds_first=_PAUSE_SECONDS_FIRST, seconds_max=_PAUSE_SECONDS_MAX)
        while not self._is_stopping:
            began = loop.time()
            try:
                how = await self._run_one(place)
            except OSError as error:
                # Memory or processes that run out now may be there in a moment; the others go on.
                how = f"cannot be started: {error}"
            if self._ends_now():
                return
            if loop.time() - began > _FORGIVEN_SECONDS:
                pauses.reset()
            pause = pauses.next_seconds()
            logger.error("%s %s; it is started again", place.name, how)
            await asyncio.sleep(pause)

    def _ends_now(self) -> bool:
        return self._is_stopping

    async def _run_one(self, place: _Place) -> str:
        """One process from its start to its end, which the kernel has reported when this returns; how it ended.

        Raises OSError if there was none.
        """
        process = await self._launcher.fork()
        self._starts += 1
        start = self._starts
        place.process, place.starts = process, place.starts + 1
        try:
            await process.order(self._orders_of(place, start), self._descriptors_of(place))
            while (message := await process.receive()) is not None:
                self._take(place, start, message)
            exit_code = await process.end_soon(seconds_max=_LAST_WORDS_SECONDS)
            if place.refusal:
                return f"cannot serve: {place.refusal}"
            return f"has ended exit_code={exit_code}"
        except BaseException:
            await process.kill()
            raise
        finally:
            place.process, place.start, place.is_ready = None, 0, False
            place.complaints, place.refusal = (), ""
            self._tell_states()

    def _orders_of(self, place: _Place, start: int) -> Orders:
        return replace(
            self._orders,
            role=VOLUMES if place.index < 0 else NODE,
            index=place.index,
            start=start,
            controller_address=self._controller_address,
            settings={
                **self._orders.settings,
                # gRPC binds for itself, and a port is of one process.
                "kafka.grpc_address": self._topics_grpc_address if place.index == 0 else _OFF,
            },
        )

    def _descriptors_of(self, place: _Place) -> list[int]:
        if place.index >= 0:
            listening = self._sockets[place.index]
        else:
            assert self._volumes_listening is not None, "volumes without a socket"
            listening = [self._volumes_listening]
        return [*(each.fileno() for each in listening), self._lock_descriptor]

    def _take(self, place: _Place, start: int, message: Message) -> None:
        match message:
            case {"up": {"controller": str(address), "topics_grpc": str(topics_address)}}:
                # A port that the system chose is the same for the next process.
                if address:
                    self._controller_address = address
                if topics_address:
                    self._topics_grpc_address = topics_address
                place.start, place.has_served = start, True
                self._tell_states()
            case {"up": _}:
                place.start, place.is_ready = start, True
            case {"settled": dict(summary)}:
                place.summary = summary
            case {"ready": {"recovering": list(recovering)}}:
                place.is_ready, place.recovering = True, recovering
                if all(each.is_ready for each in self._places()):
                    logger.info("all processes are ready")
            case {"ended": [int(container_id), int()]}:
                self._ends[container_id] += 1
                self._tell_states()
            case {"look": _}:
                if place.process is not None:
                    place.process.send({"looked": True})
            case {"refused": str(why)}:
                place.refusal = why
                if not place.has_served:
                    self._refusal = self._refusal or why
                    self._ending.set()
            case {"complaints": list(complaints)}:
                place.complaints = complaints
            case _:
                raise AssertionError(f"no message of ours {message=}")
        self._changed.set()

    def _tell_states(self) -> None:
        states = states_message(
            States(starts=[place.start for place in self._nodes], ends=list(self._ends))
        )
        for place in self._nodes:
            if place.start and place.process is not None:
                place.process.send(states)

    async def _announce(self, announce: Callable[[str], None], began: float) -> None:
        while not all(place.is_ready for place in self._places()):
            self._changed.clear()
            await self._changed.wait()
        announce(self._ready_line(asyncio.get_running_loop().time() - began))

    def _ready_line(self, seconds: float) -> str:
        def total(name: str) -> int:
            return sum(place.summary.get(name, 0) for place in self._nodes)

        controller, topics_grpc = self._controller_address, self._topics_grpc_address
        words = [
            "ready" if total("running") == self._orders.container_count else "partial",
            f"http://{self._http_address}",
            *([f"wire={self._orders.nodes[0].wire}"] if self._orders.nodes[0].wire else []),
            *([f"controller={controller}"] if controller != _OFF else []),
            *([f"kafka={self._kafka_address}"] if self._kafka_address else []),
            *([f"topics_grpc={topics_grpc}"] if topics_grpc != _OFF else []),
            f"containers={total('running')}/{self._orders.container_count}",
            f"active_segments={total('active_segments')}",
            f"unflushed={total('unflushed_bytes') / 1e6:.1f}MB",
            f"recovered_in={seconds:.2f}s",
            f"data={self._orders.settings['store.data_directory']}",
            f"processes={len(self._nodes)}",
            f"status=http://{address_text(*self._status.address)}",
            *recovering_words(sorted({name for place in self._nodes for name in place.recovering})),
        ]
        return " ".join(words)

    async def _kill_all(self) -> None:
        for place in self._places():
            if place.process is not None:
                await place.process.kill()


async def _end(places: Sequence[_Place], kept: Sequence[Awaitable[None]]) -> None:
    """Tell them to end, and wait until they have; each has a grace of its own."""
    for place in places:
        if place.process is not None:
            place.process.signal(signal.SIGTERM)
    # Those in a pause before another start have nothing to end.
    for place, task in zip(places, kept, strict=True):
        if place.process is None and isinstance(task, asyncio.Task):
            task.cancel()
    await asyncio.gather(*kept, return_exceptions=True)


@asynccontextmanager
async def _open_supervisor(resolved: ResolvedSettings) -> AsyncIterator[Supervisor]:
    settings = resolved.settings
    files, random = SystemFileSystem(), system_random()
    _require_shareable(resolved)
    async with AsyncExitStack() as stack:
        path = _absolute(settings.store.data_directory)
        directory = DataDirectory(
            path,
            files=files,
            executor=None,
            random=random,
            wall_clock=SystemWallClock(),
            process_id=os.getpid(),
        )
        await _hold(directory)
        stack.push_async_callback(directory.close)
        if await directory.log_place() is not None:
            raise DataDirectoryError(
                f"the logs of this store are in BookKeeper: it is served by one process, or a cluster path={path}"
            )
        identity = await _identity(resolved, directory)
        tier2 = tier2_place(resolved, directory, files)
        count = process_count(settings.processes.count, container_count=identity.container_count)
        http = _bind(settings.http.address)
        stack.callback(http.close)
        nodes: list[NodeAddresses] = []
        sockets: list[list[socket.socket]] = []
        for index in range(count):
            own = _bind(f"{_LOOPBACK}:0")
            stack.callback(own.close)
            listening, wire = [http, own], ""
            if settings.wire.address != _OFF:
                host, port = split_address(settings.wire.address)
                bound = _bind(address_text(host, port if index == 0 else 0))
                stack.callback(bound.close)
                listening.append(bound)
                wire = _advertised(settings.wire.advertised_address, bound, is_first=index == 0)
            nodes.append(NodeAddresses(http=_address_of(own), wire=wire))
            sockets.append(listening)
        kafka = ""
        if settings.kafka.address != _OFF:
            shared = _bind(settings.kafka.address)
            stack.callback(shared.close)
            kafka = settings.kafka.advertised_address or _address_of(shared)
            for index, bound in enumerate(_bind_behind_kafka(settings, count)):
                stack.callback(bound.close)
                sockets[index] += [shared, bound]
                told = _advertised(settings.kafka.advertised_address, bound, is_first=False)
                nodes[index] = replace(nodes[index], kafka=told)
        volumes_socket, volumes_listening = "", None
        if tier2 == "volumes":
            # Names of sockets are short, data directories need not be. The directory is readable by this user alone.
            folder = tempfile.mkdtemp(prefix="segmentstore-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            volumes_socket = f"{folder}/volumes"
            volumes_listening = socket.socket(socket.AF_UNIX)
            stack.callback(volumes_listening.close)
            volumes_listening.bind(volumes_socket)
            volumes_listening.listen(_BACKLOG)
        logger.info("processes=%d containers=%d", count, identity.container_count)
        yield Supervisor(
            orders=Orders(
                role=NODE,
                index=0,
                start=0,
                settings=_settings_for(resolved, path=path, tier2=tier2, count=count),
                store_id=identity.store_id.hex(),
                container_count=identity.container_count,
                created_ms=identity.created_ms,
                token=random.randbytes(32).hex(),
                volumes_socket=volumes_socket,
                nodes=nodes,
                controller_address=settings.controller.address,
            ),
            sockets=sockets,
            volumes_listening=volumes_listening,
            lock_descriptor=directory.lock_descriptor,
            status_address=settings.processes.status_address,
            http_address=_address_of(http),
            kafka_address=kafka,
        )


def _require_shareable(resolved: ResolvedSettings) -> None:
    """Raises SettingsError for what several processes cannot share."""
    settings = resolved.settings
    problems = []
    if settings.tier1.kind != "file":
        problems.append(
            f"several processes keep their logs in files, not in {settings.tier1.kind!r}: set processes.count=1"
        )
    if settings.kafka.address != _OFF and settings.wire.address == _OFF:
        problems.append(
            "topics of several processes ask each other over the wire: set wire.address, or processes.count=1"
        )
    if settings.tier2.place == "memory":
        problems.append("a Tier 2 in memory is of one process: set processes.count=1")
    if not settings.store.data_directory:
        problems.append("a data directory is needed: name one with --data")
    if problems:
        raise SettingsError(problems)


async def _hold(directory: DataDirectory) -> None:
    """Raises DataDirectoryInUseError once it is clear that another store goes on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _DIRECTORY_SECONDS_MAX
    while True:
        try:
            await directory.hold()
        except DataDirectoryInUseError:
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return


async def _identity(resolved: ResolvedSettings, directory: DataDirectory) -> DirectoryIdentity:
    count = resolved.settings.store.container_count
    is_default = resolved.source_of("store.container_count") == "default"
    return await directory.read_or_begin(
        container_count=None if is_default else count, default_count=count
    )


def _settings_for(
    resolved: ResolvedSettings, *, path: str, tier2: str, count: int
) -> Mapping[str, str]:
    """What the processes are given: all that is not a default, and their share of what the machine has once."""
    given = {
        each.definition.full_name: each.shown
        for each in resolved.each
        if each.source != "default" and each.definition.section != "processes"
    }
    cache = max(_CACHE_BYTES_MIN, resolved.settings.cache.bytes_max // count)
    return {
        **given,
        "store.data_directory": path,
        "tier2.place": tier2,
        "cache.bytes_max": str(cache),
    }


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _bind(address: str) -> socket.socket:
    """Raises ServingRefusedError."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ServingRefusedError(
            f"cannot listen: {error.strerror or error} address={address}"
        ) from error
    listening.setblocking(False)
    return listening


def _bind_behind_kafka(settings: ServiceSettings, count: int) -> Iterator[socket.socket]:
    """One for each of so many processes, on the ports behind kafka.address that are free, and named by no setting.

    They are the same at every start, as far as they are free then: clients know a process by its address.
    """
    host, port = split_address(settings.kafka.address)
    named = {
        split_address(each)[1]
        for each in (
            settings.http.address,
            settings.wire.address,
            settings.controller.address,
            settings.processes.status_address,
            settings.kafka.grpc_address,
        )
        if each != _OFF
    }
    ports = range(port + 1, min(port + 1 + _PORTS_TRIED_MAX, 65_536)) if port else ()
    candidates = iter([each for each in ports if each not in named])
    for _ in range(count):
        yield _bind_first(host, candidates)


def _bind_first(host: str, ports: Iterator[int]) -> socket.socket:
    """On the first of these ports that is free, else on any. Raises ServingRefusedError."""
    for port in ports:
        with suppress(ServingRefusedError):
            return _bind(address_text(host, port))
    return _bind(address_text(host, 0))


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return address_text(host, port)


def _advertised(configured: str, listening: socket.socket, *, is_first: bool) -> str:
    """Where clients find a wire: the first one as it is configured, the others on the same machine."""
    if configured and is_first:
        return configured
    host, port = listening.getsockname()[:2]
    if configured:
        host = split_address(configured)[0]
    return address_text(_EVERYWHERE.get(host, host), port)
