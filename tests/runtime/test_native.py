"""The native pieces are optional: a store without them, or with them switched off, has their twins."""

import pytest

from segmentstore.runtime.native import SWITCH, native_module

A_COMPILED_ONE = "lz4.block._block"


def test_a_module_that_was_built_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert native_module(A_COMPILED_ONE) is not None


def test_one_that_was_not_built_is_none_and_no_error() -> None:
    assert native_module("segmentstore.runtime.native.never_built") is None


def test_switched_off_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert native_module(A_COMPILED_ONE) is None
