"""Header names of the protocol and of the segment verbs, pre-folded so that look-ups are cheap."""

from typing import Final

from multidict import istr

CONTENT_TYPE: Final = istr("Content-Type")
CONTENT_ENCODING: Final = istr("Content-Encoding")
CONNECTION: Final = istr("Connection")
CONTENT_LENGTH: Final = istr("Content-Length")
EXPECT: Final = istr("Expect")
ETAG: Final = istr("ETag")
HOST: Final = istr("Host")
IF_NONE_MATCH: Final = istr("If-None-Match")
LOCATION: Final = istr("Location")
ORIGIN: Final = istr("Origin")

STREAM_CLOSED: Final = istr("Stream-Closed")
STREAM_CURSOR: Final = istr("Stream-Cursor")
STREAM_EXPIRES_AT: Final = istr("Stream-Expires-At")
STREAM_FORK_OFFSET: Final = istr("Stream-Fork-Offset")
STREAM_FORK_SUB_OFFSET: Final = istr("Stream-Fork-Sub-Offset")
STREAM_FORKED_FROM: Final = istr("Stream-Forked-From")
STREAM_NEXT_OFFSET: Final = istr("Stream-Next-Offset")
STREAM_SEQ: Final = istr("Stream-Seq")
STREAM_SSE_DATA_ENCODING: Final = istr("Stream-SSE-Data-Encoding")
STREAM_TTL: Final = istr("Stream-TTL")
STREAM_UP_TO_DATE: Final = istr("Stream-Up-To-Date")

PRODUCER_EPOCH: Final = istr("Producer-Epoch")
PRODUCER_EXPECTED_SEQ: Final = istr("Producer-Expected-Seq")
PRODUCER_ID: Final = istr("Producer-Id")
PRODUCER_RECEIVED_SEQ: Final = istr("Producer-Received-Seq")
PRODUCER_SEQ: Final = istr("Producer-Seq")

SEGMENT_ATTRIBUTES: Final = istr("Segment-Attributes")
SEGMENT_FORWARDED_BY: Final = istr("Segment-Forwarded-By")
"""Between nodes: the node that passed the request on. Such a request is not passed on again."""
SEGMENT_WRONG_NODE: Final = istr("Segment-Wrong-Node")
"""Between nodes, with a 503: the container is not here, and nothing was done."""
SEGMENT_LENGTH: Final = istr("Segment-Length")
SEGMENT_OFFSET: Final = istr("Segment-Offset")
SEGMENT_SEAL: Final = istr("Segment-Seal")
SEGMENT_SEALED: Final = istr("Segment-Sealed")

REQUEST_HEADERS_ALLOWED: Final = ", ".join(
    (
        CONTENT_TYPE,
        IF_NONE_MATCH,
        STREAM_CLOSED,
        STREAM_EXPIRES_AT,
        STREAM_FORKED_FROM,
        STREAM_FORK_OFFSET,
        STREAM_FORK_SUB_OFFSET,
        STREAM_SEQ,
        STREAM_TTL,
        PRODUCER_EPOCH,
        PRODUCER_ID,
        PRODUCER_SEQ,
        SEGMENT_ATTRIBUTES,
        SEGMENT_SEAL,
    )
)

RESPONSE_HEADERS_EXPOSED: Final = ", ".join(
    (
        ETAG,
        LOCATION,
        STREAM_CLOSED,
        STREAM_CURSOR,
        STREAM_EXPIRES_AT,
        STREAM_NEXT_OFFSET,
        STREAM_SSE_DATA_ENCODING,
        STREAM_TTL,
        STREAM_UP_TO_DATE,
        PRODUCER_EPOCH,
        PRODUCER_EXPECTED_SEQ,
        PRODUCER_RECEIVED_SEQ,
        PRODUCER_SEQ,
        SEGMENT_LENGTH,
        SEGMENT_OFFSET,
        SEGMENT_SEALED,
        "Retry-After",
    )
)
