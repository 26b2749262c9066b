"""XML documents that are received: a small tree, from a parser that takes no declarations.

Invariants: a document with a DOCTYPE (and so every entity and every bomb made of them) is refused; depth and number of
elements are bounded; names lose their namespace.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from segmentstore.s3.failures import S3Failure

_DEPTH_MAX = 8
_ELEMENTS_MAX = 50_000
_SEPARATOR = " "


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


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        """Of the open elements, piece by piece: adding to a text copies it, for each of its pieces."""
        self._elements = 0

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _ELEMENTS_MAX or len(self._open) >= _DEPTH_MAX:
            raise _malformed("it has too many elements")
        element = Element(name.rpartition(_SEPARATOR)[2])
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._texts.append([])

    def end(self, _name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def characters(self, text: str) -> None:
        # Whitespace between children is kept here and stripped or ignored by whoever reads.
        self._texts[-1].append(text)

    @staticmethod
    def doctype(*_declaration: object) -> None:
        raise _malformed("a document type is not allowed")


def parse(content: bytes, root: str) -> Element:
    """The root element, which must have that name. Raises S3Failure (MalformedXML). Cost: O(bytes)."""
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = builder.doctype
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise _malformed(expat.ErrorString(error.code)) from error
    except (ValueError, LookupError) as error:
        raise _malformed("its encoding is unknown") from error
    if builder.root is None or builder.root.name != root:
        raise _malformed(f"a {root} was expected")
    return builder.root


def _malformed(why: str) -> S3Failure:
    return S3Failure("MalformedXML", f"The XML of the request cannot be used: {why}.")
