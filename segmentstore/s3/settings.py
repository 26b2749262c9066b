"""Values that a user may tune in the S3 endpoint. Every bound of this package has its name here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Limits and times of the endpoint. Sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 9000
    """0 lets the system choose; S3Server.address says what it chose."""
    region: str = "us-east-1"
    """What buckets say of their place. Requests signed for any region are taken."""

    connections_max: int = 10_000
    """A further client is disconnected at once."""
    object_bytes_max: int = 5 << 30
    """Largest body of one put or of one part, and the most that is copied at once. Above it: EntityTooLarge."""
    held_body_bytes_max: int = 256 << 20
    """A larger body is written to a file as it arrives, and never held whole in memory."""
    body_window_bytes: int = 4 << 20
    """What is written at a time of such a body; it holds two of these in memory."""
    bodies_bytes_max: int = 512 << 20
    """All bodies that are held at once; more wait, and are told to slow down in the end."""
    body_wait_seconds_max: float = 20.0
    body_seconds_max: float = 60.0
    """So far a body may be behind `body_bytes_per_second_min` at any time."""
    body_silence_seconds_max: float = 15.0
    """A body of which nothing arrives for so long is given up, and its memory with it: before those that wait for that
    memory are told to slow down."""
    body_bytes_per_second_min: int = 64 << 10
    document_bytes_max: int = 4 << 20
    """An XML document that is sent to us."""
    read_bytes: int = 512 << 10
    """Of a body, taken from its socket ahead of its reader (up to twice as much)."""
    header_bytes_max: int = 16 << 10
    """One line of a request's head."""

    first_window_bytes: int = 256 << 10
    """An object (or range) up to this size is answered at once."""
    window_bytes: int = 8 << 20
    """What is read at a time of a larger one; its answer holds up to two of them."""
    answers_bytes_max: int = 256 << 20
    """All answers of larger objects together; more wait, and are told to slow down in the end."""
    window_seconds_max: float = 300.0
    """A client that takes one window for longer is disconnected, also where its answer comes in one piece."""
    executor_bytes_min: int = 16 << 10
    """Larger bodies are hashed, and larger documents parsed, in the executor."""

    part_bytes_min: int = 5 << 20
    """Of every part but the last."""
    parts_max: int = 10_000
    joined_bytes_max: int = 64 << 30
    """An object that is made of parts."""

    buckets_max: int = 1_000
    page_entries_max: int = 1_000
    deletions_max: int = 1_000
    """Keys of one DeleteObjects."""
    metadata_bytes_max: int = 2 << 10

    clock_skew_seconds_max: int = 15 * 60
    presigned_seconds_max: int = 7 * 24 * 3600
    shutdown_seconds: float = 10.0
    """How long close() waits for requests under way."""
