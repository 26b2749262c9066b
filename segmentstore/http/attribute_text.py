"""Attributes as JSON: keys and values are bytes or numbers in the store and text in a request.

    bytes that are UTF-8 and do not begin with "hex:"    the text itself
    all other bytes                                      "hex:" and their hexadecimal digits
    numbers (64-bit, signed)                             JSON numbers

An update is an object: {"key", "value" (null removes), "type": a name of AttributeUpdateType in lower case
(default "replace"), "comparison" (for "replace_if_equals")}.
"""

import json
from collections.abc import Mapping

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import (
    ATTRIBUTE_KEY_BYTES_MAX,
    ATTRIBUTE_VALUE_BYTES_MAX,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from segmentstore.http.stream_attributes import is_reserved_key

UPDATES_MAX = 1_000
"""Updates of one request."""

_HEX = "hex:"
_NUMBER_MIN, _NUMBER_MAX = -(1 << 63), (1 << 63) - 1
_UPDATE_FIELDS = frozenset({"key", "value", "type", "comparison"})


def text_of_bytes(value: bytes) -> str:
    """The text form; bytes_of_text() gives the bytes back."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _HEX + value.hex()
    return _HEX + value.hex() if text.startswith(_HEX) else text


def bytes_of_text(text: str) -> bytes:
    """Raises InvalidRequestError for broken hexadecimal digits."""
    try:
        return bytes.fromhex(text[len(_HEX) :]) if text.startswith(_HEX) else text.encode()
    except ValueError as error:
        raise InvalidRequestError(f"attribute text is malformed value={text[:64]!r}") from error


def attributes_as_json(
    attributes: Mapping[AttributeKey, AttributeValue],
) -> dict[str, int | str]:
    """For an answer."""
    return {
        text_of_bytes(key): text_of_bytes(value) if isinstance(value, bytes) else value
        for key, value in attributes.items()
    }


def updates_of_json(updates: object) -> list[AttributeUpdate]:
    """Read a parsed JSON array of updates; None gives none. Raises InvalidRequestError."""
    if updates is None:
        return []
    if not isinstance(updates, list):
        raise InvalidRequestError("attribute updates are not a JSON array")
    if len(updates) > UPDATES_MAX:
        raise InvalidRequestError(
            f"too many attribute updates count={len(updates)} count_max={UPDATES_MAX}"
        )
    return [_parse_update(update) for update in updates]


def parse_json(text: str | bytes) -> object:
    """Raises InvalidRequestError."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON: {error}") from error
    return value


def _parse_update(update: object) -> AttributeUpdate:
    if not isinstance(update, dict) or not isinstance(update.get("key"), str):
        raise InvalidRequestError('an attribute update is an object with a text "key"')
    unknown = sorted(set(update) - _UPDATE_FIELDS)
    if unknown:
        raise InvalidRequestError(f"attribute update has unknown fields fields={unknown}")
    key = bytes_of_text(update["key"])
    if not 1 <= len(key) <= ATTRIBUTE_KEY_BYTES_MAX:
        raise InvalidRequestError(
            f"attribute key has a bad length bytes={len(key)} bytes_max={ATTRIBUTE_KEY_BYTES_MAX}"
        )
    if is_reserved_key(key):
        raise InvalidRequestError(f"attribute belongs to the stream protocol key={update['key']!r}")
    type_name = update.get("type", "replace")
    try:
        update_type = AttributeUpdateType[str(type_name).upper()]
    except KeyError as error:
        raise InvalidRequestError(f"no such attribute update type={type_name!r}") from error
    value = _parse_value(update.get("value"))
    if update_type is AttributeUpdateType.ACCUMULATE and not isinstance(value, int):
        raise InvalidRequestError("accumulate needs a number")
    if update_type is AttributeUpdateType.REPLACE_IF_GREATER and not isinstance(value, int):
        raise InvalidRequestError("replace_if_greater needs a number")
    comparison = _parse_value(update.get("comparison"))
    return AttributeUpdate(AttributeKey(key), value, update_type, comparison)


def _parse_value(value: object) -> AttributeValue | None:
    if value is None:
        return None
    if isinstance(value, str):
        encoded = bytes_of_text(value)
        if len(encoded) > ATTRIBUTE_VALUE_BYTES_MAX:
            raise InvalidRequestError(
                f"attribute value is too long bytes={len(encoded)}"
                f" bytes_max={ATTRIBUTE_VALUE_BYTES_MAX}"
            )
        return encoded
    if isinstance(value, int) and not isinstance(value, bool):
        if _NUMBER_MIN <= value <= _NUMBER_MAX:
            return value
        raise InvalidRequestError(f"attribute number does not fit 64 bits value={value}")
    raise InvalidRequestError("an attribute value is a number, text or null")
