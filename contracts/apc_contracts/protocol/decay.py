"""When a protocol is blocked, and for how long (docs/specification/contract.md section 6)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from apc_contracts.contract.file import Effectiveness
from apc_contracts.protocol.effectiveness import EvalTally, ProtocolFigures, ProtocolTally, measure

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
        """Return the JSON object for the log; `read_decision` reads it."""
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
        """Return the figures of the evidence."""
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
