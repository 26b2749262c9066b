"""The native pieces are optional: a store without them, or with them switched off, has their twins."""

from pathlib import Path

import pytest

from segmentstore.runtime.native import NATIVE_MODULES, SWITCH, native_module, not_compiled

A_COMPILED_ONE = "lz4.block._block"


def test_a_module_that_was_built_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert native_module(A_COMPILED_ONE) is not None


def test_one_that_was_not_built_is_none_and_no_error() -> None:
    assert native_module("segmentstore.runtime.native.never_built") is None


def test_switched_off_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert native_module(A_COMPILED_ONE) is None


def test_every_native_piece_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    sources = [
        path for room in ("segmentstore", "tier2") for path in root.glob(f"{room}/**/native/*.c")
    ]
    names = {".".join(path.relative_to(root).with_suffix("").parts) for path in sources}
    assert names == set(NATIVE_MODULES)
    built = (root / "pyproject.toml").read_text()
    assert all(f'name = "{name}"' in built for name in names)
    monkeypatch.setenv(SWITCH, "off")
    assert set(not_compiled()) == names
