"""What the roles say in packets: payloads made of measurements, the same for the same measurement.

No payload holds a time, a packet id or a process id: a handler that runs again says the same thing.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from apc_agents.automl.recipes import Recipe
from apc_agents.automl.schema import Schema
from apc_agents.automl.spaces import FAMILIES
from apc_contracts.contract import load_contract
from apc_contracts.packet import GateScores, ProofBundle
from apc_contracts.payloads import (
    ArtifactPayload,
    ClaimPayload,
    Complexity,
    EvalPayload,
    ExpectedImpact,
    FailureMode,
    IdeaPayload,
    MetricSet,
    Thresholds,
)
from apc_contracts.promotion import passes_promotion
from apc_contracts.vocabulary import ArtifactKind

JsonObject = Mapping[str, Any]


def work_id(swarm: str, round_number: int, generation: int) -> str:
    """Names the work of a swarm in one generation; method, hypothesis and artifact ids derive from it."""
    return f"{swarm}-r{round_number}-g{generation}"


def opening_idea(swarm: str, families: list[str]) -> IdeaPayload:
    """The plan of a swarm after its brief."""
    return IdeaPayload(
        method_id=f"{swarm}-plan",
        intent="first the usual settings of " + ", ".join(families) + "; then tune what measures best",
        assumptions=("the rows are independent of each other",),
        required_capabilities=("scikit-learn",),
        expected_impact=ExpectedImpact(quality_gain=1.0, cost_change=0.0, risk_change=0.0),
        failure_modes=(),
    )


def method_idea(name: str, recipe: Recipe, schema: Schema, best_outcome: float) -> IdeaPayload:
    """The method of one generation; at most it gains what the best one so far leaves."""
    overfits = FailureMode(
        id="overfits",
        description="it learns the train part by heart",
        mitigation="generalization_ratio and learnability are measured on held-out data",
    )
    return IdeaPayload(
        method_id=name,
        intent=f"{FAMILIES[recipe.family].intent}: {recipe.describe()}",
        assumptions=("the train part is drawn like the rest of the table",),
        required_capabilities=("scikit-learn",),
        expected_impact=ExpectedImpact(quality_gain=round(1.0 - best_outcome, 6), cost_change=0.0, risk_change=0.0),
        failure_modes=(overfits,),
        complexity=Complexity(data_volume_class="S" if len(schema.columns) < 100 else "M"),
        test_contract_refs=("promotion gate, contract.md section 7",),
    )


def model_artifact(name: str, model_hash: str, uri: str) -> ArtifactPayload:
    """A trained model by hash."""
    return ArtifactPayload(
        artifact_id=name,
        artifact_kind=ArtifactKind.MODEL_SNAPSHOT,
        artifact_uri=uri,
        artifact_hash=model_hash,
        language="python",
        adapter="scikit-learn skops",
    )


def evaluation(gates: JsonObject, *notes: str) -> EvalPayload:
    """Measured gates against the promotion gate of the contract."""
    metric_set = MetricSet(**gates)
    passed = passes_promotion(metric_set, load_contract()).passed
    return EvalPayload(metric_set=metric_set, thresholds=_thresholds(), passed=passed, notes=notes or None)


def proof(gates: JsonObject, *evidence: str) -> ProofBundle:
    """Evidence by hash (a builder's EVAL: measurement, model, recipe, in this order), and the gates."""
    return ProofBundle(evidence_refs=evidence, gate_scores=GateScores(**gates))


def verdict_claim(name: str, model_hash: str, declared: float, measured: JsonObject) -> ClaimPayload:
    """The sentinel confirms or falsifies a declared outcome."""
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
        confidence_pre=0.5,
        confidence_post=1.0 if is_confirmed else 0.0,
    )


def is_reproduced(declared: float, measured: JsonObject) -> bool:
    """Whether a re-scored model has the declared outcome, and every hash verified."""
    return abs(declared - float(measured["outcome"])) < 1e-6 and measured["audit"] == 1.0


def loss_note(document: JsonObject, what: str) -> str:
    """One line for people: the loss against the trivial baseline's."""
    return (
        f"{document['loss_name']} {document['loss']} against {document['baseline_loss']} "
        f"of the trivial baseline on {document['rows_judged']} {what} rows"
    )


@cache
def _thresholds() -> Thresholds:
    criteria = dict(load_contract().promotion_gate.criteria)
    bars = {name: float(criteria[name].text.split()[-1]) for name in Thresholds.model_fields if name in criteria}
    return Thresholds(**bars)
