"""The Range header: one range of bytes, from the front or from the end."""

import re

from segmentstore.s3.failures import S3Failure

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def parse_range(text: str | None) -> tuple[int | None, int | None] | None:
    """(first, last), (first, None) for the rest, (None, count) for a suffix; None for the whole object.

    What is no range of bytes is ignored, as RFC 9110 has it. Raises S3Failure for several ranges at once.
    """
    if text is None:
        return None
    compact = text.replace(" ", "")
    if compact.startswith("bytes=") and "," in compact:
        raise S3Failure("InvalidRequest", "Please ask for one range at a time.")
    found = _RANGE.fullmatch(compact)
    if found is None:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if first and last and int(first) > int(last):
        return None
    return (int(first) if first else None, int(last) if last else None)


def resolve_range(asked: tuple[int | None, int | None], size: int) -> tuple[int, int]:
    """[start, end) of an object of that size. Raises S3Failure (InvalidRange)."""
    first, last = asked
    if first is None:
        assert last is not None, "a suffix has a length"
        start, end = max(0, size - last), size
    else:
        start, end = first, size if last is None else min(size, last + 1)
    if start >= end:
        raise S3Failure(
            "InvalidRange",
            "The range of bytes that was asked for is not in the object.",
            {"Content-Range": f"bytes */{size}"},
        )
    return start, end
