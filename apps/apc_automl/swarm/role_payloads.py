"""What the roles say in packets: payloads made of measurements, the same for the same measurement.

No payload holds a time, a packet id or a process id: a handler that runs again says the same thing.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from apc_automl.data.table_schema import Schema
from apc_automl.swarm import forecast
from apc_automl.swarm.briefs import Brief
from apc_automl.swarm.forecast import Forecast
from apc_automl.training.recipes import FAMILIES, Recipe
from apc_contracts.contract.contract import load_contract, passes_promotion
from apc_contracts.packet import GateScores, ProofBundle
from apc_contracts.payloads.by_type import (
    ArtifactPayload,
    ClaimPayload,
    Complexity,
    EvalPayload,
    IdeaPayload,
    MetricSet,
    Thresholds,
)
from apc_contracts.vocabulary import ArtifactKind

ALL_ROWS = "all-rows"

JsonObject = Mapping[str, Any]


def work_id(swarm: str, round_number: int, generation: int) -> str:
    """Return the name of a swarm's work in one generation; method, hypothesis and artifact ids derive from it."""
    return f"{swarm}-r{round_number}-g{generation}"


def opening_idea(swarm: str, families: list[str], schema: Schema, brief: Brief, plan: Forecast) -> IdeaPayload:
    """Return the plan of a swarm after its brief."""
    known = f"what did well on similar tables ({len(brief.priors)} methods), then " if brief.priors else ""
    return IdeaPayload(
        method_id=f"{swarm}-plan",
        intent=f"first {known}the usual settings of {', '.join(families)}; then tune what measures best",
        assumptions=forecast.assumptions_of_plan(families),
        required_capabilities=("scikit-learn",),
        expected_impact=plan.impact,
        failure_modes=forecast.failure_modes_of(schema, brief.profile),
        complexity=_complexity(schema, brief),
    )


def method_idea(name: str, recipe: Recipe, schema: Schema, brief: Brief, expected: Forecast) -> IdeaPayload:
    """Return the method of one generation, with what its swarm expects of it."""
    return IdeaPayload(
        method_id=name,
        intent=f"{FAMILIES[recipe.family].intent}: {recipe.describe()}",
        assumptions=forecast.assumptions_of(recipe, schema, brief.profile),
        required_capabilities=("scikit-learn",),
        expected_impact=expected.impact,
        failure_modes=forecast.failure_modes_of(schema, brief.profile, expected.nearest),
        complexity=_complexity(schema, brief),
        test_contract_refs=("promotion gate, docs/specification/contract.md section 7",),
    )


def _complexity(schema: Schema, brief: Brief) -> Complexity | None:
    return None if brief.profile is None else Complexity(data_volume_class=forecast.volume_class(schema, brief.profile))


def shortfalls_of(gates: JsonObject) -> dict[str, float]:
    """Return how far a model is from the best possible value, gate by gate."""
    short = {name: 1.0 - gates[name] for name in ("stability", "learnability", "generalization_ratio")}
    short["drift_risk"] = gates["drift_risk"]
    return {name: round(max(0.0, value), 6) for name, value in short.items()}


def model_artifact(name: str, model_hash: str, uri: str) -> ArtifactPayload:
    """Return a trained model by hash."""
    return ArtifactPayload(
        artifact_id=name,
        artifact_kind=ArtifactKind.MODEL_SNAPSHOT,
        artifact_uri=uri,
        artifact_hash=model_hash,
        language="python",
        adapter="scikit-learn skops",
    )


def all_rows_artifact(model_hash: str, uri: str) -> ArtifactPayload:
    """Return the promoted recipe trained on every row, by hash; no row is left that could judge it."""
    return ArtifactPayload(
        artifact_id=ALL_ROWS,
        artifact_kind=ArtifactKind.MODEL_SNAPSHOT,
        artifact_uri=uri,
        artifact_hash=model_hash,
        language="python",
        adapter="scikit-learn skops; trained on every row, never scored",
    )


def evaluation(gates: JsonObject, *notes: str) -> EvalPayload:
    """Return the measured gates compared with the promotion gate of the contract."""
    metric_set = MetricSet(**gates)
    passed = passes_promotion(metric_set, load_contract()).passed
    return EvalPayload(metric_set=metric_set, thresholds=_thresholds(), passed=passed, notes=notes or None)


def proof(gates: JsonObject, *evidence: str) -> ProofBundle:
    """Return the evidence by hash (a builder's EVAL: measurement, model, recipe, in this order) and the gates."""
    return ProofBundle(evidence_refs=evidence, gate_scores=GateScores(**gates))


def verdict_claim(name: str, model_hash: str, declared: float, measured: JsonObject, trust: float) -> ClaimPayload:
    """Return the sentinel confirms or falsifies a declared outcome; a number computed again bit by bit leaves no doubt.

    Args:
        trust: how far the builder's numbers were to be believed before.
    """
    is_confirmed = is_reproduced(declared, measured)
    verdict = "confirmed" if is_confirmed else "falsified"
    text = (
        f"{verdict}: {model_hash}, loaded again by its hash, has outcome {measured['outcome']} "
        f"on held-out data where {declared} was declared"
    )
    return ClaimPayload(
        claim_id=f"{name}-checked",
        hypothesis_id=name,
        text=text,
        confidence_pre=trust,
        confidence_post=1.0 if is_confirmed else 0.0,
    )


def is_reproduced(declared: float, measured: JsonObject) -> bool:
    """Return whether a re-scored model has the declared outcome, and every hash verified."""
    return abs(declared - float(measured["outcome"])) < 1e-6 and measured["audit"] == 1.0


def loss_note(document: JsonObject, what: str) -> str:
    """Return a line for people: the loss compared with that of the trivial baseline."""
    score = f"{document['score']}; " if "score" in document else ""
    return (
        f"{score}{document['loss_name']} {document['loss']} against {document['baseline_loss']} "
        f"of the trivial baseline on {document['rows_judged']} {what} rows"
    )


@cache
def _thresholds() -> Thresholds:
    criteria = dict(load_contract().promotion_gate.criteria)
    bars = {name: float(criteria[name].text.split()[-1]) for name in Thresholds.model_fields if name in criteria}
    return Thresholds(**bars)
