"""The alert rules and the dashboard in deploy/, and the table in docs/, name the metrics that the services export."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import REGISTRY
from prometheus_client.core import Metric

# What the services import registers their metrics.
import apc_agents.running.worker  # noqa: F401
import apc_bus.rabbit.bus  # noqa: F401
import apc_orchestrator.service  # noqa: F401
import apc_persister.ageing
import apc_persister.service  # noqa: F401
from apc_persister.writer import COUNTED, WriterCounts

ROOT = Path(__file__).parents[2]
PROMETHEUS_ITS_OWN = {"up"}
ROW = re.compile(r"^\| `(apc_\w+)` \| (counter|gauge|histogram) \|", re.MULTILINE)


def families() -> list[Metric]:
    """Return what is registered."""
    return list(REGISTRY.collect())


def exported() -> set[str]:
    """Names on the page /metrics, also of what has no sample yet."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    names = {family.name + suffix for family in families() for suffix in suffixes.get(family.type, ("",))}
    return names | PROMETHEUS_ITS_OWN


def named(expression: str) -> set[str]:
    """Return the metrics of a PromQL expression: its words outside of labels and ranges that are no functions."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without)\s*\([^)]*\)|\b(?:and|or|unless|offset)\b", "", expression)
    return set(re.findall(r"\b[a-z_:]+\b(?!\s*\()", bare))


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "deploy/helm/apc-bus/files/alerts.yml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads((ROOT / "deploy/helm/apc-bus/files/dashboard.json").read_text())["panels"])


def test_the_words_of_an_expression_are_told_apart() -> None:
    assert named('rate(a_total{job="apc"}[5m]) / b_max > 0.8') == {"a_total", "b_max"}
    assert named('sum(rate(a_total[5m]) unless rate(b_total{code="X"}[5m]))') == {"a_total", "b_total"}
    assert named("sum by (le, agent) (rate(c_bucket[5m]))") == {"c_bucket"}
    assert named("a_total unless a_total offset 5m") == {"a_total"}


def test_alerts_and_panels_use_metrics_that_exist() -> None:
    expressions = [rule["expr"] for rule in alerts()]
    expressions += [target["expr"] for panel in panels() for target in panel["targets"]]
    used = set().union(*map(named, expressions))
    assert used - exported() == set()
    unused = {
        family.name
        for family in families()
        if family.name.startswith("apc_") and not any(name.startswith(family.name) for name in used)
    }
    assert unused == set(), "metrics of ours that nobody looks at"


def test_the_documented_metrics_are_those_that_exist() -> None:
    table = dict(ROW.findall((ROOT / "docs/reference/metrics.md").read_text()))
    assert table == {family.name: family.type for family in families() if family.name.startswith("apc_")}


def test_all_that_a_writer_counts_is_exported() -> None:
    assert set(COUNTED) == set(WriterCounts.__dataclass_fields__)


def test_every_alert_says_what_is_wrong_and_how_bad() -> None:
    assert alerts()
    for rule in alerts():
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in {"warning", "critical"}


def test_alerts_of_one_event_see_a_counter_that_appears_with_it() -> None:
    """`increase` of a series that is there for the first time is 0: a label is new, or the process has just begun."""
    of_one = [
        (rule["expr"], counter, back)
        for rule in alerts()
        for counter, back in re.findall(r"increase\((\w+\{[^}]*\})\[(\w+)\]\)+ > 0", rule["expr"])
    ]
    assert len(of_one) == 3
    for expression, counter, back in of_one:
        assert f"{counter} unless {counter} offset {back}" in expression


def test_a_message_that_is_set_aside_is_told_of_until_its_process_ends() -> None:
    """Its consumer has just begun, and may have set as many aside in the run before: nothing increases."""
    (rule,) = (one for one in alerts() if one["alert"] == "ApcMessageSetAside")
    assert rule["expr"] == 'sum by (queue) (apc_bus_messages_set_aside_total{job="apc"}) > 0'


def test_panels_are_numbered_and_stand_beside_each_other() -> None:
    assert [panel["id"] for panel in panels()] == list(range(1, len(panels()) + 1))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(places)) == len(places)
