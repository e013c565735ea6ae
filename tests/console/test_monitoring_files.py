"""The alert rules and the dashboard in deploy/ name no metric that a service does not export."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import REGISTRY

# What the services import registers their metrics.
import apc_orchestrator.service  # noqa: F401
import apc_persister.service  # noqa: F401

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS_ITS_OWN = {"up"}


def exported() -> set[str]:
    """Names of the samples at /metrics."""
    return {sample.name for family in REGISTRY.collect() for sample in family.samples} | PROMETHEUS_ITS_OWN


def named(expression: str) -> set[str]:
    """The metrics of a PromQL expression: its words outside of labels and ranges that are no functions."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", expression)
    return set(re.findall(r"\b[a-z_:]+\b(?!\s*\()", bare))


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads((DEPLOY / "grafana/apc-bus.json").read_text())["panels"])


def test_the_words_of_an_expression_are_told_apart() -> None:
    assert named('rate(a_total{job="apc"}[5m]) / b_max > 0.8') == {"a_total", "b_max"}


def test_alerts_and_panels_use_metrics_that_exist() -> None:
    expressions = [rule["expr"] for rule in alerts()]
    expressions += [target["expr"] for panel in panels() for target in panel["targets"]]
    used = set().union(*map(named, expressions))
    assert used - exported() == set()
    ours = {name for name in exported() if name.startswith("apc_")}
    assert ours <= used, "a metric of ours that nobody looks at"


def test_every_alert_says_what_is_wrong_and_how_bad() -> None:
    assert alerts()
    for rule in alerts():
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in {"warning", "critical"}
