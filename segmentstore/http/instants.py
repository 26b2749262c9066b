"""RFC 3339 instants as `Stream-Expires-At` carries them: a date, a time, and `Z` or a numeric offset."""

import re
from datetime import datetime

from segmentstore.contracts.errors import InvalidRequestError

# fromisoformat alone takes dates, week numbers and instants without an offset, which are not RFC 3339.
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
INSTANT_CHARACTERS_MAX = 40


def instant_ms(text: str) -> int:
    """Unix time in milliseconds. Raises InvalidRequestError."""
    if len(text) > INSTANT_CHARACTERS_MAX or _INSTANT.fullmatch(text) is None:
        raise InvalidRequestError(
            f"not an RFC 3339 instant value={text[:INSTANT_CHARACTERS_MAX]!r}"
        )
    try:
        return round(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"no such instant value={text!r}") from error
