"""Bookies of BookKeeper in memory, and clients that write, recover and read ledgers by BookKeeper's own protocol.

What is like the real ones:

- An entry goes to the bookies of its write set, is synced by each on its own, and is acknowledged when an ack quorum
  has synced it and all earlier ones are acknowledged. With it goes the id of the last acknowledged entry.
- A bookie that fails is replaced by one that takes writes, where there is one, by a change of the ledger's metadata;
  the entries that are not acknowledged yet are sent to the new one as well. Without one the ledger goes on as long as
  an ack quorum is left.
- Opening to recover: the metadata say so, bookies are fenced one by one, and the writer may still succeed until no ack
  quorum is left to it. Behind the last entry that they know to be acknowledged, entry by entry: if a bookie has it, it
  is written again to an ack quorum; if so many lack it that no ack quorum can have it, the ledger ends before it; with
  less known the opening fails. Of several that open at once the first to write the end down decides.
- A bookie that dies loses what it has not synced, or not; a hung one does everything later.
- A deleted ledger is gone for readers; its writer notices when it has to change the ensemble.

What is not: auto-recovery, garbage collection, digests (a copy is never damaged).
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from segmentstore.contracts.errors import LogCorruptedError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done
from tests.tier1.bookkeeper.simulated_network import Network, after
from tier1.bookkeeper.ledgers import (
    LabelledLedger,
    LedgerClient,
    LedgerFencedError,
    LedgerId,
    LedgerNotFoundError,
    LedgerReader,
    LedgerUnavailableError,
    LedgerWriter,
    Quorum,
    TooFewBookiesError,
)

_Ensembles = list[tuple[int, list[int]]]
"""From which entry on, and which bookies."""


class _Failure(Enum):
    """What a bookie answers instead of doing what it was asked."""

    GONE = "gone"
    FENCED = "fenced"
    READ_ONLY = "read only"


@dataclass(slots=True)
class _Copy:
    """One entry on one bookie."""

    payload: bytes
    last_acknowledged: int
    """Of the ledger, when its writer sent this."""
    durable_at: float


@dataclass(slots=True)
class Bookie:
    """One server. Its entries outlive its death, but for those that it had not synced."""

    number: int
    is_alive: bool = True
    is_lost: bool = False
    """It never comes back."""
    is_read_only: bool = False
    hung_until: float = 0.0
    births: int = 1
    died_at: float = 0.0
    synced_until: float = 0.0
    """When the last of the syncs that are due will be done: one journal, in order."""
    entries: dict[LedgerId, dict[int, _Copy]] = field(default_factory=dict)
    fenced: dict[LedgerId, None] = field(default_factory=dict)

    @property
    def takes_writes(self) -> bool:
        return self.is_alive and not self.is_read_only


class _LedgerState(Enum):
    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"


@dataclass(slots=True)
class _Ledger:
    """What ZooKeeper knows of a ledger."""

    ledger_id: LedgerId
    quorum: Quorum
    ensembles: _Ensembles
    labels: dict[str, bytes]
    state: _LedgerState = _LedgerState.OPEN
    last_entry: int = -1
    length: int = 0

    def write_set(self, entry: int) -> list[int]:
        return write_set(_ensemble_of(self.ensembles, entry), self.quorum, entry)


def _ensemble_of(ensembles: _Ensembles, entry: int) -> list[int]:
    return [bookies for first, bookies in ensembles if first <= entry][-1]


def write_set(ensemble: list[int], quorum: Quorum, entry: int) -> list[int]:
    """Which bookies of the ensemble have that entry."""
    return [ensemble[(entry + place) % quorum.ensemble] for place in range(quorum.write)]


class SimulatedBookies:
    """A cluster; it outlives the processes that use it. Without a network everything happens in the next turns."""

    def __init__(
        self, count: int = 4, *, network: Network | None = None, sync_seconds: float = 0.0
    ) -> None:
        self.network = network or Network(Random(0))
        self.sync_seconds = sync_seconds
        self.bookies = [Bookie(number) for number in range(count)]
        self.ledgers: dict[LedgerId, _Ledger] = {}
        self._ledger_ids = 0

    def client(self) -> "SimulatedLedgerClient":
        """Of a new process."""
        return SimulatedLedgerClient(self)

    # --- trouble ---------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        """It dies at once; what it has not synced it may lose."""
        bookie = self.bookies[number]
        if not bookie.is_alive:
            return
        now = asyncio.get_running_loop().time()
        bookie.is_alive = False
        bookie.died_at = now
        for copies in bookie.entries.values():
            unsynced = [entry for entry, copy in copies.items() if copy.durable_at > now]
            kept = self.network.random.randint(0, len(unsynced))
            for entry in unsynced[:kept]:
                copies[entry].durable_at = now
            for entry in unsynced[kept:]:
                del copies[entry]

    def restart(self, number: int) -> None:
        """It comes back with what it has synced, and knows which ledgers are fenced."""
        bookie = self.bookies[number]
        if bookie.is_alive or bookie.is_lost:
            return
        bookie.is_alive = True
        bookie.births += 1
        bookie.hung_until = bookie.synced_until = 0.0

    def lose(self, number: int) -> None:
        """Its disks are gone: one with the same name is never let in again."""
        self.kill(number)
        self.bookies[number].is_lost = True
        self.bookies[number].entries.clear()

    def add(self) -> int:
        """A new server."""
        self.bookies.append(Bookie(len(self.bookies)))
        return len(self.bookies) - 1

    def hang(self, number: int, seconds: float) -> None:
        """It stands still, and does later what it is asked meanwhile."""
        self.bookies[number].hung_until = asyncio.get_running_loop().time() + seconds

    def fill(self) -> None:
        """All disks are full: bookies serve reads alone."""
        for bookie in self.bookies:
            bookie.is_read_only = True

    def free(self) -> None:
        """There is room again."""
        for bookie in self.bookies:
            bookie.is_read_only = False

    # --- what a bookie does ----------------------------------------------------------------------

    def store(
        self, bookie: Bookie, ledger_id: LedgerId, entry: int, copy: _Copy, *, recovers: bool
    ) -> _Failure | float:
        """When it will be durable there."""
        if bookie.is_read_only and not recovers:
            return _Failure.READ_ONLY
        if ledger_id in bookie.fenced and not recovers:
            return _Failure.FENCED
        now = asyncio.get_running_loop().time()
        seconds = self.sync_seconds and self.network.random.expovariate(1 / self.sync_seconds)
        copy.durable_at = bookie.synced_until = max(bookie.synced_until, now + seconds)
        copies = bookie.entries.setdefault(ledger_id, {})
        copies.setdefault(entry, copy)
        return copies[entry].durable_at

    def fence(self, bookie: Bookie, ledger_id: LedgerId) -> int:
        """The last entry that it knows to be acknowledged."""
        bookie.fenced[ledger_id] = None
        copies = bookie.entries.get(ledger_id, {})
        return max((copy.last_acknowledged for copy in copies.values()), default=-1)

    # --- what ZooKeeper does ---------------------------------------------------------------------

    def create_ledger(self, quorum: Quorum, labels: dict[str, bytes]) -> _Ledger:
        able = [bookie.number for bookie in self.bookies if bookie.takes_writes]
        if len(able) < quorum.ensemble:
            raise TooFewBookiesError(
                f"too few bookies take writes bookies={len(able)} needed={quorum.ensemble}"
            )
        self._ledger_ids += 1
        ledger_id = LedgerId(self._ledger_ids)
        ensemble = self.network.random.sample(able, quorum.ensemble)
        ledger = _Ledger(ledger_id, quorum, [(0, ensemble)], dict(labels))
        self.ledgers[ledger_id] = ledger
        return ledger

    def find_ledger(self, ledger_id: LedgerId) -> _Ledger:
        found = self.ledgers.get(ledger_id)
        if found is None:
            raise LedgerNotFoundError(f"there is no such ledger ledger={ledger_id}")
        return found

    def close_ledger(
        self, ledger_id: LedgerId, *, last_entry: int, recovered: _Ensembles | None = None
    ) -> _Ledger:
        """The first to close it decides where it ends; a writer leaves one in recovery to that."""
        ledger = self.find_ledger(ledger_id)
        if ledger.state is _LedgerState.CLOSED or (
            ledger.state is _LedgerState.IN_RECOVERY and recovered is None
        ):
            return ledger
        ledger.ensembles = recovered or ledger.ensembles
        ledger.state = _LedgerState.CLOSED
        ledger.last_entry = last_entry
        ledger.length = sum(
            len(self._any_copy(ledger_id, entry)) for entry in range(last_entry + 1)
        )
        return ledger

    def _any_copy(self, ledger_id: LedgerId, entry: int) -> bytes:
        for bookie in self.bookies:
            copy = bookie.entries.get(ledger_id, {}).get(entry)
            if copy is not None:
                return copy.payload
        return b""

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        self.ledgers.pop(ledger_id, None)


class SimulatedLedgerClient:
    """Implements LedgerClient: one process's way to the bookies."""

    def __init__(self, cluster: SimulatedBookies) -> None:
        self.cluster = cluster
        self.is_alive = True
        self._arrived: dict[int, float] = {}
        """When the last message to each bookie is there: a connection keeps their order."""

    def kill(self) -> None:
        """Its process is dead: it sends nothing more, and hears of nothing."""
        self.is_alive = False

    # --- messages --------------------------------------------------------------------------------

    def ask(
        self,
        number: int,
        request: Callable[[Bookie], object],
        answered: Callable[[object], None],
        *,
        ready: Callable[[object], float] = lambda _: 0.0,
    ) -> None:
        """One message and its answer; of a bookie that is gone or hangs too long the answer is _Failure.GONE.

        `ready`: when the bookie can answer with that result.
        """
        if not self.is_alive:
            return
        cluster = self.cluster
        network = cluster.network
        bookie = cluster.bookies[number]
        now = asyncio.get_running_loop().time()
        context = copy_context()
        is_open = True

        def answer(result: object) -> None:
            nonlocal is_open
            if is_open and self.is_alive:
                is_open = False
                answered(result)

        def reply(result: object, at: float) -> None:
            born = bookie.births
            seconds = max(0.0, at - asyncio.get_running_loop().time()) + network.travel_seconds()

            def deliver() -> None:
                died = not bookie.is_alive or bookie.births != born
                answer(_Failure.GONE if died and bookie.died_at < at else result)

            after(seconds, deliver, context)

        def arrive() -> None:
            if not bookie.is_alive:
                after(network.travel_seconds(), lambda: answer(_Failure.GONE), context)
                return
            result = request(bookie)
            reply(result, ready(result))

        arrives_at = max(
            now + network.travel_seconds(), self._arrived.get(number, 0.0), bookie.hung_until
        )
        self._arrived[number] = arrives_at
        if arrives_at - now > network.timeout_seconds:
            after(network.timeout_seconds, lambda: answer(_Failure.GONE), context.copy())
        after(arrives_at - now, arrive, Context())

    async def ask_all(
        self, numbers: Sequence[int], request: Callable[[Bookie], object], *, ready: bool = False
    ) -> list[object]:
        """The answers of those bookies, in order; ready: they are what store() returned."""
        self._require_alive()
        loop = asyncio.get_running_loop()
        futures: list[Future[object]] = [loop.create_future() for _ in numbers]
        for number, future in zip(numbers, futures, strict=True):
            self.ask(
                number,
                request,
                lambda result, future=future: complete_unless_done(future, result),  # type: ignore[misc]  # a default binds it
                ready=(lambda at: at if isinstance(at, float) else 0.0) if ready else lambda _: 0.0,
            )
        return [await future for future in futures]

    async def metadata(self, effect: Callable[[], object]) -> object:
        """A request to ZooKeeper."""
        self._require_alive()
        return await self.cluster.network.request(
            effect, lambda why: LedgerUnavailableError(f"ZooKeeper does not answer: {why}")
        )

    def _require_alive(self) -> None:
        if not self.is_alive:
            raise LedgerUnavailableError("the client is closed")

    # --- LedgerClient ----------------------------------------------------------------------------

    async def create(self, quorum: Quorum, *, labels: dict[str, bytes]) -> LedgerWriter:
        ledger = await self.metadata(lambda: self.cluster.create_ledger(quorum, labels))
        assert isinstance(ledger, _Ledger), ledger
        return SimulatedLedgerWriter(self, ledger)

    async def open_fenced(self, ledger_id: LedgerId) -> LedgerReader:
        ledger = await self.metadata(lambda: self._begin_recovery(ledger_id))
        assert isinstance(ledger, _Ledger), ledger
        if ledger.state is not _LedgerState.CLOSED:
            last_entry, ensembles = await self._recover(ledger)
            await self.metadata(
                lambda: self.cluster.close_ledger(
                    ledger_id, last_entry=last_entry, recovered=ensembles
                )
            )
        return SimulatedLedgerReader(self, ledger)

    def _begin_recovery(self, ledger_id: LedgerId) -> _Ledger:
        ledger = self.cluster.find_ledger(ledger_id)
        if ledger.state is _LedgerState.OPEN:
            ledger.state = _LedgerState.IN_RECOVERY
        return ledger

    async def _recover(self, ledger: _Ledger) -> tuple[int, _Ensembles]:
        """The last entry that is, or may be, acknowledged; it has an ack quorum of copies then, and there they are."""
        quorum = ledger.quorum
        covering = quorum.write - quorum.ack + 1
        ensemble = ledger.ensembles[-1][1]
        answers = await self.ask_all(
            ensemble, lambda bookie: self.cluster.fence(bookie, ledger.ledger_id)
        )
        fenced = {
            number: answer
            for number, answer in zip(ensemble, answers, strict=True)
            if isinstance(answer, int)
        }
        for entry in range(quorum.ensemble):
            members = write_set(ensemble, quorum, entry)
            if sum(member in fenced for member in members) < covering:
                raise LedgerUnavailableError(
                    f"too few bookies answer to fence a ledger ledger={ledger.ledger_id}"
                )
        last_entry = max(fenced.values())
        ensembles = list(ledger.ensembles)
        while await self._recover_entry(ledger, ensembles, last_entry + 1):
            last_entry += 1
        return last_entry, ensembles

    async def _recover_entry(self, ledger: _Ledger, ensembles: _Ensembles, entry: int) -> bool:
        """Whether the ledger has it; where it is written again, others take the place of bookies that are gone.

        It is looked for where its writer sent it: that a spare lacks it says nothing.
        """
        quorum, ledger_id = ledger.quorum, ledger.ledger_id
        members = ledger.write_set(entry)
        found = await self.ask_all(
            members, lambda bookie: bookie.entries.get(ledger_id, {}).get(entry)
        )
        copies = [copy for copy in found if isinstance(copy, _Copy)]
        if copies:
            members = self._with_spares(ensembles, quorum, entry)
            stored = await self.ask_all(
                members,
                lambda bookie: self.cluster.store(
                    bookie,
                    ledger_id,
                    entry,
                    _Copy(copies[0].payload, entry - 1, 0.0),
                    recovers=True,
                ),
                ready=True,
            )
            if sum(isinstance(answer, float) for answer in stored) >= quorum.ack:
                return True
            raise LedgerUnavailableError(
                f"an entry has too few copies ledger={ledger_id} entry={entry}"
            )
        if sum(copy is None for copy in found) >= quorum.write - quorum.ack + 1:
            return False
        raise LedgerUnavailableError(
            f"too few bookies answer to find the end of a ledger ledger={ledger_id} entry={entry}"
        )

    def _with_spares(self, ensembles: _Ensembles, quorum: Quorum, entry: int) -> list[int]:
        """The write set of the entry, in an ensemble without bookies that are gone where there are others."""
        bookies = self.cluster.bookies
        ensemble = list(_ensemble_of(ensembles, entry))
        spares = [
            each.number for each in bookies if each.takes_writes and each.number not in ensemble
        ]
        for place, number in enumerate(ensemble):
            if not bookies[number].is_alive and spares:
                ensemble[place] = spares.pop()
        if ensemble != _ensemble_of(ensembles, entry):
            ensembles[:] = [each for each in ensembles if each[0] < entry]
            ensembles.append((entry, ensemble))
        return write_set(ensemble, quorum, entry)

    async def open_unfenced(self, ledger_id: LedgerId) -> LedgerReader:
        """What is there of a ledger that its writer goes on with. Not in the real client: for a planted bug."""
        ledger = self.cluster.find_ledger(ledger_id)
        if ledger.state is _LedgerState.CLOSED:
            return SimulatedLedgerReader(self, ledger)
        entries: set[int] = set()
        for bookie in self.cluster.bookies:
            entries.update(bookie.entries.get(ledger_id, {}))
        last_entry = max(entries, default=-1)
        length = sum(len(self.cluster._any_copy(ledger_id, entry)) for entry in entries)
        seen = _Ledger(
            ledger_id, ledger.quorum, ledger.ensembles, {}, ledger.state, last_entry, length
        )
        return SimulatedLedgerReader(self, seen)

    async def delete(self, ledger_id: LedgerId) -> None:
        await self.metadata(lambda: self.cluster.delete_ledger(ledger_id))

    async def find_labelled(self, labels: Mapping[str, bytes]) -> list[LabelledLedger]:
        found = await self.metadata(
            lambda: [
                LabelledLedger(ledger_id, dict(ledger.labels))
                for ledger_id, ledger in self.cluster.ledgers.items()
                if labels.items() <= ledger.labels.items()
            ]
        )
        assert isinstance(found, list), found
        return found

    async def living_bookies(self) -> int:
        count = await self.metadata(
            lambda: sum(bookie.takes_writes for bookie in self.cluster.bookies)
        )
        assert isinstance(count, int), count
        return count

    async def close(self) -> None:
        self.is_alive = False


@dataclass(slots=True, eq=False)
class _Add:
    """One entry that is not acknowledged yet."""

    entry: int
    payload: bytes
    future: "Future[int]"
    copies: dict[int, None] = field(default_factory=dict)
    """Bookies that have synced it."""


class SimulatedLedgerWriter:
    """Implements LedgerWriter."""

    def __init__(self, client: SimulatedLedgerClient, ledger: _Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._ensemble = list(ledger.ensembles[-1][1])
        self._without: dict[int, None] = {}
        """Members that failed, and that no other bookie could replace."""
        self._adds: dict[int, _Add] = {}
        self._next_entry = 0
        self._last_acknowledged = -1
        self._changes_ensemble = False
        self._failed_meanwhile: dict[int, None] = {}
        """Members of which that was heard during a change."""
        self._failure: Exception | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self._is_closed = False

    @property
    def ledger_id(self) -> LedgerId:
        return self._ledger.ledger_id

    @property
    def quorum(self) -> Quorum:
        return self._ledger.quorum

    def append(self, entry: Sequence[BufferView]) -> "Future[int]":
        future: Future[int] = asyncio.get_running_loop().create_future()
        if self._failure is not None or self._is_closed:
            fail_unless_done(future, self._failure or LedgerFencedError("the ledger is closed"))
            return future
        add = _Add(self._next_entry, b"".join(entry), future)
        self._next_entry += 1
        self._adds[add.entry] = add
        self._settled.clear()
        for number in write_set(self._ensemble, self.quorum, add.entry):
            if number not in self._without:
                self._send(add, number)
        return future

    def _send(self, add: _Add, number: int) -> None:
        cluster, ledger_id = self._client.cluster, self.ledger_id
        last_acknowledged = self._last_acknowledged
        self._client.ask(
            number,
            lambda bookie: cluster.store(
                bookie,
                ledger_id,
                add.entry,
                _Copy(add.payload, last_acknowledged, 0.0),
                recovers=False,
            ),
            lambda result: self._answered(add, number, result),
            ready=lambda at: at if isinstance(at, float) else 0.0,
        )

    def _answered(self, add: _Add, number: int, result: object) -> None:
        if self._failure is not None or number not in self._ensemble:
            return
        if isinstance(result, float):
            add.copies[number] = None
            self._acknowledge()
        elif result is _Failure.FENCED:
            self._fail(LedgerFencedError(f"the ledger was fenced ledger={self.ledger_id}"))
        else:
            self._bookie_failed(number)

    def _acknowledge(self) -> None:
        while self._adds and not self._changes_ensemble:
            add = self._adds[self._last_acknowledged + 1]
            if len(add.copies) < self.quorum.ack:
                return
            del self._adds[add.entry]
            self._last_acknowledged = add.entry
            complete_unless_done(add.future, add.entry)
        if not self._adds:
            self._settled.set()

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for add in self._adds.values():
            fail_unless_done(add.future, error)
        self._adds.clear()
        self._settled.set()

    # --- a bookie fails --------------------------------------------------------------------------

    def _bookie_failed(self, number: int) -> None:
        if self._changes_ensemble:
            self._failed_meanwhile[number] = None
            return
        if number in self._without:
            return
        cluster = self._client.cluster
        spares = [
            bookie.number
            for bookie in cluster.bookies
            if bookie.takes_writes and bookie.number not in self._ensemble
        ]
        if not spares or cluster.network.metadata_down:
            self._without[number] = None
            self._require_ack_quorum()
            return
        spare = cluster.network.random.choice(spares)
        first = self._last_acknowledged + 1
        ensemble = [spare if member == number else member for member in self._ensemble]
        self._changes_ensemble = True
        context = copy_context()

        def change() -> None:
            ledger = cluster.ledgers.get(self.ledger_id)
            if ledger is None or ledger.state is not _LedgerState.OPEN:
                error = LedgerFencedError(f"another has recovered it ledger={self.ledger_id}")
                after(cluster.network.travel_seconds(), lambda: self._fail(error), context)
                return
            ledger.ensembles = [each for each in ledger.ensembles if each[0] < first]
            ledger.ensembles.append((first, ensemble))
            after(cluster.network.travel_seconds(), lambda: self._changed(ensemble, spare), context)

        after(cluster.network.travel_seconds(), change, Context())

    def _changed(self, ensemble: list[int], spare: int) -> None:
        self._changes_ensemble = False
        if self._failure is not None:
            return
        self._ensemble = ensemble
        failed_meanwhile, self._failed_meanwhile = self._failed_meanwhile, {}
        for add in self._adds.values():
            members = write_set(ensemble, self.quorum, add.entry)
            add.copies = {number: None for number in add.copies if number in members}
            if spare in members:
                self._send(add, spare)
        self._acknowledge()
        for number in failed_meanwhile:
            if number in self._ensemble:
                self._bookie_failed(number)

    def _require_ack_quorum(self) -> None:
        bookies = self._client.cluster.bookies
        able = [number for number in self._ensemble if number not in self._without]
        if len(able) < self.quorum.ack:
            self._fail(
                TooFewBookiesError(
                    f"too few bookies take entries of a ledger ledger={self.ledger_id} bookies={len(able)}"
                    f" alive={sum(bookie.is_alive for bookie in bookies)}"
                )
            )

    async def close(self) -> None:
        if not self._client.is_alive:
            raise LedgerUnavailableError("the client is closed")
        await self._settled.wait()
        if isinstance(self._failure, LedgerFencedError) or self._is_closed:
            return
        if self._failure is not None:
            raise self._failure
        await self._client.metadata(
            lambda: self._client.cluster.close_ledger(
                self.ledger_id, last_entry=self._last_acknowledged
            )
        )
        self._is_closed = True


class SimulatedLedgerReader:
    """Implements LedgerReader."""

    def __init__(self, client: SimulatedLedgerClient, ledger: _Ledger) -> None:
        self._client = client
        self._ledger = ledger

    @property
    def ledger_id(self) -> LedgerId:
        return self._ledger.ledger_id

    @property
    def last_entry(self) -> int:
        return self._ledger.last_entry

    @property
    def length(self) -> int:
        return self._ledger.length

    async def read(self, first: int, last: int) -> list[memoryview]:
        assert 0 <= first <= last <= self.last_entry, (first, last, self.last_entry)
        cluster = self._client.cluster
        members = {
            number: None
            for entry in range(first, last + 1)
            for number in self._ledger.write_set(entry)
        }
        answers = await self._client.ask_all(
            list(members), lambda bookie: dict(bookie.entries.get(self.ledger_id, {}))
        )
        if self.ledger_id not in cluster.ledgers:
            raise LedgerNotFoundError(f"there is no such ledger ledger={self.ledger_id}")
        copies = [answer for answer in answers if isinstance(answer, dict)]
        return [
            self._read_entry(entry, copies, all_answer=len(copies) == len(members))
            for entry in range(first, last + 1)
        ]

    def _read_entry(
        self, entry: int, answers: list[dict[int, _Copy]], *, all_answer: bool
    ) -> memoryview:
        for copies in answers:
            if entry in copies:
                return memoryview(copies[entry].payload)
        if all_answer:
            raise LogCorruptedError(f"no bookie has an entry ledger={self.ledger_id} entry={entry}")
        raise LedgerUnavailableError(
            f"no bookie that answers has an entry ledger={self.ledger_id} entry={entry}"
        )

    async def close(self) -> None:
        """Nothing is held."""


def _implements(client: SimulatedLedgerClient) -> LedgerClient:
    return client
