"""The promotion gate (docs/specification/contract.md section 7): what an EVAL's metrics must reach.

A missing metric fails it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.contract_checks import fact_types
from apc_contracts.payloads.by_type import OpenEvalPayload

MetricSet = BaseModel | Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """Whether the gate is passed; `failed` names the metrics that fell short, in the gate's order."""

    passed: bool
    failed: tuple[str, ...] = ()


def passes_promotion(metric_set: MetricSet, contract: Contract) -> PromotionResult:
    """Judge an EVAL's `metric_set`; the EVAL's own `pass` and `thresholds` do not count."""
    facts = metric_facts(metric_set)
    if contract.promotion_gate.whole.holds(facts):
        return PromotionResult(passed=True)
    failed = tuple(metric for metric, guard in contract.promotion_gate.criteria if not guard.holds(facts))
    return PromotionResult(passed=False, failed=failed)


def passes_open_metrics(payload: OpenEvalPayload, contract: Contract) -> bool:
    """Judge open metrics: each within its limits, and the contract's promotion gate, if it has criteria."""
    if payload.missed:
        return False
    declared = fact_types(contract.file, "promotion")
    named = {name: value for name, value in payload.metrics.items() if name in declared}
    return not contract.promotion_gate.criteria or passes_promotion(named, contract).passed


def metric_facts(metric_set: MetricSet) -> dict[str, Any]:
    """Return the metrics as facts for guards; absent ones are left out."""
    metrics = metric_set.model_dump() if isinstance(metric_set, BaseModel) else metric_set
    return {name: value for name, value in metrics.items() if value is not None}
