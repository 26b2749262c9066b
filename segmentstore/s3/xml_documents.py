"""XML that is received and sent, the answers that carry it, and points in time as the protocol writes them.

A received document is a small tree, from a parser that takes no declarations. A document that is sent is built as text,
from the leaves up. Points in time are Unix milliseconds inside.

Invariants: a document with a DOCTYPE (and so every entity and every bomb made of them) is refused; depth, number of
elements and the length of a tag are bounded; names lose their namespace. However long a document is, other threads run
while it is parsed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from xml.parsers import expat
from xml.sax.saxutils import escape

from aiohttp import web

from segmentstore.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_XML_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_XML_CONTENT_TYPE = "application/xml"
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_DEPTH_MAX = 8
_ELEMENTS_MAX = 50_000
_AT_ONCE_BYTES = 32 << 10
"""Of a document, given to the parser: C code, in which no other thread runs. A tag is about as long at most."""
_NAMESPACE_SEPARATOR = " "
_LATEST_DATE_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999


@dataclass(slots=True)
class Element:
    """One element: its text, or its children."""

    name: str
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def find(self, name: str) -> "Element | None":
        """The first child of that name."""
        return next(self.all(name), None)

    def all(self, name: str) -> Iterator["Element"]:
        return (child for child in self.children if child.name == name)

    def text_of(self, name: str, default: str = "") -> str:
        """The text of the first child of that name."""
        child = self.find(name)
        return default if child is None else child.text.strip()


class _TreeBuilder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        """Of the open elements, piece by piece: adding to a text copies it, for each of its pieces."""
        self._elements = 0

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _ELEMENTS_MAX or len(self._open) >= _DEPTH_MAX:
            raise _malformed_xml("it has too many elements")
        element = Element(name.rpartition(_NAMESPACE_SEPARATOR)[2])
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._texts.append([])

    def end(self, _name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def characters(self, text: str) -> None:
        # Whitespace between children is kept here and stripped or ignored by the reader.
        self._texts[-1].append(text)

    @staticmethod
    def doctype(*_declaration: object) -> None:
        raise _malformed_xml("a document type is not allowed")


def parse(content: bytes, root: str) -> Element:
    """The root element, which must have that name. Raises S3Error (MalformedXML). Cost: O(bytes)."""
    builder = _TreeBuilder()
    parser = expat.ParserCreate(namespace_separator=_NAMESPACE_SEPARATOR)
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = builder.doctype
    try:
        for start in range(0, len(content), _AT_ONCE_BYTES):
            end = min(start + _AT_ONCE_BYTES, len(content))
            parser.Parse(content[start:end], False)
            # What is not parsed yet is a tag that has no end: it is one call, with all of its attributes.
            if end - parser.CurrentByteIndex > 2 * _AT_ONCE_BYTES:
                raise _malformed_xml("a tag is too long")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise _malformed_xml(expat.ErrorString(error.code)) from error
    except (ValueError, LookupError) as error:
        raise _malformed_xml("its encoding is unknown") from error
    if builder.root is None or builder.root.name != root:
        raise _malformed_xml(f"a {root} was expected")
    return builder.root


def _malformed_xml(why: str) -> S3Error:
    return S3Error("MalformedXML", f"The XML of the request cannot be used: {why}.")


def leaf(name: str, value: str | int | bool) -> str:
    """<name>value</name>, escaped."""
    if isinstance(value, bool):
        return f"<{name}>{'true' if value else 'false'}</{name}>"
    text = escape(str(value), {"\r": "&#13;"})
    # No XML 1.0 document can hold these; clients that may meet them ask for encoding-type=url.
    text = _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
    return f"<{name}>{text}</{name}>"


def branch(name: str, *children: str) -> str:
    """<name>children</name>; the children are XML already."""
    return f"<{name}>{''.join(children)}</{name}>"


def document(name: str, *children: str, namespace: bool = True) -> bytes:
    """A whole document."""
    opening = f'{name} xmlns="{NAMESPACE}"' if namespace else name
    return f"{_XML_HEAD}<{opening}>{''.join(children)}</{name}>".encode()


def xml_response(
    content: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A document."""
    return web.Response(
        status=status, body=content, headers={"Content-Type": _XML_CONTENT_TYPE, **(headers or {})}
    )


def error_response(failure: S3Error, *, resource: str, request_id: str) -> web.Response:
    """The document that says what was wrong."""
    content = document(
        "Error",
        leaf("Code", failure.code),
        leaf("Message", failure.message),
        leaf("Resource", resource),
        leaf("RequestId", request_id),
        namespace=False,
    )
    return xml_response(content, failure.status, failure.headers)


def iso_date(milliseconds: int) -> str:
    """As in XML and in lock headers: 2026-11-21T12:00:00.000Z."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"


def http_date(milliseconds: int) -> str:
    """As in Last-Modified."""
    return format_datetime(datetime.fromtimestamp(milliseconds // 1000, UTC), usegmt=True)


def parse_iso_date(text: str) -> int:
    """Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    return _milliseconds_of(moment)


def parse_http_date(text: str) -> int | None:
    """None if it is none: conditions of that kind are ignored."""
    try:
        return _milliseconds_of(parsedate_to_datetime(text))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _milliseconds_of(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        milliseconds = int(moment.timestamp() * 1000)
    except OverflowError as error:
        raise ValueError("a date out of range") from error
    if milliseconds > _LATEST_DATE_MS:
        # Of the last year in a place west of Greenwich: it could be kept, but not be written again.
        raise ValueError("a date out of range")
    return milliseconds
