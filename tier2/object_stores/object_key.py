"""What a key may look like, for every object store alike: the grammar of segmentstore/contracts/object_store.py.

A key that breaks it is refused before anything is sent, so that a store with lenient rules never accepts what the next
one refuses.
"""

import re

from segmentstore.contracts.errors import InvalidRequestError

KEY_CHARACTERS_MAX = 1024
PART_CHARACTERS_MAX = 200

_PART = rf"[A-Za-z0-9_=-][A-Za-z0-9._=-]{{0,{PART_CHARACTERS_MAX - 1}}}"
_ONE_PART = re.compile(_PART, re.ASCII)
_KEY = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?", re.ASCII)


def is_part(part: str) -> bool:
    """Whether the text may stand between two slashes of a key."""
    return _ONE_PART.fullmatch(part) is not None


def check_key(key: str) -> None:
    """Raises InvalidRequestError unless the key follows the grammar."""
    if len(key) > KEY_CHARACTERS_MAX or _KEY.fullmatch(key) is None:
        raise InvalidRequestError(f"bad object key key={key[:300]!r} characters={len(key)}")


def check_prefix(prefix: str) -> None:
    """Raises InvalidRequestError unless some key can start with the prefix; the empty one is allowed."""
    if len(prefix) > KEY_CHARACTERS_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidRequestError(
            f"bad key prefix prefix={prefix[:300]!r} characters={len(prefix)}"
        )


def check_range(start: int, length: int) -> None:
    """Raises InvalidRequestError for a range that no object can have."""
    if start < 0 or length < 0:
        raise InvalidRequestError(f"bad object range start={start} length={length}")
