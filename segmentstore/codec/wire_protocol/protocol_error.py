"""The one error of this codec."""

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError


class ProtocolError(SegmentStoreError):
    """Bytes that are no frame of the protocol, or a value that fits into none. The connection cannot go on."""

    kind = ErrorKind.INVALID
