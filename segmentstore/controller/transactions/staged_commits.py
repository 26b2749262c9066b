"""Many transactions committed as one: what a distributed job needs to write exactly once.

    begin   a stage: a transaction whose lease lasts for as long as a job may take, and that its owner never pings
    commit  one batch: the stages join a new transaction that is committing, and the application's fence moves
            then the completer: create the new transaction's segments, merge the stages into them in the order given,
            record that, and commit it like any other transaction
    replay  a commit whose version is not above the fence: nothing happens, and its open stages are aborted

A transaction belongs to one epoch of its stream. Stages of several epochs become one transaction each, of which the
older ones are committed first; all of them are decided in the one batch.

Invariants:

- A version of an application is committed at most once for as long as the fence is kept: the fence and the decision
  are one batch.
- All stages are committed or none; a segment of the stream takes in what all stages of an epoch wrote to it at once.
- The id of the new transaction follows from the stream, the application, the version and the epoch.
- One commit of an application is written at a time; another one waits until its outcome is known.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b

from segmentstore.codec.controller_api import staged_commits_pb2 as api
from segmentstore.codec.controller_records.transaction_records import (
    CommitFenceRecord,
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import transaction_epoch_of
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError
from segmentstore.controller.errors import (
    ControllerError,
    PreconditionError,
    StreamSealedError,
)
from segmentstore.controller.settings import TransactionSettings
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.transactions.completion import TransactionCompleter
from segmentstore.controller.transactions.decisions import Decisions
from segmentstore.controller.transactions.transaction_states import (
    Phase,
    StreamTransactions,
    TransactionStates,
)
from segmentstore.controller.transactions.transaction_table import (
    FenceName,
    TransactionChange,
    TransactionName,
    TransactionTable,
)
from segmentstore.controller.transactions.transactions import Transactions
from segmentstore.runtime.clock import WallClock

_ID_BYTES = 16
_EPOCH_SHIFT = 96
# The lower 96 bits are hashed, without bit 63: see reservations.py.
_DERIVED_BITS = (1 << _EPOCH_SHIFT) - 1 & ~(1 << 63)


class TooManyApplicationsError(ControllerError):
    """A stream remembers the last versions of as many applications as it may."""

    kind = ErrorKind.FULL


@dataclass(frozen=True, slots=True)
class _Commit:
    """A call, taken apart."""

    fence: FenceName
    version: int
    stages: tuple[int, ...]
    is_lasting: bool


class StagedCommits:
    """The calls of our own service that are about stages."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        states: TransactionStates,
        decisions: Decisions,
        table: TransactionTable,
        operations: StreamOperations,
        completer: TransactionCompleter,
        wall_clock: WallClock,
        settings: TransactionSettings,
    ) -> None:
        self._transactions = transactions
        self._states = states
        self._decisions = decisions
        self._table = table
        self._operations = operations
        self._completer = completer
        self._wall_clock = wall_clock
        self._settings = settings

    async def begin(self, request: api.BeginStageRequest) -> api.BeginStageResponse:
        """Raises InvalidRequestError (lease), StreamNotFoundError, StreamSealedError, RetryLaterError (too many)."""
        settings = self._settings
        if not settings.lease_ms_min <= request.lease_ms <= settings.stage_lease_ms_max:
            raise InvalidRequestError(
                f"a stage's lease has {settings.lease_ms_min} to {settings.stage_lease_ms_max} ms"
                f" lease_ms={request.lease_ms}"
            )
        epoch, transaction_id = await self._transactions.begin(
            request.scope,
            request.stream,
            lease_ms=request.lease_ms,
            open_max=settings.stages_per_stream_max,
        )
        return api.BeginStageResponse(
            transaction_id=transaction_id.to_bytes(_ID_BYTES, "big"),
            ranges=[
                api.StageRange(segment_id=each.segment_id, low=each.low, high=each.high)
                for each in epoch.segments
            ],
        )

    async def commit(self, request: api.CommitStagesRequest) -> api.CommitStagesResponse:
        """Returns when the commit can no longer be undone; asked again, says whether it is completed.

        Raises PreconditionError (a stage is not open any more: nothing is committed), StreamNotFoundError,
        StreamSealedError, TooManyApplicationsError, InvalidRequestError.
        """
        self._transactions.require_loaded()
        commit = self._parsed(request)
        while True:
            states = self._states.stream(commit.fence.scope, commit.fence.stream)
            if commit.fence.application_id not in states.fences.moving:
                break
            await self._states.wait_for_change()
        try:
            return await self._commit(states, commit)
        finally:
            self._states.drop_if_empty(states)

    async def last_version(self, request: api.LastVersionRequest) -> api.LastVersionResponse:
        """What an application committed last. Raises InvalidRequestError."""
        self._transactions.require_loaded()
        fence = await self._table.read_fence(
            self._fence_name(request.scope, request.stream, request.application_id)
        )
        if fence is None:
            return api.LastVersionResponse()
        return api.LastVersionResponse(known=True, version=fence.version)

    # --- steps -----------------------------------------------------------------------------------

    async def _commit(
        self, states: StreamTransactions, commit: _Commit
    ) -> api.CommitStagesResponse:
        application = commit.fence.application_id
        if states.closed_count:
            raise StreamSealedError(states.scope, states.stream)
        # From here on the stream is not sealed until this call has ended.
        states.fences.moving.add(application)
        try:
            history = await self._operations.history(states.scope, states.stream)
            state = await history.state()
            fence = await self._table.read_fence(commit.fence)
            # Last of all that waits: from here to the decision nothing else gets at the stages.
            await self._settle(states, commit)
            is_duplicate = fence is not None and commit.version <= fence.version
            # The record of a forgettable version may outlive its fence for a moment.
            is_duplicate |= bool(_known(states, commit))
            if not is_duplicate:
                if state.is_sealing_or_sealed:
                    raise StreamSealedError(states.scope, states.stream)
                await self._decide(states, commit, fence)
        finally:
            states.fences.moving.discard(application)
            self._states.changed()
        if is_duplicate:
            await self._find_decided(states, commit)
            await self._abort_open(states, commit)
        return self._answer(states, commit, is_duplicate=is_duplicate)

    async def _settle(self, states: StreamTransactions, commit: _Commit) -> None:
        """Until what earlier calls did to these transactions is known."""
        while True:
            if any(states.phase(stage) is Phase.DECIDING for stage in commit.stages):
                await self._states.wait_for_change()
            elif states.has(Phase.UNKNOWN):
                for transaction_id in states.ids(Phase.UNKNOWN):
                    await self._completer.adopt(states, transaction_id)
            else:
                return

    async def _decide(
        self, states: StreamTransactions, commit: _Commit, fence: CommitFenceRecord | None
    ) -> None:
        if fence is None and len(states.fences.known) >= self._settings.fences_per_stream_max:
            raise TooManyApplicationsError(
                f"too many applications commit to one stream stream={states.scope!r}/{states.stream!r}"
            )
        closed = [stage for stage in commit.stages if not states.is_open(stage)]
        if closed:
            raise PreconditionError(
                f"stages are not open: aborted, or their leases ran out count={len(closed)}"
                f" first={closed[0]:032x}"
            )
        changes = self._changes(states, commit)
        now_ms = self._wall_clock.now_ms()
        moved = CommitFenceRecord(
            application_id=commit.fence.application_id,
            version=commit.version,
            is_lasting=commit.is_lasting,
            committed_ms=now_ms,
        )
        try:
            await self._table.replace(changes, fence=(commit.fence, fence, moved))
        except BaseException:
            for name in changes:
                # Also for a caller that left: the table may still get to it; and after a conflict the table knows more.
                states.mark_unknown(name.transaction_id)
            self._states.follow_fence(commit.fence, moved)
            self._completer.wake(states)
            self._states.changed()
            raise
        for name, (_, record) in changes.items():
            self._states.follow_table(name, record)
            self._decisions.end_lease(name)
        self._states.follow_fence(commit.fence, moved)
        self._completer.wake(states)

    def _changes(
        self, states: StreamTransactions, commit: _Commit
    ) -> dict[TransactionName, TransactionChange]:
        """The records of the decision; all of its transactions are DECIDING from then on."""
        now_ms = self._wall_clock.now_ms()
        changes: dict[TransactionName, TransactionChange] = {}
        for epoch in sorted({transaction_epoch_of(stage) for stage in commit.stages}):
            stages = tuple(each for each in commit.stages if transaction_epoch_of(each) == epoch)
            transaction_id = epoch << _EPOCH_SHIFT | _derived_bits(commit.fence, commit.version)
            number = states.begin_decision(transaction_id)
            joined = TransactionRecord(
                state=TransactionState.COMMITTING,
                lease_ms=0,
                created_ms=now_ms,
                commit_number=number,
                stages=stages,
            )
            changes[states.name(transaction_id)] = (None, joined)
            for stage in stages:
                states.begin_decision(stage, number=number)
                record = states.record(stage)
                changes[states.name(stage)] = (
                    record,
                    replace(record, state=TransactionState.COMMITTING, joins=transaction_id),
                )
        return changes

    async def _abort_open(self, states: StreamTransactions, commit: _Commit) -> None:
        """A replay's stages hold what the stream has already."""
        await self._decisions.abort_quietly(
            [states.name(stage) for stage in commit.stages if states.is_open(stage)]
        )

    async def _find_decided(self, states: StreamTransactions, commit: _Commit) -> None:
        """The decision of a call that was given up may have reached the table after the states were read from it."""
        if _known(states, commit):
            return
        bits = _derived_bits(commit.fence, commit.version)
        for epoch in sorted(
            {transaction_epoch_of(each) for each in (*states.open_ids(), *commit.stages)}
        ):
            await self._completer.adopt(states, epoch << _EPOCH_SHIFT | bits)

    def _answer(
        self, states: StreamTransactions, commit: _Commit, *, is_duplicate: bool
    ) -> api.CommitStagesResponse:
        known = _known(states, commit)
        return api.CommitStagesResponse(
            duplicate=is_duplicate,
            completed=not any(
                states.phase(each) in (Phase.JOINING, Phase.COMMITTING) for each in known
            ),
            transaction_ids=[each.to_bytes(_ID_BYTES, "big") for each in known],
        )

    # --- requests --------------------------------------------------------------------------------

    def _parsed(self, request: api.CommitStagesRequest) -> _Commit:
        stages = tuple(int.from_bytes(each, "big") for each in request.transaction_ids)
        if any(len(each) != _ID_BYTES for each in request.transaction_ids):
            raise InvalidRequestError(f"a transaction id has {_ID_BYTES} bytes")
        if len(set(stages)) != len(stages):
            raise InvalidRequestError("a stage is named twice")
        return _Commit(
            self._fence_name(request.scope, request.stream, request.application_id),
            request.version,
            stages,
            is_lasting=not request.forgettable,
        )

    def _fence_name(self, scope: str, stream: str, application_id: str) -> FenceName:
        length = len(application_id.encode())
        if not 0 < length <= self._settings.application_id_bytes_max:
            raise InvalidRequestError(
                f"an application id has 1 to {self._settings.application_id_bytes_max} bytes length={length}"
            )
        return FenceName(scope, stream, application_id)


def _known(states: StreamTransactions, commit: _Commit) -> list[int]:
    """The transactions that the version became, as far as they are remembered; oldest epoch first."""
    bits = _derived_bits(commit.fence, commit.version)
    return sorted(
        each
        for each in states.ids(
            Phase.JOINING, Phase.COMMITTING, Phase.MERGED, Phase.COMMITTED, Phase.ABORTED
        )
        if each & (1 << _EPOCH_SHIFT) - 1 == bits
    )


def _derived_bits(fence: FenceName, version: int) -> int:
    """What the ids of a version's transactions have in common: all but the epoch."""
    text = "\0".join((fence.scope, fence.stream, fence.application_id, str(version)))
    digest = blake2b(text.encode(), digest_size=_EPOCH_SHIFT // 8).digest()
    return int.from_bytes(digest, "big") & _DERIVED_BITS
