"""A second, plain reading of docs/specification/contract.md section 10, to compare the session with: two swarms, an
agent each.

It shares nothing with the product. What it leaves out (lifecycle, receipts, emissions, the arithmetic of transfers)
is checked by the tests beside it.
"""

from dataclasses import dataclass, field
from itertools import combinations

from tests.contracts.session.model.reference_rules import (
    ALLOWED,
    CONTROL,
    GENERATION_STATES,
    LAST_WITHOUT_TRANSFERS,
    OPERATOR_SIGNALS,
    PHASE,
    RECORDED_AFTER_END,
    SWARMS,
)

OPERATORS, VETOERS, VALIDATORS, DECIDERS = {"librarian"}, {"sentinel"}, {"sentinel"}, {"judge"}
MISSED_BARRIERS = 2
VETO_WINDOW = 2.0
"""Seconds."""


@dataclass
class Said:
    """A packet as the reference sees it; times in seconds since START."""

    sender: str
    kind: str
    phase: str
    generation: int
    signal: str = ""
    keys: frozenset[str] = frozenset()
    outcome: float = 0.0
    about: str = ""
    """`winner` = the ARTIFACT of the winner; `arbitration` = the standing ARBITRATION."""
    is_new: bool = True


@dataclass
class Reference:
    """Where a session has to stand."""

    limit: int
    max_rounds: int
    packets: float
    state_deadline: float
    generation_deadline: float
    state: str = "SESSION_OPEN"
    round: int = 1
    generation: int = 0
    spent: float = 0.0
    paused_at: float | None = None
    briefs: dict[str, frozenset[str]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    evaluated: set[str] = field(default_factory=set)
    best: dict[str, list[tuple[float, int, int]]] = field(default_factory=lambda: {"red": [], "blue": []})
    """swarm -> (outcome, round, generation) of its EVALs that may still win."""
    missed: dict[str, int] = field(default_factory=lambda: {"red": 0, "blue": 0})
    asleep: set[str] = field(default_factory=set)
    """Agents that handle nothing."""
    owing: set[str] = field(default_factory=set)
    """Agents with an open delivery."""
    forgotten: set[str] = field(default_factory=set)
    """Swarms and agents that are not live."""
    winner: tuple[str, float, int, int] | None = None
    has_veto: bool = False
    has_artifact: bool = False
    has_run_out: bool = False
    held: list[Said] = field(default_factory=list)
    is_late: bool = False
    """The deadline of readiness has passed."""
    due: dict[str, float] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        return self.state in ("CLOSED", "HALTED")

    @property
    def live(self) -> set[str]:
        return set(SWARMS) - self.forgotten

    def judge(self, said: Said) -> str:
        """accepted, held, or the code of the refusal."""
        if self.is_terminal and said.kind not in RECORDED_AFTER_END:
            return "SESSION_TERMINAL"
        if self.paused_at is not None and said.kind not in CONTROL:
            return "BUDGET_EXHAUSTED" if self.spent >= self.packets else "held"
        return self._unauthorized(said) or self._out_of_place(said) or self._accepted(said)

    def _unauthorized(self, said: Said) -> str:
        may = {
            "SIGNAL": said.sender in OPERATORS
            if said.signal in OPERATOR_SIGNALS
            else said.signal != "VETO" or said.sender in VETOERS,
            "DECISION": self.state != "ARBITRATION" or said.sender in DECIDERS,
            "ARBITRATION": self.state != "ARBITRATION" or said.sender in DECIDERS,
            "EVAL": self.state != "VALIDATION" or said.about != "winner" or said.sender in VALIDATORS,
        }
        return "" if may.get(said.kind, True) else "NOT_AUTHORIZED"

    def _out_of_place(self, said: Said) -> str:
        if said.kind not in CONTROL and said.phase != PHASE[self.state]:
            return "PHASE_MISMATCH"
        if said.generation > self.generation:
            return "GENERATION_MISMATCH"
        if said.kind == "TRANSFER" and said.generation != self.generation:
            return "GENERATION_MISMATCH"
        if said.kind not in CONTROL and said.kind not in ALLOWED[said.phase]:
            return "PHASE_FORBIDS_TYPE"
        return ""

    def _accepted(self, said: Said) -> str:
        if said.kind == "TRANSFER" and PHASE[self.state] in ("REFINEMENT", "CONVERGENCE"):
            return "held"
        if said.kind == "TRANSFER" and self.generation <= LAST_WITHOUT_TRANSFERS:
            return "TRANSFER_WINDOW_CLOSED"
        if said.kind not in CONTROL and self.spent >= self.packets:
            return "BUDGET_EXHAUSTED"
        return "accepted"

    def run_out(self) -> None:
        """A packet beyond the budget ends the session; one that stands still ends when it goes on."""
        if self.paused_at is None:
            self.halt()
        else:
            self.has_run_out = True

    def hold(self, said: Said) -> None:
        """A packet that waits for RESUME has drawn from the budget."""
        self.spent += 1
        self.held.append(said)
        self._wake(said.sender)

    def take(self, said: Said, now: float) -> None:
        """An accepted packet, handled at once by the one who is awake."""
        self.spent += said.kind not in CONTROL
        self._wake(said.sender)
        self._apply(said, now)

    def _apply(self, said: Said, now: float) -> None:
        if said.kind == "SIGNAL":
            self._signal(said, now)
        elif said.kind == "TASK_IR":
            self.briefs[said.about] = said.keys
        elif said.kind == "EVAL":
            self._evaluate(said, now)
        elif said.kind == "ARTIFACT" and self.state == "EXECUTION" and self.is_winner(said.sender):
            self.has_artifact = True
        elif said.kind == "DECISION" and self.state == "ARBITRATION" and said.about == "arbitration":
            self._commit(now)
        self.settle(now)

    def _wake(self, agent: str) -> None:
        for swarm, member in SWARMS.items():
            if member == agent:
                self.missed[swarm] = 0 if swarm in self.forgotten else self.missed[swarm]
                self.forgotten -= {swarm, agent}

    def _signal(self, said: Said, now: float) -> None:
        if said.signal in ("STOP", "CANCEL"):
            self.halt()
        elif said.signal == "PAUSE" and self.paused_at is None:
            self.paused_at = now
        elif said.signal == "RESUME" and self.paused_at is not None:
            self.due = {kind: at + now - self.paused_at for kind, at in self.due.items()}
            self.paused_at = None
            if self.has_run_out:
                return self.halt()
            self._release(now)
        elif said.signal == "SYNC" and said.generation == 0:
            self.ready |= {swarm for swarm, member in SWARMS.items() if member == said.sender}
        elif said.signal == "VETO" and said.about == "arbitration" and self.state == "ARBITRATION":
            self.has_veto = True

    def _release(self, now: float) -> None:
        """What was held is judged in the order in which it came."""
        held, self.held = self.held, []
        for said in held:
            is_fine = not self.is_terminal and not self._unauthorized(said) and not self._out_of_place(said)
            if is_fine:
                self._apply(said, now)

    def _evaluate(self, said: Said, now: float) -> None:
        for swarm, member in SWARMS.items():
            if member == said.sender:
                if self.state in GENERATION_STATES:
                    self.evaluated |= {swarm} if said.generation == self.generation else set()
                    self.best[swarm].append((said.outcome, self.round, said.generation))
                if self.state == "EXECUTION" and said.about == "winner" and self.has_artifact:
                    self._enter("VALIDATION", now)
        if self.state == "VALIDATION" and said.about == "winner" and said.sender in VALIDATORS:
            self._validate(said.outcome >= 0.5, now)

    def _validate(self, passed: bool, now: float) -> None:
        if passed:
            self._enter("PROMOTION", now)
            self.due["generation"] = now + self.generation_deadline
        elif self.round >= self.max_rounds:
            self.halt()
        else:
            self._strike()
            self.round += 1
            self.ready, self.evaluated = set(), set()
            self.winner, self.has_veto, self.has_artifact = None, False, False
            self._enter("INDEPENDENT_DISCOVERY", now)
            self._open_generation(0, now)

    def _strike(self) -> None:
        assert self.winner is not None
        swarm, *rest = self.winner
        self.best[swarm].remove(tuple(rest))  # type: ignore[arg-type]

    def settle(self, now: float) -> None:
        """As far as the conditions carry."""
        before = None
        while before != (before := (self.state, self.round, self.generation)) and not self.is_terminal:
            if self.paused_at is not None:
                return
            if not self.live:
                return self.halt()
            if self.state == "SESSION_OPEN" and self._is_differentiated():
                self._enter("DIFFERENTIATED_RESEARCH", now)
                self.due["generation"] = now + self.generation_deadline
            elif self.state == "DIFFERENTIATED_RESEARCH" and self._are_ready():
                self.forgotten |= self.live - self.ready
                self._begin(now)
            elif self.state in GENERATION_STATES and self._may_close():
                self._close(now)
            elif self.state == "PROMOTION" and not (self.owing - self.forgotten):
                self._enter("CLOSED", now)

    def _is_differentiated(self) -> bool:
        if set(self.briefs) < set(SWARMS):
            return False
        return all(2 * len(a & b) <= min(len(a), len(b)) for a, b in combinations(self.briefs.values(), 2))

    def _are_ready(self) -> bool:
        return self.live <= self.ready or (self.is_late and bool(self.ready))

    def _begin(self, now: float) -> None:
        self._enter("INDEPENDENT_DISCOVERY", now)
        self._open_generation(0, now)

    def _may_close(self) -> bool:
        return self.live <= self.evaluated and not (self.owing - self.forgotten)

    def _close(self, now: float, is_late: bool = False) -> None:
        for swarm in self.live:
            self.missed[swarm] = 0 if swarm in self.evaluated else self.missed[swarm] + 1
            if self.missed[swarm] >= MISSED_BARRIERS:
                self.forgotten.add(swarm)
        if is_late:
            self.forgotten |= self.owing
        self._owe()
        if self.generation >= self.limit:
            if self.state != "CONTROLLED_CONVERGENCE":
                self._enter("CONTROLLED_CONVERGENCE", now)
            self.due.pop("generation", None)
            return self._arbitrate(now)
        self._open_generation(self.generation + 1, now)
        if self.state == "INDEPENDENT_DISCOVERY" and self.generation >= 11:
            self._enter("SELECTIVE_TRANSFER", now)

    def _arbitrate(self, now: float) -> None:
        pool = [(-outcome, swarm, turn, at) for swarm, all_ in self.best.items() for outcome, turn, at in all_]
        if not pool or min(pool)[0] >= 0:
            return self.halt()
        outcome, swarm, turn, at = min(pool)
        self.winner = (swarm, -outcome, turn, at)
        self.has_veto = False
        if self.state != "ARBITRATION":
            self._enter("ARBITRATION", now)
        self._owe()
        self.due["veto"] = now + VETO_WINDOW

    def _commit(self, now: float) -> None:
        if not self.has_veto:
            self.due.pop("veto", None)
            self._enter("EXECUTION", now)

    def is_winner(self, agent: str) -> bool:
        return self.winner is not None and SWARMS[self.winner[0]] == agent

    def _enter(self, state: str, now: float) -> None:
        self.state = state
        self._owe()
        if self.is_terminal:
            self.due, self.paused_at = {}, None
            return
        self.due["state"] = now + self.state_deadline
        if state not in GENERATION_STATES:
            self.due.pop("generation", None)

    def _owe(self) -> None:
        """A SYNC or an ARBITRATION goes to everybody; who sleeps leaves it open."""
        self.owing |= self.asleep

    def _open_generation(self, generation: int, now: float) -> None:
        self.generation = generation
        self.evaluated = set()
        self.due["generation"] = now + self.generation_deadline

    def halt(self) -> None:
        self.state, self.due, self.paused_at = "HALTED", {}, None

    def pass_time(self, until: float) -> None:
        """Deadlines that come due on the way."""
        while self.paused_at is None and self.due and min(self.due.values()) <= until:
            kind = min(self.due, key=lambda name: self.due[name])
            self._fire(kind, self.due.pop(kind))

    def _fire(self, kind: str, now: float) -> None:
        if kind == "state":
            return self.halt()
        if kind == "veto":
            return self._end_window(now)
        if self.state == "DIFFERENTIATED_RESEARCH":
            self.is_late = True
        elif self.state in GENERATION_STATES:
            self._close(now, is_late=True)
        elif self.state == "PROMOTION":
            self._enter("CLOSED", now)
        self.settle(now)

    def _end_window(self, now: float) -> None:
        if self.has_veto:
            self._strike()
            self._arbitrate(now)
        else:
            self._enter("EXECUTION", now)

    def wake(self, agent: str) -> None:
        """Agent speaks again, then handles what waits."""
        self.asleep.discard(agent)

    def handled(self, agent: str, now: float) -> None:
        self.owing.discard(agent)
        self.forgotten.discard(agent)
        self.settle(now)
