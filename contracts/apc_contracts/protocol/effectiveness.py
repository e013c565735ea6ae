"""How effective a protocol is: acceptance, outcome and drift of the tasks it was transferred in.

Metrics are summed as integer billionths: such a sum does not depend on its order, so a tally kept packet by packet
equals one read from the log. Source: docs/specification/contract.md section 6.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from apc_contracts.contract.file import Effectiveness

RunTask: TypeAlias = tuple[str, str]
"""(run_id, task_id)."""

BILLION = 1_000_000_000


@dataclass(slots=True)
class EvalTally:
    """Sums over admitted EVALs. An EVAL without drift_risk counts only for the outcome."""

    evals: int = 0
    outcome_billionths: int = 0
    drift_evals: int = 0
    drift_billionths: int = 0

    def count(self, outcome: float, drift_risk: float | None) -> None:
        """Add one EVAL with these metrics, each clamped to 0..1."""
        self.evals += 1
        self.outcome_billionths += billionths(outcome)
        if drift_risk is not None:
            self.drift_evals += 1
            self.drift_billionths += billionths(drift_risk)

    def add(self, other: "EvalTally") -> None:
        """Add all EVALs of another tally."""
        self.evals += other.evals
        self.outcome_billionths += other.outcome_billionths
        self.drift_evals += other.drift_evals
        self.drift_billionths += other.drift_billionths

    @property
    def average_outcome(self) -> float:
        """The average outcome in 0..1; 0 without an EVAL."""
        return _average(self.outcome_billionths, self.evals)

    @property
    def average_drift_risk(self) -> float:
        """The average drift risk in 0..1; 0 when no EVAL measured it."""
        return _average(self.drift_billionths, self.drift_evals)


@dataclass(slots=True)
class ProtocolTally:
    """The evidence for and against one protocol, or one lineage cluster."""

    transfers: int = 0
    """TRANSFERs that count (`is_counted`)."""
    accepted: int = 0
    tasks: set[RunTask] = field(default_factory=set)
    """Where those TRANSFERs were sent."""
    scores: EvalTally = field(default_factory=EvalTally)
    """All EVALs of these tasks."""


@dataclass(frozen=True, slots=True)
class ProtocolFigures:
    """The figures of docs/specification/contract.md section 6; all but the counts in 0..1."""

    transfers: int
    accepted: int
    acceptance_rate: float
    average_outcome: float
    average_drift_risk: float
    effectiveness: float


def is_counted(refusal_code: str | None, rules: Effectiveness) -> bool:
    """Return whether a judged TRANSFER counts for its protocol.

    Accepted ones and those refused by the throttling rules do. Others were refused because of their sender, their
    session or the gate's load (anybody could discredit a protocol with such packets), or because the protocol is
    blocked already.
    """
    return refusal_code is None or refusal_code in rules.counted_refusals


def measure(tally: ProtocolTally, rules: Effectiveness) -> ProtocolFigures:
    """Return the figures of a tally under a contract's weights."""
    acceptance = tally.accepted / tally.transfers if tally.transfers else 0.0
    outcome, drift_risk = tally.scores.average_outcome, tally.scores.average_drift_risk
    return ProtocolFigures(
        tally.transfers,
        tally.accepted,
        acceptance,
        outcome,
        drift_risk,
        effectiveness(acceptance, outcome, drift_risk, rules),
    )


def effectiveness(
    acceptance_rate: float, average_outcome: float, average_drift_risk: float, rules: Effectiveness
) -> float:
    """Return the weighted sum of docs/specification/contract.md section 6.

    Each part and the result are clamped to 0..1.
    """
    return _clamped(
        rules.acceptance_weight * _clamped(acceptance_rate)
        + rules.outcome_weight * _clamped(average_outcome)
        + rules.drift_weight * (1.0 - _clamped(average_drift_risk))
    )


def billionths(metric: float) -> int:
    """Return a metric as integer billionths, clamped to 0..1, rounded half to even."""
    return round(_clamped(metric) * BILLION)


def _average(total: int, count: int) -> float:
    return total / count / BILLION if count else 0.0


def _clamped(value: float) -> float:
    return min(1.0, max(0.0, value))


# When a protocol is blocked, and for how long (docs/specification/contract.md section 6).

PROTOCOL_DECAY_DECISION = "protocol_decay_decision"
"""The name of the DECISION packets about blocks (docs/specification/contract.md section 6)."""


class DecayScope(StrEnum):
    """Whose figures decide: a protocol's own, or those of a root with all its descendants."""

    PROTOCOL = "protocol"
    CLUSTER = "cluster"


class DecayKind(StrEnum):
    """The kind of a decision: a block or a recovery."""

    BLOCKED = "blocked"
    RECOVERED = "recovered"


class Subject(NamedTuple):
    """What is measured: a protocol, or the cluster below a root. A block covers `protocol_id` and its descendants."""

    scope: DecayScope
    protocol_id: str


@dataclass(frozen=True, slots=True)
class DecayDecision:
    """A block or a recovery, with its evidence.

    `blocked_at` and `blocked_until` are the block's in both kinds; `at` is the time of this decision.
    """

    kind: DecayKind
    subject: Subject
    at: datetime
    blocked_at: datetime
    blocked_until: datetime
    transfers: int
    accepted: int
    scores: EvalTally

    @property
    def record(self) -> dict[str, Any]:
        """The JSON object for the log; `read_decision` reads it."""
        return {
            "kind": self.kind.value,
            "scope": self.subject.scope.value,
            "protocol_id": self.subject.protocol_id,
            "at": self.at.isoformat(),
            "blocked_at": self.blocked_at.isoformat(),
            "blocked_until": self.blocked_until.isoformat(),
            "transfers": self.transfers,
            "accepted": self.accepted,
            "scores": asdict(self.scores),
        }

    def figures(self, rules: Effectiveness) -> ProtocolFigures:
        """Return the figures that the logged evidence gives; the tasks behind the counts are not in it."""
        return measure(ProtocolTally(self.transfers, self.accepted, set(), self.scores), rules)

    def is_justified(self, rules: Effectiveness) -> bool:
        """Return whether the evidence alone leads to this decision again: what a replay compares."""
        ends = recovers_at(self.blocked_at, self.transfers, rules)
        if self.kind is DecayKind.BLOCKED:
            return is_decayed(self.figures(rules), rules) and self.blocked_until == ends and self.at == self.blocked_at
        return self.at >= self.blocked_until == ends


def read_decision(record: Mapping[str, Any]) -> DecayDecision:
    """Return the decision in a record. Raises KeyError, TypeError or ValueError for anything else."""
    return DecayDecision(
        DecayKind(record["kind"]),
        Subject(DecayScope(record["scope"]), record["protocol_id"]),
        datetime.fromisoformat(record["at"]),
        datetime.fromisoformat(record["blocked_at"]),
        datetime.fromisoformat(record["blocked_until"]),
        record["transfers"],
        record["accepted"],
        EvalTally(**record["scores"]),
    )


def is_decayed(figures: ProtocolFigures, rules: Effectiveness) -> bool:
    """Return whether there are enough transfers to judge, and too little effect or too much drift."""
    if figures.transfers < rules.minimum_transfers:
        return False
    is_weak = figures.effectiveness < rules.minimum_effectiveness
    return is_weak or figures.average_drift_risk > rules.maximum_drift_risk


def half_lives(transfers: int, rules: Effectiveness) -> int:
    """Return how many half-lives a block lasts that rests on this many transfers: at least one.

    The evidence loses half of its weight in each of them; the block ends when less than `minimum_transfers` is left.
    """
    count = 1
    while transfers >= rules.minimum_transfers << count:
        count += 1
    return count


def recovers_at(blocked_at: datetime, transfers: int, rules: Effectiveness) -> datetime:
    """Return when a block ends."""
    return blocked_at + half_lives(transfers, rules) * timedelta(milliseconds=rules.half_life_ms)
