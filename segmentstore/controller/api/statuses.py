"""Which gRPC status an error becomes. Clients retry on the codes, not on the words.

| kind | code | clients |
|---|---|---|
| INVALID, TOO_LARGE | INVALID_ARGUMENT | give up |
| NOT_FOUND | NOT_FOUND | give up |
| CONFLICT | FAILED_PRECONDITION | retry a few times |
| UNAVAILABLE, FENCED | UNAVAILABLE | retry |
| FULL | RESOURCE_EXHAUSTED | retry |
| CORRUPT | INTERNAL | retry, and a person is needed |
"""

import grpc

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError


def status_code(error: SegmentStoreError) -> grpc.StatusCode:
    """The code that says what the caller should do."""
    match error.kind:
        case ErrorKind.INVALID | ErrorKind.TOO_LARGE:
            return grpc.StatusCode.INVALID_ARGUMENT
        case ErrorKind.NOT_FOUND:
            return grpc.StatusCode.NOT_FOUND
        case ErrorKind.CONFLICT:
            return grpc.StatusCode.FAILED_PRECONDITION
        case ErrorKind.UNAVAILABLE | ErrorKind.FENCED:
            return grpc.StatusCode.UNAVAILABLE
        case ErrorKind.FULL:
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case ErrorKind.CORRUPT:
            return grpc.StatusCode.INTERNAL
