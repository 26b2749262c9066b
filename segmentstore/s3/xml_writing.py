"""XML documents that are sent: a tree is built as text, from the leaves up."""

import re
from xml.sax.saxutils import escape

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


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
    return f"{_HEAD}<{opening}>{''.join(children)}</{name}>".encode()
