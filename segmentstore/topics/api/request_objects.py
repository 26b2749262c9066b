"""How many records and headers a produce request has, counted in its bytes: before they are made.

An empty record, or header, has two bytes in a request, and takes 90 as an object of the parser, and again as one of
ours. So 16 MiB may come to 1.5 GB. The parser makes its part in one step of half a second: no other thread runs then.

    ProduceRequest, field 3 -> Records, field 1 (a record) -> Record, field 4 (a header)

Invariant: what the parser makes a record or a header of is counted, or MalformedError is raised. (What looks like one
in a group, which the parser skips, is counted as well.) Complexity: O(fields), none of which is copied.
"""

from typing import Final

OBJECTS_MAX: Final = 1 << 19
"""Records and headers of one request: some 100 MB, and 30 ms in the parser."""

_PATH: Final = (3, 1, 4)
"""The number of the field that is gone into, by depth."""
_OBJECT_BYTES_MIN: Final = 2
_VARINT_BYTES_MAX: Final = 10

_VARINT: Final = 0
_FIXED_64: Final = 1
_COUNTED: Final = 2
_GROUP_BEGINS: Final = 3
_GROUP_ENDS: Final = 4
_FIXED_32: Final = 5


class MalformedError(ValueError):
    """The bytes are no message."""


def has_few_objects(request: bytes) -> bool:
    """Whether a produce request has OBJECTS_MAX records and headers at most. Raises MalformedError."""
    return len(request) <= _OBJECT_BYTES_MIN * OBJECTS_MAX or (
        objects_in(request, count_max=OBJECTS_MAX) <= OBJECTS_MAX
    )


def objects_in(request: bytes, *, count_max: int) -> int:
    """Its records and headers; if there are more than `count_max`, one more than that. Raises MalformedError."""
    ends = [len(request)]
    at = count = 0
    try:
        while ends:
            if at >= ends[-1]:
                if at > ends.pop():
                    raise MalformedError("a field goes beyond its message")
                continue
            tag = request[at]
            at += 1
            if tag > 0x7F:
                tag, at = _varint(request, at - 1)
            kind = tag & 7
            if kind == _COUNTED:
                length = request[at]
                at += 1
                if length > 0x7F:
                    length, at = _varint(request, at - 1)
                if tag >> 3 == _PATH[len(ends) - 1]:
                    count += len(ends) > 1
                    if count > count_max:
                        return count
                    if len(ends) < len(_PATH):
                        if at + length > ends[-1]:
                            raise MalformedError("a message goes beyond the one around it")
                        ends.append(at + length)
                        continue
                at += length
            elif kind == _VARINT:
                while request[at] > 0x7F:
                    at += 1
                at += 1
            elif kind in {_FIXED_64, _FIXED_32}:
                at += 8 if kind == _FIXED_64 else 4
            elif kind not in {_GROUP_BEGINS, _GROUP_ENDS}:
                raise MalformedError(f"a field is of no kind kind={kind}")
    except IndexError as error:
        raise MalformedError("a field is cut off") from error
    return count


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    value = 0
    for number in range(_VARINT_BYTES_MAX):
        byte = content[at + number]
        value |= (byte & 0x7F) << 7 * number
        if byte <= 0x7F:
            return value, at + number + 1
    raise MalformedError("a number is too long")
