"""Values that a user may tune in the HTTP server. Every bound of this package has its name here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Limits and times of the HTTP server. Sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 4437
    """0 lets the system choose; HttpServer.address says what it chose."""

    connections_max: int = 10_000
    """A further client is disconnected at once."""
    append_bytes_max: int = 8 << 20
    """Largest body of one append: it is one operation, so it is held in memory whole. Above it: 413."""
    control_body_bytes_max: int = 1 << 20
    """Largest JSON body of a segment verb."""
    swap_object_bytes_max: int = 128 << 20
    """Largest object that a compactor beside the owner of a container uploads through it; one at a time."""
    body_bytes_in_flight_max: int = 256 << 20
    """All request bodies together, of what has arrived of them. Above it: 503 with Retry-After."""
    body_seconds_max: float = 60.0
    """A body that takes longer to arrive is given up with 408."""
    body_silence_seconds_max: float = 15.0
    """And so is one of which nothing arrives for so long."""

    read_bytes_max: int = 1 << 20
    """Bytes of one catch-up answer (a JSON answer may exceed it by one message)."""
    window_bytes: int = 256 << 10
    """What one streaming reader may hold: the piece on its way to a socket."""
    write_seconds_max: float = 60.0
    """A reader that does not take a window for so long is disconnected; an answer of several has as many times that."""

    long_poll_seconds: float = 20.0
    sse_seconds: float = 60.0
    """An SSE connection ends after so long; its client reconnects with its last offset."""
    waiters_max: int = 10_000
    """Long polls and SSE connections waiting for bytes at once. Above it: 503."""
    sse_connections_max: int = 2_000

    producers_per_stream_max: int = 10_000
    """Idempotent producers one stream remembers. A further one: 409."""
    producer_id_bytes_max: int = 200
    stream_sequence_bytes_max: int = 512
    content_type_bytes_max: int = 255

    pinned_segments_max: int = 1_024
    """Segments that stay open between two appends."""
    pin_idle_seconds: float = 10.0

    tick_seconds: float = 1.0
    """Between two looks at the clocks and at idle segments."""
    sweep_interval_seconds: float = 30.0
    """Between two passes over all streams that look for expired ones that no request asks for."""
    sweep_page_segments: int = 500
    """Segments looked at per tick of a sweep."""
    expiring_streams_max: int = 100_000
    """Streams whose last access is remembered; one that was forgotten counts as accessed when next seen."""
    clock_difference_seconds_max: float = 5.0
    """Wall and loop clock may drift apart by so much between two looks; more stops deletion by time."""
    clock_settle_seconds: float = 600.0
    """After so long without a further jump time itself has settled the matter."""

    json_inline_bytes_max: int = 64 << 10
    """JSON bodies up to this size are split, or parsed, on the loop, larger ones in the executor."""
    list_segments_max: int = 1_000

    owner_wait_seconds: float = 3.0
    """In a cluster: how long a request waits for its container while that is on its way to a node. Then 503."""
    forwarded_requests_max: int = 1_000
    """Requests that wait for another node, or for their container to have one. Above it: 503."""
    forward_connect_seconds: float = 2.0
    forward_silence_seconds: float = 120.0
    """Another node that says nothing for so long is given up with 504: longer than a long poll or a body takes."""
    forward_kept_bytes_max: int = 64 << 10
    """A body up to this size is kept while it is forwarded, so that a node that refuses it costs a second try; a longer
    one is passed on as it comes."""

    retry_after_seconds: int = 1
    shutdown_seconds: float = 10.0
    """How long close() waits for requests under way."""
    linger_seconds: float = 1.0
    """In a cluster: how long close() still answers on connections that clients keep, each time for the last time."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may address the server besides what it listens on (cross_origin.py); "*": any."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server; "*": all."""
