"""Text as Java's DataOutput writes it, without the length in front.

Differs from UTF-8 in two ways: NUL is C0 80, and a character above U+FFFF is written as its two surrogates of three
bytes each. Decoding accepts plain UTF-8 as well, which other clients send.
"""

from segmentstore.codec.wire_protocol.protocol_error import ProtocolError


def encode_text(text: str) -> bytes:
    """Raises ProtocolError for a lone surrogate."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    try:
        units = text.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text is not encodable text={text[:40]!r}") from error
    halves = (units[start : start + 2] for start in range(0, len(units), 2))
    surrogates = "".join(chr(int.from_bytes(half, "big")) for half in halves)
    return surrogates.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def decode_text(content: bytes) -> str:
    """Raises ProtocolError for bytes that are neither modified nor plain UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        # C0 occurs in no well-formed UTF-8, so the pair cannot be part of another character.
        text = content.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise ProtocolError(f"text is not UTF-8 bytes={content[:40].hex()}") from error
