"""The pages about running a server name every variable and every metric, and nothing else."""

import re
from pathlib import Path

from flowfabric.config import environment
from flowfabric.telemetry.metrics import Metrics

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def test_every_variable_is_on_its_page() -> None:
    text = (PAGES / "configuration.md").read_text("utf-8")
    named = set(re.findall(r"`(FF_[A-Z_]+)`", text.partition("## Tokens")[0]))
    known = {name for name, *_ in environment._VARIABLES} | set(environment._ALIASES.values())
    assert named == known | {"FF_CONFIG"}


def test_every_metric_is_on_its_page() -> None:
    text = (PAGES / "metrics.md").read_text("utf-8")
    named = set(re.findall(r"`(ff_[a-z0-9_]+)`", text))
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in Metrics().registry.collect()
    }
    assert named == families
