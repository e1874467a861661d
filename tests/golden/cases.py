"""All golden vectors."""

from collections.abc import Iterator

from tests.golden import graph_cases, limit_cases, record_cases
from tests.golden.case import Case
from tests.golden.inputs import Inputs


def cases() -> Iterator[Case]:
    makes = (*record_cases.MAKES, *graph_cases.MAKES, *limit_cases.MAKES)
    for seed, (make, count) in enumerate(makes):
        draw = Inputs(seed)
        for _ in range(count):
            yield make(draw)
