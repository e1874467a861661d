"""Chooses the tests of a run by the store they run on.

A store is complete for a suite, or rotating: then a test belongs to one of ROTATIONS parts, by a
hash of its id, and a run takes one part, another each day. So ROTATIONS runs with different numbers
take every test. The header shows the number and how to repeat it.

FF_TEST_STORES names stores instead: then every test runs on these, and on no other.
"""

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Final
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet

ROTATIONS: Final = 8
ALL: Final = "all"


def on_stores(
    complete: Sequence[str], rotating: Sequence[str] = (), named: Sequence[str] = ()
) -> list[ParameterSet]:
    """The stores as parameters of a test or fixture; the last only where FF_TEST_STORES names
    them."""
    kinds = {
        name: {"rotating": name in rotating, "named": name in named}
        for name in (*complete, *rotating, *named)
    }
    return [
        pytest.param(name, marks=pytest.mark.store(name, **kind)) for name, kind in kinds.items()
    ]


def part_of(test: str) -> int:
    """Which part the test with this id belongs to: the same in every process and on every day."""
    return crc32(test.encode()) % ROTATIONS


def rotation_of(day: date) -> str:
    return str(day.toordinal() % ROTATIONS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rotation",
        choices=[ALL, *map(str, range(ROTATIONS))],
        help="which part of the tests runs on rotating stores (default: by the day, and all of "
        "them if tests are named by their ids)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "store(name, rotating, named): the store of a test")
    # Decided once: the processes of pytest-xdist get the options of this one.
    if config.option.rotation is None:
        is_named = any("::" in one for one in config.args)
        config.option.rotation = ALL if is_named else rotation_of(datetime.now(UTC).date())


def pytest_report_header(config: pytest.Config) -> str:
    if chosen := _named_stores():
        return f"stores: {', '.join(sorted(chosen))} (FF_TEST_STORES)"
    number = config.option.rotation
    return f"rotation: {number} of 0 to {ROTATIONS - 1}; repeat: make test ARGS=--rotation={number}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, rotation = _named_stores(), config.option.rotation
    kept = [one for one in items if _is_chosen(one, chosen, rotation)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=sorted(set(items) - set(kept), key=_id_of))
        items[:] = kept


def _named_stores() -> frozenset[str]:
    return frozenset(filter(None, os.environ.get("FF_TEST_STORES", "").split(",")))


def _id_of(item: pytest.Item) -> str:
    return item.nodeid


def _is_chosen(item: pytest.Item, chosen: frozenset[str], rotation: str) -> bool:
    mark = item.get_closest_marker("store")
    if mark is None:
        return True
    if chosen:
        return mark.args[0] in chosen
    if mark.kwargs["named"]:
        return False
    return not mark.kwargs["rotating"] or rotation in (ALL, str(part_of(item.nodeid)))
