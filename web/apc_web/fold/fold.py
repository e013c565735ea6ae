"""The fold: a session's state after each entry, from recorded columns alone; nothing is judged again.

The page has the same fold in TypeScript; `vectors.json` holds entries and the states that both must reach.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR
from apc_web.models.timeline import FoldEntry, SessionAt

FIRST_STATE = "SESSION_OPEN"
"""A session is in it once its START was accepted."""
_FREE_TYPES = frozenset(str(one) for one in CONTROL_TYPES)


@dataclass(slots=True)
class Folded:
    """A session after some entries."""

    seq: int = 0
    at: datetime | None = None
    state: str | None = None
    run_phase: str | None = None
    is_paused: bool = False
    round: int = 1
    generation: int = 0
    step: int = 0
    entries: int = 0
    packets: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    deliveries: dict[str, int] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    budgets: dict[str, float] | None = None
    swarms: dict[str, list[str]] | None = None

    def copy(self) -> "Folded":
        """Return a copy that can be folded on by itself."""
        return replace(
            self,
            verdicts=dict(self.verdicts),
            types=dict(self.types),
            refusals=dict(self.refusals),
            sent=dict(self.sent),
            deliveries=dict(self.deliveries),
            spent=dict(self.spent),
        )

    def take(self, entry: FoldEntry) -> None:
        """Fold the next entry of the session."""
        self.seq, self.at = entry.seq, entry.at
        self.entries += 1
        if entry.kind == "packet":
            self._packet(entry)
        elif entry.kind == "hop":
            self._hop(entry)
        else:
            self._move(entry)

    def shown(self, session_id: str, shard: int) -> SessionAt:
        """Return the state as the API has it."""
        return SessionAt(
            session_id=session_id,
            shard=shard,
            seq=self.seq,
            at=self.at,
            state=self.state,
            run_phase=self.run_phase,
            is_paused=self.is_paused,
            round=self.round,
            generation=self.generation,
            step=self.step,
            entries=self.entries,
            packets=self.packets,
            verdicts=dict(self.verdicts),
            types=dict(self.types),
            refusals=dict(self.refusals),
            sent=dict(self.sent),
            deliveries=dict(self.deliveries),
            spent=dict(self.spent),
            budgets=self.budgets,
            swarms=self.swarms,
        )

    def _packet(self, entry: FoldEntry) -> None:
        kind, sender, verdict = entry.packet_type or "", entry.sender or "", entry.verdict or ""
        self.packets += 1
        _add(self.types, kind)
        _add(self.sent, sender)
        _add(self.verdicts, verdict)
        if verdict == "refused":
            _add(self.refusals, entry.refusal_code or "")
            return
        if sender != ORCHESTRATOR and kind not in _FREE_TYPES:
            _add(self.spent, "packets")
        if verdict == "accepted" and entry.signal is not None:
            self._signal(entry)

    def _signal(self, entry: FoldEntry) -> None:
        if entry.signal == "START" and self.state is None:
            self.state, self.run_phase = FIRST_STATE, entry.run_phase
            start = entry.start or {}
            budgets, swarms = start.get("budgets"), start.get("swarms")
            self.budgets = dict(budgets) if isinstance(budgets, dict) else None
            self.swarms = dict(swarms) if isinstance(swarms, dict) else None
        elif entry.signal in ("PAUSE", "RESUME"):
            self.is_paused = entry.signal == "PAUSE"

    def _hop(self, entry: FoldEntry) -> None:
        for name, amount in (entry.usage or {}).items():
            _add(self.spent, name, amount)
        if entry.verdict is not None:  # a ruling on a held packet
            _add(self.verdicts, "held", -1)
            _add(self.verdicts, entry.verdict)
            if entry.verdict == "refused":
                _add(self.refusals, entry.refusal_code or "")
        if not entry.to_state:
            return
        if not entry.recipient:
            if entry.to_state == "ROUTED":
                _add(self.deliveries, "ROUTED", len(entry.recipients))
        else:
            _add(self.deliveries, entry.from_state or "", -1)
            _add(self.deliveries, entry.to_state)

    def _move(self, entry: FoldEntry) -> None:
        self.state = entry.to_state
        self.run_phase = entry.run_phase or self.run_phase
        self.round = entry.round if entry.round is not None else self.round
        self.generation = entry.generation if entry.generation is not None else self.generation
        self.step = entry.step if entry.step is not None else self.step


def _add(counts: dict[str, int] | dict[str, float], name: str, amount: float = 1) -> None:
    """Add to a count; a count of zero is left out."""
    total = counts.get(name, 0) + amount
    if total:
        counts[name] = total  # type: ignore[assignment]
    else:
        counts.pop(name, None)
