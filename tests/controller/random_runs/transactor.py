"""Actors that begin transactions, write into their segments, and commit, abort or abandon them."""

import asyncio
from enum import Enum

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import transaction_id_of, transaction_segment
from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_runs.event_sender import EventSender
from tests.controller.random_runs.ledger import Fate, KnownEvent, KnownTransaction
from tests.controller.random_runs.random_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_runs.settings import LEASE_MS_MAX
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import Actor, Theatre

_KEYS = 3
_STATE = api.TxnState.State
_STATUS = api.TxnStatus.Status


class Wish(Enum):
    """What becomes of a transaction if its owner is asked."""

    COMMIT = "commitTransaction"
    ABORT = "abortTransaction"
    LEAVE = ""


class Transactor(Actor):
    """One transaction after the other."""

    def __init__(self, theatre: Theatre, stream: str, number: int) -> None:
        super().__init__(theatre, f"transactor {number} of {stream}")
        self._stream = stream
        self._count = 0
        self._open: _Open | None = None

    async def step(self) -> None:
        if self._open is None:
            model = self.theatre.models.get(self._stream)
            if model is not None and model.is_open and not self.theatre.calm:
                self._open = await self._begin(model)
            return
        if not await self._open.step():
            self._open = None

    def owes(self) -> bool:
        return self._open is not None

    async def _begin(self, model: StreamModel) -> "_Open | None":
        lease_ms = self.random.choice((1_000, 3_000, LEASE_MS_MAX))
        request = api.CreateTxnRequest(streamInfo=model.info, lease=lease_ms)
        try:
            begun = await self.world.call("createTransaction", request, api.CreateTxnResponse)
        except SegmentStoreError as error:
            if says_nothing(error) or model.is_open:
                raise
            return None
        if model.stage.value >= Stage.DELETING.value:
            return None
        model.learn_ranges(begun.activeSegments)
        transaction_id = transaction_id_of(high=begun.txnId.highBits, low=begun.txnId.lowBits)
        transaction = KnownTransaction(transaction_id, f"{model.scope}/{model.stream}")
        model.transactions.append(transaction)
        self.ledger.transactions.append(transaction)
        self._count += 1
        self.trace("began", transaction, lease_ms)
        return _Open(self, model, transaction, begun, lease_ms, f"{self.name} {self._count}")


class _Open:
    """A transaction with an owner."""

    def __init__(
        self,
        actor: Transactor,
        model: StreamModel,
        transaction: KnownTransaction,
        begun: api.CreateTxnResponse,
        lease_ms: int,
        name: str,
    ) -> None:
        self._actor = actor
        self._world = actor.world
        self._random = actor.random
        self._model = model
        self.transaction = transaction
        self._txn = begun.txnId
        self._pieces = [(e.minKey, e.maxKey, e.segmentId.segmentId) for e in begun.activeSegments]
        self._lease_ms = lease_ms
        self._heard_at = self._now()
        """Before the last answer that granted the lease."""
        self._sender = EventSender(actor.world, actor.random)
        self._keys = [f"{name} key {number}" for number in range(_KEYS)]
        self._sequences = dict.fromkeys(self._keys, 0)
        self._pending: list[KnownEvent] = []
        many = actor.theatre.settings.theme is not None
        self._bursts = actor.random.choice((1, 1, 3) if many else (0, 1, 3))
        self._wish = actor.random.choices(list(Wish), (20, 2, 1) if many else (6, 2, 1))[0]
        self._asked = False
        """An end was asked for, and perhaps not answered."""
        self._broken = False
        """One of its segments was gone."""
        self._forgotten = False

    def _now(self) -> float:
        return self._world.loop.time()

    @property
    def _surely_exists(self) -> bool:
        """No lease can have ended, and nobody seals the stream: what ended it can only be a bug."""
        return self._is_held and self._model.is_open and not self._asked

    @property
    def _is_held(self) -> bool:
        return self._heard_at + self._lease_ms / 1000 > self._now()

    async def step(self) -> bool:
        """Whether there is more to do."""
        if self._asked:
            return await self._end()
        if self._broken or self._world.random.random() < 0.05:
            return await self._ping()
        if self._pending:
            await self._send_pending()
            return True
        if self._bursts:
            self._bursts -= 1
            self._pending = self._new_events()
            return True
        return await self._end()

    def _new_events(self) -> list[KnownEvent]:
        settings = self._actor.theatre.settings
        events = []
        for _ in range(self._random.randint(1, settings.burst_max)):
            key = self._random.choice(self._keys)
            length = self._random.randint(8, max(9, settings.event_bytes_max))
            events.append(
                self._actor.ledger.new_event(key, self._sequences[key], length, self.transaction)
            )
            self._sequences[key] += 1
        return events

    async def _send_pending(self) -> None:
        groups: dict[int, list[KnownEvent]] = {}
        for event in self._pending:
            groups.setdefault(self._parent_of(event), []).append(event)
        for parent, group in groups.items():
            name = transaction_segment(self._model.name(parent), self.transaction.transaction_id)
            exists = self._surely_exists
            sent = await self._sender.send(name, group)
            if sent.gone or sent.sealed:
                if exists and self._surely_exists:
                    raise self._actor.breach(f"{self.transaction} lost its segment {name}")
                self._broken = True
                return
            if sent.rest:
                await self._actor.be_patient()
        self._pending = [event for event in self._pending if event.acked_in is None]

    def _parent_of(self, event: KnownEvent) -> int:
        for low, high, segment_id in self._pieces:
            if low <= event.position < high:
                return segment_id
        raise self._actor.breach(f"{self.transaction} has no segment for {event}")

    # --- the end ----------------------------------------------------------------------------------

    async def _ping(self) -> bool:
        lease_ms = self._random.choice((1_000, LEASE_MS_MAX))
        request = api.PingTxnRequest(streamInfo=self._model.info, txnId=self._txn, lease=lease_ms)
        status = api.PingTxnStatus.Status
        exists, began = self._surely_exists, self._now()
        # A shorter lease counts as soon as it may have arrived.
        self._lease_ms = min(self._lease_ms, lease_ms)
        answer = (await self._world.call("pingTransaction", request, api.PingTxnStatus)).status
        if answer == status.OK:
            self._heard_at, self._lease_ms = began, lease_ms
            return True
        if exists and self._surely_exists:
            raise self._actor.breach(f"{self.transaction} is {status.Name(answer)}")
        if answer == status.ABORTED:
            self.transaction.learn(Fate.ABORTED)
        elif answer == status.COMMITTED:
            raise self._actor.breach(f"{self.transaction} is committed, nobody asked")
        return False

    async def _end(self) -> bool:
        if self._wish is Wish.LEAVE:
            # Its lease ends it, and nobody ever asked for a commit.
            return False
        exists = self._surely_exists
        first, self._asked = not self._asked, True
        if self._wish is Wish.COMMIT:
            self.transaction.learn(Fate.UNKNOWN)
        if first and self._wish is Wish.COMMIT:
            self._world.take_down([self._model.name(parent) for _, _, parent in self._pieces])
        request = api.TxnRequest(streamInfo=self._model.info, txnId=self._txn)
        calls = [self._world.call(self._wish.value, request, api.TxnStatus)]
        if first and self._random.random() < 0.1:
            # An answer that was lost on the way, and the question again.
            calls.append(self._world.call(self._wish.value, request, api.TxnStatus))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, REQUEST_ERRORS) or not says_nothing(outcome):
                    raise outcome
                continue
            exists = exists and self._model.is_open and self._is_held
            self._judge(outcome.status, expected=exists)
        if self.transaction.fate is Fate.UNKNOWN or self.transaction.fate is Fate.OPEN:
            if self._model.stage.value >= Stage.DELETING.value or self._forgotten:
                return False
            await self._actor.be_patient()
            return True
        if self.transaction.fate is Fate.COMMITTED and self._random.random() < 0.5:
            await self._wait_for_state()
        return False

    def _judge(self, status: api.TxnStatus.Status, *, expected: bool) -> None:
        transaction, wish = self.transaction, self._wish
        self._actor.trace(transaction, wish.value, _STATUS.Name(status))
        if status == _STATUS.SUCCESS:
            transaction.learn(Fate.COMMITTED if wish is Wish.COMMIT else Fate.ABORTED)
            return
        if expected and transaction.fate not in (Fate.COMMITTED, Fate.ABORTED):
            raise self._actor.breach(f"{transaction} {wish.value}: {_STATUS.Name(status)}")
        if status == _STATUS.FAILURE:
            # It ended before, in the other way.
            if wish is Wish.ABORT:
                raise self._actor.breach(f"{transaction} is committed, nobody asked")
            transaction.learn(Fate.ABORTED)
        else:
            self._forgotten = True

    async def _wait_for_state(self) -> None:
        """A commit that is said to be done can be read at once."""
        request = api.TxnRequest(streamInfo=self._model.info, txnId=self._txn)
        for _ in range(20):
            try:
                answer = await self._world.call("checkTransactionState", request, api.TxnState)
            except REQUEST_ERRORS as error:
                if not says_nothing(error):
                    raise
                await self._actor.be_patient()
                continue
            if answer.state in (_STATE.OPEN, _STATE.ABORTING, _STATE.ABORTED):
                if self._model.stage.value >= Stage.DELETING.value:
                    return
                raise self._actor.breach(f"{self.transaction} is {_STATE.Name(answer.state)}")
            if answer.state == _STATE.COMMITTED:
                self._actor.trace(self.transaction, "is done")
                await self._actor.theatre.reading.look_for(self._model, self.transaction)
                return
            if answer.state == _STATE.UNKNOWN:
                return
            await self._actor.be_patient()
