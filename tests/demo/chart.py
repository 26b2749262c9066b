"""A chart rendered by the part of Helm's templates that ours needs: values, `range`, `if`, `else`, `quote`.

Anything else in a template is an error.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"(?:[ \n]*\{\{-|\{\{) *(.*?) *\}\}")


def rendered(chart: Path, *, release: str) -> list[Any]:
    """The objects of all templates. Raises ValueError for what is not understood, KeyError for a value not there."""
    root = {
        "Values": yaml.safe_load((chart / "values.yaml").read_text()),
        "Release": {"Name": release},
    }
    found = []
    for path in sorted((chart / "templates").iterdir()):
        parts = _ACTION.split(path.read_text())
        text = "".join(_texts(iter(parts), root, {"$": root}))
        found += [each for each in yaml.safe_load_all(text) if each is not None]
    return found


def _texts(parts: Iterator[str], dot: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Until the parts end."""
    block = _block(parts)
    yield from _filled(block, dot, root)


def _block(parts: Iterator[str]) -> list[Any]:
    """Texts, and (action, block, block behind `else`), up to the `end` of this block."""
    found: list[Any] = [next(parts, "")]
    before: list[Any] | None = None
    for action in parts:
        word = action.split()[0]
        if word == "end":
            return [before, found] if before is not None else [found, []]
        if word == "else":
            before, found = found, []
        elif word in ("range", "if"):
            found.append((action, *_block(parts)))
        else:
            found.append((action,))
        found.append(next(parts, ""))
    return found


def _filled(block: list[Any], dot: Any, root: Mapping[str, Any]) -> Iterator[str]:
    for each in block:
        if isinstance(each, str):
            yield each
            continue
        action, *inner = each
        words = action.split()
        match words:
            case ["$root", ":=", "."]:
                pass
            case ["range", name]:
                for item in _value(name, dot, root):
                    yield from _filled(inner[0], item, root)
            case ["if", name]:
                yield from _filled(inner[0 if _value(name, dot, root) else 1], dot, root)
            case ["if", "not", name]:
                yield from _filled(inner[1 if _value(name, dot, root) else 0], dot, root)
            case [name, "|", "quote"]:
                yield json.dumps(str(_value(name, dot, root)))
            case [name]:
                yield str(_value(name, dot, root))
            case _:
                raise ValueError(f"not understood: {action}")


def _value(name: str, dot: Any, root: Mapping[str, Any]) -> Any:
    start, _, rest = name.partition(".")
    value = {"": dot, "$root": root["$"]}[start]
    for key in filter(None, rest.split(".")):
        value = value[key]
    return value
