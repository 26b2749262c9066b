"""What the client asks of the controller about transactions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from segmentstore.client.controller import Controller, StreamName, ranges_of
from segmentstore.client.controller_channel import check_status, status_of
from segmentstore.client.key_space import SegmentRange
from segmentstore.codec.controller_api import controller_pb2 as messages
from segmentstore.codec.stream_names import transaction_halves, transaction_id_of

_NO_TIMESTAMP = -(1 << 63)


class TransactionState(Enum):
    """Where a transaction is in its life."""

    UNKNOWN = "unknown"
    """It never existed, or ended long ago."""
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A new transaction and the segments it writes to."""

    transaction_id: int
    ranges: Sequence[SegmentRange]


class TransactionCalls:
    """Transactions of one stream."""

    def __init__(self, controller: Controller, stream: StreamName) -> None:
        self._controller = controller
        self._stream = stream

    async def begin(self, lease_seconds: float) -> BegunTransaction:
        """Repeated after a lost answer: a transaction that nobody knows of ends with its lease."""
        answer = await self._controller.channel.ask(
            "createTransaction",
            messages.CreateTxnRequest(
                streamInfo=self._stream.message(), lease=int(lease_seconds * 1000)
            ),
            messages.CreateTxnResponse,
            what="stream",
            name=str(self._stream),
        )
        found = answer.txnId
        return BegunTransaction(
            transaction_id_of(high=found.highBits, low=found.lowBits),
            ranges_of(answer.activeSegments),
        )

    async def ping(self, transaction_id: int, lease_seconds: float) -> str:
        """Extend the lease; the name of the answer's status."""
        answer = await self._controller.channel.ask(
            "pingTransaction",
            messages.PingTxnRequest(
                streamInfo=self._stream.message(),
                txnId=_message(transaction_id),
                lease=int(lease_seconds * 1000),
            ),
            messages.PingTxnStatus,
            what="transaction",
            name=f"{transaction_id:032x}",
        )
        return status_of(answer)

    async def commit(self, transaction_id: int) -> None:
        """Returns when the commit can no longer be undone; it may still be under way. Raises NotFoundError."""
        await self._end("commitTransaction", transaction_id)

    async def abort(self, transaction_id: int) -> None:
        """Raises NotFoundError."""
        await self._end("abortTransaction", transaction_id)

    async def state(self, transaction_id: int) -> TransactionState:
        answer = await self._controller.channel.ask(
            "checkTransactionState",
            self._request(transaction_id),
            messages.TxnState,
            what="transaction",
            name=f"{transaction_id:032x}",
        )
        return TransactionState(status_of(answer, "state").lower())

    async def completed(self) -> Mapping[int, TransactionState]:
        """Transactions that ended, as far as the controller remembers them."""
        answer = await self._controller.channel.ask(
            "listCompletedTransactions",
            messages.ListCompletedTxnRequest(streamInfo=self._stream.message()),
            messages.ListCompletedTxnResponse,
            what="stream",
            name=str(self._stream),
        )
        return {
            transaction_id_of(high=each.txnId.highBits, low=each.txnId.lowBits): TransactionState(
                status_of(each).lower()
            )
            for each in answer.response
        }

    async def _end(self, method: str, transaction_id: int) -> None:
        name = f"{transaction_id:032x}"
        answer = await self._controller.channel.ask(
            method,
            self._request(transaction_id),
            messages.TxnStatus,
            what="transaction",
            name=name,
        )
        check_status(answer, what="transaction", name=name)

    def _request(self, transaction_id: int) -> messages.TxnRequest:
        return messages.TxnRequest(
            streamInfo=self._stream.message(),
            txnId=_message(transaction_id),
            timestamp=_NO_TIMESTAMP,
        )


def _message(transaction_id: int) -> messages.TxnId:
    high, low = transaction_halves(transaction_id)
    return messages.TxnId(highBits=high, lowBits=low)
