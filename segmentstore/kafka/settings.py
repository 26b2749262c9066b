"""Values that a user may tune in Kafka's protocol. Every bound of this package has its name here."""

from dataclasses import dataclass
from typing import Final

ITEMS_PER_TURN: Final = 250
"""Of a request that names very many partitions, topics or groups, between two turns of the loop: each takes up to
30 us, and none waits for anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Limits and times of the protocol server. Sizes in bytes, times in seconds unless the name says milliseconds."""

    node_id: int = 1
    """What clients know the one server of a store by."""
    advertised_address: tuple[str, int] | None = None
    """Host and port that its clients are sent to; None: the address that each of them has connected to."""
    connections_max: int = 10_000
    """A further client is disconnected at once."""
    idle_seconds: float = 600.0
    """A connection of which nothing was heard for so long, or for up to twice as long, is closed, as in Kafka, unless
    its client has an answer to come: it may have gone without a word. Others connect again when they want something."""

    frame_bytes_max: int = 100 << 20
    """The longest request. A client that announces a longer one is disconnected."""
    batch_bytes_max: int = 16 << 20
    """The longest batch, whatever a topic's `max.message.bytes` says: it is one append to the log."""
    waiting_bytes_max: int = 32 << 20
    """Of requests of one connection that are not answered yet. Above it: its socket is not read. One request may be
    longer, alone."""
    waiting_requests_max: int = 1_000
    """Requests of one connection that are not answered yet. At it: the socket is not read."""
    all_waiting_bytes_max: int = 1 << 30
    """Of requests of all connections that are not answered yet. Above it: no connection that has one is read."""
    frame_memory_kept_bytes_max: int = 8 << 20
    """Of memory that long requests came in and that others may come in, for all connections."""
    frame_memory_ahead_bytes_max: int = 64 << 20
    """Of memory that connections which send long requests have for the next one, before it comes. Without it they
    receive its first bytes as those of short requests, and copy them."""
    requests_per_turn_max: int = 32
    """Requests of one connection that are dealt with before others have their turn."""
    send_buffer_bytes_max: int = 1 << 20
    """Unsent answers, those that wait for others before them, and those that the client does not take. Above it: no
    further request of the connection is begun."""
    answer_bytes_max: int = 1 << 30
    """Of records that were read for consumers and that they have not taken, of all connections together. Without room
    for another answer a fetch waits for it."""
    taking_seconds: float = 15.0
    """A consumer that takes nothing of its answers for so long, while others wait for room, is disconnected."""

    fetch_bytes_max: int = 16 << 20
    """Of one answer to Fetch, whatever the client asks for; a single batch may be longer."""
    fetch_wait_ms_max: int = 60_000
    """A fetch without bytes is answered after so long, whatever the client asks for."""
    wake_seconds: float = 0.003
    """A waiting fetch of several partitions gathers for so long before it looks again."""
    fetch_session_partitions_max: int = 200_000
    """Partitions that the sessions of all consumers remember, about 250 bytes each. Without room for its partitions a
    consumer names them all in each request."""
    read_seconds: float = 15.0
    """A read that takes longer is given up, and the fetch is answered without it. Clients wait 30 seconds."""

    producer_byte_rate: int = 0
    """Bytes a second that one client may produce; 0: no bound."""
    consumer_byte_rate: int = 0
    """Bytes a second that one client may fetch; 0: no bound."""
    quota_clients_max: int = 10_000
    """Clients with an allowance of their own; further ones share one."""

    partition_seconds: float = 10.0
    """How long a request waits for a partition that is being recovered."""
    resend_seconds: float = 15.0
    """How long what an idempotent producer sent behind a refused batch is refused as well, unless that comes again:
    from the answer on. Longer than a request waits for a partition."""
    refused_batches_max: int = 1_000
    """That one connection is remembered to send again; each is of another partition."""
    start_seconds: float = 10.0
    """How long a request waits for topics after a start; then its connection is closed."""
    drain_seconds: float = 5.0
    """At the end, how long batches that were handed to the log may take to be answered."""

    catalogue_seconds: float = 1.0
    """How long a request for metadata waits for the catalogue, for names that are not known here. It is answered with
    what is known then: clients ask for metadata above all while something is away."""

    partitions_default: int = 1
    """Of a new topic whose creator leaves it to the server."""
