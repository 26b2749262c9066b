"""Segment names as they stand in a URL.

The name is everything behind the route's prefix in the *raw* path, percent-decoded exactly once: `%2F` is a
slash like any other, `%252F` is the three characters `%2F`.

- A name is UTF-8, at most `name_bytes_max` bytes, and holds no control character.
- None of its parts (between slashes) is empty, `.` or `..`: no proxy or file system may read it as a path step.
- `__ds` as first part is reserved for the control APIs of Durable Streams.
"""

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from segmentstore.contracts.errors import InvalidRequestError

RESERVED_PART = "__ds"

_CONTROL = re.compile("[\x00-\x1f\x7f]")
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


@lru_cache(maxsize=4096)
def name_of_path(raw_name: str, name_bytes_max: int) -> str:
    """Decode and check the raw rest of a path.

    Cached because a hot stream sends the same text with every append. Raises InvalidRequestError.
    """
    if _BROKEN_ESCAPE.search(raw_name):
        raise InvalidRequestError(f"name has a broken percent escape raw={raw_name!r}")
    encoded = unquote_to_bytes(raw_name)
    if len(encoded) > name_bytes_max:
        raise InvalidRequestError(
            f"name is too long bytes={len(encoded)} bytes_max={name_bytes_max}"
        )
    try:
        name = encoded.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"name is not UTF-8 raw={raw_name!r}") from error
    check_name(name)
    return name


def check_name(name: str) -> None:
    """Raises InvalidRequestError if no segment may have this name (its length aside)."""
    if _CONTROL.search(name):
        raise InvalidRequestError(f"name holds a control character name={name!r}")
    for part in name.split("/"):
        if part in {"", ".", ".."}:
            raise InvalidRequestError(f"name has a part that is empty, '.' or '..' name={name!r}")


def is_reserved(name: str) -> bool:
    """Whether the name belongs to the control APIs."""
    return name == RESERVED_PART or name.startswith(RESERVED_PART + "/")
