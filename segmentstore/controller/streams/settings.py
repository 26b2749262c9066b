"""What an operator may turn about streams and scopes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Limits and pauses."""

    segments_per_stream_max: int = 1000
    """Active segments of one stream."""
    tags_per_stream_max: int = 128
    tag_length_max: int = 256
    names_per_page: int = 100
    """Names in one page of a listing."""
    segment_name_length_max: int = 512
    """What the store accepts as a segment's name; scope and stream together have to leave room for the rest."""
    waiters_per_stream_max: int = 1000
    """Requests that wait for one stream; further ones are told to come back."""
    segment_steps_at_once_max: int = 32
    """Segments of one stream that are created, sealed or deleted side by side."""
    records_per_batch_max: int = 500
    """Records of a deleted stream that are removed in one step."""
    resume_pause_seconds: float = 0.1
    """First pause before an operation that failed is tried again; doubles up to the maximum."""
    resume_pause_seconds_max: float = 10.0
