"""The dashboard and the alert rules speak of metrics there are, by labels they have."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from flowfabric.telemetry.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "flowfabric-ops.json").read_text("utf-8"))
RULES = (DEPLOY / "prometheus" / "flowfabric-alerts.yml").read_text("utf-8")
EXPRESSIONS = [
    *(one["expr"] for panel in DASHBOARD["panels"] for one in panel["targets"]),
    *re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE),
]
# Given by Prometheus, or made by the expression itself.
FOREIGN = {"le", "instance", "class"}


def known() -> dict[str, set[str]]:
    """Every name a query may use, and the labels behind it."""
    metrics = Metrics()
    names = {f"{one.name}_total": set(one._labelnames) for one in metrics._callbacks.collect()}
    for metric in metrics.registry._collector_to_names:
        if not isinstance(metric, MetricWrapperBase):
            continue
        labels = set(metric._labelnames)
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        for suffix in suffixes.get(metric._type or "", ("",)):
            names[f"{metric._name}{suffix}"] = labels
    return names


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_there_is(expression: str) -> None:
    names = known()
    used = set(re.findall(r"ff_[a-z0-9_]+", expression))
    assert used
    assert used <= set(names)
    labels = {
        name
        for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        for name in re.findall(r"\w+", group)
    }
    labels |= set(re.findall(r"(\w+)=~?\"", expression))
    assert labels <= FOREIGN.union(*(names[one] for one in used))


def test_the_dashboard_is_the_agreed_one() -> None:
    assert DASHBOARD["title"] == "FlowFabric — Operator Observability"
    assert DASHBOARD["uid"] == "flowfabric-ops"
    assert DASHBOARD["tags"] == ["flowfabric", "operations", "observability"]
    assert (DASHBOARD["refresh"], DASHBOARD["time"]["from"]) == ("30s", "now-1h")
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource"]
    assert len(DASHBOARD["panels"]) == 15
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == 15


def test_every_rule_has_a_name_an_expression_and_words() -> None:
    rules = RULES.split("      - alert: ")[1:]
    assert len(rules) >= 10
    for rule in rules:
        assert re.search(r"^ +expr: ", rule, re.MULTILINE)
        assert re.search(r"^ +summary: ", rule, re.MULTILINE)
        assert re.search(r"severity: (warning|critical)", rule)
