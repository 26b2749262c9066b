"""The little of YAML that generated files need: mappings, lists, texts, numbers and yes or no.

Texts are written as JSON writes them, which YAML reads as they are: no word of theirs becomes a number or a date.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

Node = str | int | bool | Sequence["Node"] | Mapping[str, "Node"]


def yaml_text(node: Mapping[str, Node]) -> str:
    """A document. Keys are plain words."""
    return "".join(f"{line}\n" for line in _lines(node))


def _lines(node: Mapping[str, Node]) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield f"{key}:"
            yield from (f"  {line}" for line in _lines(value))
        elif _is_list(value):
            yield f"{key}:"
            yield from (f"  {line}" for line in _items(value))
        else:
            yield f"{key}: {json.dumps(value)}"


def _items(values: Node) -> Iterator[str]:
    assert not isinstance(values, str | int | Mapping)
    for each in values:
        if isinstance(each, Mapping):
            first, *more = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in more)
        else:
            yield f"- {json.dumps(each)}"


def _is_list(value: Node) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value)
