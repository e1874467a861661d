"""Lua decides what `core` decides: the same answers to the same questions, on a real server."""

from functools import cache
from typing import Any

import pytest

from tests.golden.case import Case
from tests.golden.cases import cases
from tests.golden.server import probes
from tests.model.sides import agree

ALL = list(cases())


@cache
def _answers() -> list[Any]:
    return probes().ask([case.ask for case in ALL])


@pytest.mark.parametrize("probe", sorted({case.probe for case in ALL}))
def test_lua_answers_what_core_answers(probe: str) -> None:
    pairs: list[tuple[Case, Any]] = list(zip(ALL, _answers(), strict=True))
    for place, (case, answer) in enumerate(pairs):
        if case.probe == probe:
            agree(f"{probe} {place}", case.expect(), case.read(answer))
