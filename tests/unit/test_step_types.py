"""The type of a step's value, from an annotation that is written as text."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import pytest

from flowfabric.worker.steps import returns


class Methods:
    def count(self) -> int:
        return 1


def listed() -> list[int]:
    return []


def untyped():  # type: ignore[no-untyped-def]
    return None


def early() -> Late:  # type: ignore[name-defined]  # noqa: F821
    return Late()  # type: ignore[name-defined]  # noqa: F821


def test_the_text_of_an_annotation_is_evaluated() -> None:
    assert returns(listed) == list[int]
    assert returns(Methods().count) is int
    assert returns(untyped) is Any
    assert returns(len) is Any


def test_it_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    returns(listed)
    returns(Methods().count)
    monkeypatch.delattr(inspect, "get_annotations")
    assert returns(listed) == list[int]
    assert returns(Methods().count) is int


def test_a_name_may_be_defined_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert returns(early) is Any
    monkeypatch.setitem(globals(), "Late", Methods)
    assert returns(early) is Methods


def test_a_function_is_not_kept_alive() -> None:
    def short_lived() -> int:
        return 1

    assert returns(short_lived) is int
    gone = weakref.ref(short_lived)
    del short_lived
    gc.collect()
    assert gone() is None
