"""How many bytes a second one client may produce, and how many it may fetch.

A client is what it calls itself (`client.id`), in all of its connections to this process. A request is carried out
whatever it brings; if the client is above its rate then, the answer tells for how long (`throttle_time_ms`), and
nothing more is taken from that connection until the time is over, as in Kafka (KIP-219): a client that does not wait by
itself gains nothing.

Invariants:

- In t seconds a client gets its rate times t + 1, and one request more for each of its connections.
- No wait is longer than a client waits for an answer. What is then left of its debt counts with its next request.
- No more than `clients_max` names are remembered; those above it share one allowance.
"""

import math
from typing import Final

WAIT_SECONDS_MAX: Final = 10.0
"""Clients give a request up after 30 seconds."""
_OTHERS: Final = None
"""The name of those that are not remembered one by one."""


class ByteQuota:
    """One rate for each of the clients."""

    def __init__(self, byte_rate: int, *, clients_max: int) -> None:
        """`byte_rate`: bytes a second; 0: no bound."""
        self._byte_rate = byte_rate
        self._clients_max = clients_max
        self._paid_until: dict[str | None, float] = {}
        """When a client that takes nothing more has paid for all that it took."""
        self._swept_at = -math.inf

    def take(self, client_id: str, byte_count: int, now: float) -> int:
        """Milliseconds that the client has to wait now; 0 if it is inside its rate. `now`: seconds, as of the loop."""
        if not self._byte_rate:
            return 0
        name = self._name_of(client_id, now)
        # What it left in the last second is its own; what it left before is gone.
        paid_until = max(self._paid_until.get(name, -math.inf), now - 1.0)
        paid_until += byte_count / self._byte_rate
        self._paid_until[name] = paid_until
        return math.ceil(1000 * min(max(paid_until - now, 0.0), WAIT_SECONDS_MAX))

    def _name_of(self, client_id: str, now: float) -> str | None:
        if client_id in self._paid_until or len(self._paid_until) < self._clients_max:
            return client_id
        if now >= self._swept_at + 1.0:
            # Those that have their whole allowance are as good as new. Not with each request: all names are looked at.
            self._swept_at = now
            for name, paid_until in list(self._paid_until.items()):
                if paid_until <= now - 1.0:
                    del self._paid_until[name]
        return client_id if len(self._paid_until) < self._clients_max else _OTHERS
