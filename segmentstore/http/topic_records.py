"""Records of topics as JSON: what producers send, what consumers get.

    {"key": "k", "value": "v", "timestamp_ms": 1700000000000, "headers": [["name", "value"], ...]}

| field | means | left out |
|---|---|---|
| `key`, `value` | text, stored as UTF-8; null is null, and a null value under a key is a tombstone | null |
| `key_base64`, `value_base64` | bytes instead of text | |
| `value_json` | any JSON value; its compact text is stored. Producers alone | |
| `timestamp_ms` | Unix milliseconds | the time of the request |
| `headers` | pairs of a name and text or null; `{"base64": "..."}` instead of text is bytes | none |

A consumer gets `key` or `key_base64`, `value` or `value_base64`: text wherever the bytes are UTF-8; and `offset`.

Invariant: what a consumer gets can be sent as it is, without its offset, and is the same record again.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import StringIO

from segmentstore.codec.record_batch import Record
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.http.json_messages import AT_ONCE_CHARACTERS, LongValues, array_elements
from segmentstore.http.requests import parse_json

_FIELDS = frozenset(
    {"key", "key_base64", "value", "value_base64", "value_json", "timestamp_ms", "headers"}
)
_KEY_FIELDS = ("key", "key_base64")
_VALUE_FIELDS = ("value", "value_base64", "value_json")
_TIMESTAMP_END = 1 << 63
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_ARRAY_FORM = re.compile(r'[ \t\r\n]*(?:(\{)[ \t\r\n]*"records"[ \t\r\n]*:[ \t\r\n]*)?(?=\[)')


def parse_records(body: bytes, *, lines: bool, now_ms: int) -> Sequence[Record]:
    """The records of a request: one object for each line, an array of them, or {"records": [...]}. All offsets are 0.

    Raises InvalidRequestError, which says what is wrong with which record, counted from 0.
    """
    if lines:
        values = [(parse_json(line), len(line)) for line in body.splitlines() if line.strip()]
    else:
        values = _parse_array(body)
    if not values:
        raise InvalidRequestError("there are no records in the body")
    return [
        _parse_record(place, value, now_ms, is_long=length > AT_ONCE_CHARACTERS)
        for place, (value, length) in enumerate(values)
    ]


def _parse_array(body: bytes) -> list[tuple[object, int]]:
    """The records, and of how many characters each is at most. One by one, so that the length of each is known.

    Raises InvalidRequestError.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        form = _ARRAY_FORM.match(text)
        if form is not None and form[1] is None:
            return _elements(text, form.end())
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON: {error}") from error
    if form is not None:
        inner = text.rstrip(" \t\r\n")
        # What else is in the object, or wrong with it, is seen by reading all of it.
        with suppress(ValueError, RecursionError):
            if inner.endswith("}"):
                return _elements(inner[:-1], form.end())
    values = parse_json(body)
    if isinstance(values, dict):
        if values.keys() != {"records"}:
            raise InvalidRequestError('the body is neither an array nor {"records": [...]}')
        values = values["records"]
    if not isinstance(values, list):
        raise InvalidRequestError("the records are not an array")
    return [(value, len(body)) for value in values]


def _elements(text: str, start: int) -> list[tuple[object, int]]:
    elements = array_elements(text, start, LongValues(text).value_at)
    return [(value, end - first) for value, first, end in elements]


def record_as_json(record: Record) -> Mapping[str, object]:
    """As a consumer gets it."""
    shown: dict[str, object] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    shown.update([_shown("key", record.key), _shown("value", record.value)])
    if record.headers:
        shown["headers"] = [[name, _shown_header(value)] for name, value in record.headers]
    return shown


def _parse_record(place: int, value: object, now_ms: int, *, is_long: bool) -> Record:
    if not isinstance(value, dict):
        raise _wrong(place, "it is not an object")
    unknown = sorted(value.keys() - _FIELDS)
    if unknown:
        raise _wrong(place, f"it has unknown fields fields={unknown}")
    timestamp_ms = value.get("timestamp_ms", now_ms)
    if not _is_count(timestamp_ms):
        raise _wrong(place, f"timestamp_ms is not a number of milliseconds value={timestamp_ms!r}")
    headers = value.get("headers", [])
    if not isinstance(headers, list):
        raise _wrong(place, "headers are not an array")
    return Record(
        offset=0,
        timestamp_ms=timestamp_ms,
        key=_bytes_of(place, value, _KEY_FIELDS),
        value=_bytes_of(place, value, _VALUE_FIELDS, is_long=is_long),
        headers=tuple([_parse_header(place, header) for header in headers]),
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TIMESTAMP_END


def _bytes_of(
    place: int, value: Mapping[str, object], fields: Sequence[str], *, is_long: bool = False
) -> bytes | None:
    given = [field for field in fields if field in value]
    if not given:
        return None
    if len(given) > 1:
        raise _wrong(place, f"more than one of {given} is given")
    (field,) = given
    content = value[field]
    if field == "value_json":
        return _encoded(place, _compact(place, content, is_long=is_long))
    if field.endswith("_base64"):
        return _decoded(place, field, content)
    if content is None:
        return None
    if not isinstance(content, str):
        raise _wrong(place, f"{field} is neither text nor null; JSON goes into value_json")
    return _encoded(place, content)


def _compact(place: int, content: object, *, is_long: bool) -> str:
    """A long one in pieces: while C code writes a value no other thread runs."""
    try:
        if not is_long:
            return _ENCODER.encode(content)
        written = StringIO()
        written.writelines(_ENCODER.iterencode(content))
        return written.getvalue()
    except RecursionError as error:
        raise _wrong(place, "value_json is nested too deeply") from error


def _parse_header(place: int, header: object) -> tuple[str, bytes | None]:
    match header:
        case [str(name), None]:
            content = None
        case [str(name), str(text)]:
            content = _encoded(place, text)
        case [str(name), {"base64": text, **rest}] if not rest:
            content = _decoded(place, "a header", text)
        case _:
            raise _wrong(place, f"a header is no pair of a name and a value header={header!r:.100}")
    _encoded(place, name)
    return name, content


def _encoded(place: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _wrong(place, "its text has half of a surrogate pair") from error


def _decoded(place: int, field: str, content: object) -> bytes:
    if not isinstance(content, str):
        raise _wrong(place, f"{field} is not text in base64")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(place, f"{field} is not in base64: {error}") from error


def _wrong(place: int, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"record {place} cannot be taken: {why}")


def _shown(field: str, content: bytes | None) -> tuple[str, str | None]:
    if content is None:
        return field, None
    try:
        return field, content.decode()
    except UnicodeDecodeError:
        return f"{field}_base64", base64.b64encode(content).decode()


def _shown_header(content: bytes | None) -> object:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
