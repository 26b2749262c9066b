"""Requests by operation, as they are billed: every attempt counts, also one that failed.

Invariant: counters only grow; what they come to in dollars is an estimate by the prices in the settings.
"""

from collections import Counter

from tier2.object_stores.s3.settings import RequestPrices

_READS = frozenset({"get_object", "head_object"})
_DELETES = frozenset({"delete_object", "abort_multipart_upload"})


class RequestStatistics:
    """Counts of one store. The keys are the names of the client library's calls."""

    def __init__(self, prices: RequestPrices) -> None:
        self._prices = prices
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """By state, see `failures`."""
        self.retries = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def cost_usd(self, operation: str) -> float:
        """What the requests of one operation have cost so far, in US dollars."""
        if operation in _DELETES:
            price = self._prices.delete_usd
        elif operation in _READS:
            price = self._prices.read_usd
        else:
            price = self._prices.write_usd
        return self.requests[operation] * price

    def total_cost_usd(self) -> float:
        """What all requests have cost so far."""
        return sum(self.cost_usd(operation) for operation in self.requests)

    def total_requests(self) -> int:
        return self.requests.total()
