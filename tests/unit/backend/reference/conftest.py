"""Every mechanism is tried on tables in memory, which must agree with themselves afterwards."""

from collections.abc import Iterator

import pytest

from tests.unit.backend.reference.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World(frozenset({"app.team"}))
    yield world
    assert world.verify() == []
