"""Values that a user may tune in the wire protocol. Every bound of this package has its name here."""

from dataclasses import dataclass
from typing import Final

OVERHEAD_BYTES: Final = 512
"""What an append or a request counts for beside its own bytes: one without any is kept until it is answered as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """Limits and times of the protocol server. Sizes in bytes, times in seconds."""

    connections_max: int = 10_000
    """A further client is disconnected at once."""
    receive_buffer_bytes: int = 64 << 10
    """What all connections read into together, and the least memory of one that a part of a frame is left of: it grows
    to the frame, and is given back when the connection is idle."""
    receive_buffer_busy_bytes: int = 512 << 10
    """So far it also grows for a client that keeps filling it."""
    frame_silence_seconds_max: float = 15.0
    """A connection of which a part of a frame has arrived, and then nothing for so long, is closed."""
    frames_per_turn_max: int = 256
    """Frames of one connection that are dealt with before others have their turn."""

    unacked_bytes_max: int = 8 << 20
    """Appended or asked and not yet answered on one connection, OVERHEAD_BYTES for each included. Above it: its socket
    is not read. More only makes appends wait here instead of at the client."""

    held_bytes_max: int = 512 << 20
    """Received and not done, parts of frames included, or said and not taken, by all connections together. Above it,
    and until half of it is left: connections that hold more than their share of that half are not read. All together
    may come to hold twice as much, and what is read of each in one go."""
    held_seconds_max: float = 15.0
    """Above it: so long may a client need for the rest of a frame, or for answers beyond its share; then its connection
    is closed."""

    writers_per_connection_max: int = 4_096
    """Set-up writers on one connection. One more: the connection is closed. The Java client stops at 2000."""
    recovery_seconds_max: float = 10.0
    """A set-up, a change or a question about a table waits so long for a container that is recovering; then it is
    refused, and the client asks again, or gives up."""
    recovery_waits_per_connection_max: int = 64
    """So many of a connection wait for recoveries; one more is refused at once, and all of them when the connection has
    as much under way as it may: what is for other containers is read on."""
    requests_per_connection_max: int = 256
    """Requests under way that could not be answered at once. At it: the socket is not read."""
    store_calls_max: int = 8_192
    """Calls of controllers under way on the server; one more is refused."""
    transients_per_connection_max: int = 1_000
    """Transient segments that go with the connection that made them, the newest ones; older ones go by age."""
    reads_per_connection_max: int = 10_000
    """Unanswered reads. At it: the socket is not read."""
    cold_reads_per_connection_max: int = 8
    """Reads from Tier 2 at a time; further ones wait in a queue."""

    read_bytes_max: int = 1 << 20
    """Data of one SegmentRead."""
    flush_bytes: int = 256 << 10
    """Replies are handed to the socket once per turn of the loop, or when they have grown to this."""
    send_buffer_bytes_max: int = 4 << 20
    """Unsent replies. Above it: reads of this connection wait."""
    send_backlog_bytes_max: int = 16 << 20
    """Unsent replies of a client that sends requests and does not read. Above it: the socket is not read."""
    long_poll_seconds: float = 60.0
    """A read that met the end of its segment is answered without data after so long."""
    waiter_retry_seconds: float = 1.0
    """Between two looks at a segment whose container has no room for another waiter."""

    pins_idle_max: int = 4_096
    """Segments and tables that stay open while they are idle."""
    pin_idle_seconds: float = 10.0
    """A writer, reader or table without traffic lets go of its segment after so long."""

    event_search_bytes_max: int = 256 << 20
    """How far LocateOffset looks for the beginning of an event, from the nearest that is known; beyond: the end."""
    event_searches_max: int = 4
    """Such searches that read at a time, of all connections together; further ones wait."""

    table_answers_bytes_max: int = 32 << 20
    """Answers of tables that are being made for one connection, by what each may have; further ones wait."""
    table_page_entries_max: int = 1_000
    """Keys or entries of one page, whatever was asked for."""
    tick_seconds: float = 1.0
    """Between two looks at idle handles, waiting reads and closing connections."""
    drain_seconds: float = 5.0
    """A connection that is closed may take so long to accept its last replies."""
