"""The events of the inter-agent machine, checked after every packet, receipt and timer."""

from collections.abc import Callable
from itertools import combinations, count

from apc_contracts.contract.coordinators import STOP
from apc_contracts.session.movement import (
    GENERATION_STATES,
    Advance,
    may,
    open_generation,
    open_round,
    transition,
)
from apc_contracts.session.path import barrier, candidates, promotion_path
from apc_contracts.session.task import conditions as task

MAX_MOVES = 100
"""Of a session for one input: a contract whose edges lead round in a circle would hold the gate forever."""


def settle(moment: Advance) -> None:
    """Move the session as far as its conditions allow now; halt it when they lead round in a circle."""
    document = moment.session.document
    for move in count():
        if moment.session.is_terminal or moment.session.is_paused or move > MAX_MOVES:
            return
        if move == MAX_MOVES and document.halt_reason is None:
            document.halt_reason = f"CIRCLE {document.state}: the contract's edges do not come to rest"
            _halt_if_needed(moment)
            return
        before = document.step, document.halt_reason
        _halt_if_needed(moment)
        if not moment.session.is_terminal:
            _settle_state(moment)
        if (document.step, document.halt_reason) == before:
            return


def _settle_state(moment: Advance) -> None:
    if moment.session.work is not None:
        task.work(moment)
    else:
        _BY_STATE[moment.session.document.state](moment)


def _halt_if_needed(moment: Advance) -> None:
    document = moment.session.document
    if document.halt_reason is None:
        document.halt_reason = _spent_budget(moment) or _nobody_left(moment)
    if document.halt_reason is not None and may(moment, STOP):
        transition(moment, STOP, {"reason": document.halt_reason})


def _spent_budget(moment: Advance) -> str | None:
    document = moment.session.document
    for name in ("tokens", "cost"):
        budget = document.budgets.get(name)
        if budget is not None and document.spent.get(name, 0.0) >= budget:
            return f"BUDGET_EXHAUSTED {name}"
    return None


def _nobody_left(moment: Advance) -> str | None:
    return None if moment.session.live_swarms or moment.session.work is not None else "NO_LIVE_SWARM"


def _research(moment: Advance) -> None:
    """Move on when every swarm has its brief and no two briefs share more than half of their symbolic keys."""
    document = moment.session.document
    if any(swarm not in document.briefs for swarm in document.swarms):
        return
    for one, other in combinations(document.briefs.values(), 2):
        shared = len(set(one) & set(other))
        if shared > moment.contract.session.brief_overlap_limit * min(len(set(one)), len(set(other))):
            return
    if may(moment, "research_briefs_dispatched"):
        transition(moment, "research_briefs_dispatched")
        document.briefs.clear()


def _ready(moment: Advance) -> None:
    document = moment.session.document
    current = document.round_state
    missing = [swarm for swarm in moment.session.live_swarms if swarm not in current.ready]
    if missing and not (current.has_generation_expired and current.ready):
        return
    if not may(moment, "all_swarms_ready"):
        return
    document.dead_swarms.extend(missing)
    transition(moment, "all_swarms_ready")
    open_generation(moment, 0)


def _generations(moment: Advance) -> None:
    document = moment.session.document
    if not barrier.may_close(moment):
        return
    is_last = document.generation >= document.last_generation
    barrier.close(moment)
    if is_last and document.state == "CONTROLLED_CONVERGENCE":
        _open_pool(moment)


def _open_pool(moment: Advance) -> None:
    document = moment.session.document
    reason = candidates.why_no_winner(document)
    if reason is not None:
        document.halt_reason = reason
        return
    facts = candidates.pool_facts(document)
    if not may(moment, "candidate_pool_ready", facts):
        # The contract may ask for a larger pool: the next generation may bring it.
        open_generation(moment, document.generation + 1)
        return
    transition(moment, "candidate_pool_ready", facts)
    candidates.arbitrate(moment)


def _arbitration(moment: Advance) -> None:
    """Move on when a DECISION APPROVED is not vetoed; the veto timer ends what is still open."""
    arbitration = moment.session.document.round_state.arbitration
    if arbitration is not None and arbitration.is_approved and may(moment, "decision_committed"):
        candidates.commit(moment, arbitration)


def _execution(moment: Advance) -> None:
    execution = moment.session.document.round_state.execution
    if execution.artifact is not None and execution.evals and may(moment, "artifact_and_eval_emitted"):
        transition(moment, "artifact_and_eval_emitted")


def _validation(moment: Advance) -> None:
    document = moment.session.document
    passed = promotion_path.validation_result(moment.session)
    if passed is None:
        return
    if passed and may(moment, "validation_pass", _metrics(moment)):
        promotion_path.promote(moment)
        transition(moment, "validation_pass", _metrics(moment))
        promotion_path.open_commons(moment)
        return
    failed = document.round_state.execution.failed_metrics or ["artifact" if not passed else "validation_pass"]
    if document.round >= document.max_rounds or not may(moment, "validation_fail_or_drift"):
        document.halt_reason = "VALIDATION_FAILED " + " ".join(failed)
        return
    promotion_path.drop_failed(moment)
    transition(moment, "validation_fail_or_drift", {"failed": failed})
    open_round(moment)


def _metrics(moment: Advance) -> dict[str, float]:
    """Return the metrics of the validating EVAL: what the guard of validation_pass reads."""
    return dict(moment.session.document.round_state.execution.metrics)


def _promotion(moment: Advance) -> None:
    """Close the commons like a generation: when nothing is being handled or verified any more, or time is up."""
    if promotion_path.may_commit(moment) and (barrier.is_quiet(moment.session) or _has_expired(moment)):
        promotion_path.commit_commons(moment)
    if moment.session.document.round_state.is_committed and may(moment, "commons_commit_complete"):
        transition(moment, "commons_commit_complete")


def _has_expired(moment: Advance) -> bool:
    return moment.session.document.round_state.has_generation_expired


_BY_STATE: dict[str, Callable[[Advance], None]] = {
    "SESSION_OPEN": _research,
    "DIFFERENTIATED_RESEARCH": _ready,
    **dict.fromkeys(GENERATION_STATES, _generations),
    "ARBITRATION": _arbitration,
    "EXECUTION": _execution,
    "VALIDATION": _validation,
    "PROMOTION": _promotion,
}
