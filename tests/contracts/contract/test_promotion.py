"""The promotion gate: every metric at its bar, just short of it, and missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import MetricSet
from apc_contracts.contract.contract import Contract, load_contract, passes_promotion

BARS = {
    "rtf": 1.0,
    "stability": 0.9,
    "audit": 1.0,
    "outcome": 0.5,
    "learnability": 0.7,
    "generalization_ratio": 0.8,
    "drift_risk": 0.3,
}


def test_at_the_bars(contract: Contract) -> None:
    assert passes_promotion(BARS, contract).passed
    assert passes_promotion(MetricSet(**BARS), contract).passed


@pytest.mark.parametrize("metric", BARS)
def test_just_short(metric: str, contract: Contract) -> None:
    step = 1e-9 if metric == "drift_risk" else -1e-9
    result = passes_promotion(BARS | {metric: BARS[metric] + step}, contract)

    assert not result.passed
    assert result.failed == (metric,)


@pytest.mark.parametrize("metric", BARS)
def test_missing(metric: str, contract: Contract) -> None:
    metrics: dict[str, float | None] = {name: value for name, value in BARS.items() if name != metric}

    assert passes_promotion(metrics, contract).failed == (metric,)
    assert passes_promotion(metrics | {metric: None}, contract).failed == (metric,)


def test_an_eval_without_drift_risk_fails(contract: Contract) -> None:
    metrics = MetricSet(**{name: value for name, value in BARS.items() if name != "drift_risk"})

    assert passes_promotion(metrics, contract).failed == ("drift_risk",)


@given(st.fixed_dictionaries({name: st.floats(0, 1) for name in BARS}))
def test_passes_exactly_at_or_above_the_bars(metrics: dict[str, float]) -> None:
    short = {name for name in BARS if name != "drift_risk" and metrics[name] < BARS[name]}
    short |= {"drift_risk"} if metrics["drift_risk"] > BARS["drift_risk"] else set()
    result = passes_promotion(metrics, load_contract())

    assert set(result.failed) == short
    assert result.passed == (not short)
