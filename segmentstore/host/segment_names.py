"""What a segment may be called.

- 1 to 512 bytes of UTF-8, no NUL, no surrogate halves; everything else is the user's.
- `<target>#transaction.<32 hex digits>` is a transaction of `<target>`: it lives in the same container, so it can be
  merged into it (H60, H61).
"""

from segmentstore.contracts.errors import InvalidRequestError

NAME_BYTES_MAX = 512


def check_segment_name(name: str) -> None:
    """Raises InvalidRequestError with a sentence."""
    if not name:
        raise InvalidRequestError("a segment name is empty; it has 1 to 512 bytes of UTF-8")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"a segment name is not valid Unicode: half a surrogate pair position={error.start}"
        ) from error
    if length > NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"a segment name is too long length={length} length_max={NAME_BYTES_MAX}"
        )
    if "\0" in name:
        raise InvalidRequestError(
            f"a segment name has a NUL character position={name.index(chr(0))}"
        )
