"""The moves of a session: transitions, barriers, generations, rounds, the end."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from apc_contracts.contract.contract import Contract
from apc_contracts.session import budgets
from apc_contracts.session.document import RoundState, WinnerExecution, Work
from apc_contracts.session.session import Session
from apc_contracts.session.session_effects import Effects, Transition

# What a pause does to the waits and timers of a session of the coordinator `task`.

WAKE = "wake:"
"""How the kind of the deadline of an agent's timer begins."""


def timer_of(packet_id: UUID) -> str:
    """Return the kind of the deadline of a timer."""
    return f"{WAKE}{packet_id}"


def move_all(work: Work, stood_still: timedelta) -> frozenset[str]:
    """Move what a pause has held up; return the deadlines that it does not move: those of timers set by `at`."""
    for question in work.questions.values():
        question.due_at += stood_still
    for wake in work.wakes.values():
        if not wake.is_absolute:
            wake.due_at += stood_still
    return frozenset(timer_of(packet_id) for packet_id, wake in work.wakes.items() if wake.is_absolute)


COORDINATION = "inter_agent_coordination"
GENERATION_STATES = frozenset({"INDEPENDENT_DISCOVERY", "SELECTIVE_TRANSFER", "CONTROLLED_CONVERGENCE"})


class Advance(msgspec.Struct):
    """One call of `advance`: the session, the cause, and the effects."""

    session: Session
    cause: UUID
    now: datetime
    effects: Effects
    contract: Contract
    rights: frozenset[str] = frozenset()
    """Rights of the packet's sender, as its verdict recorded them; the orchestrator needs none."""
    decayed: frozenset[str] = frozenset()
    """Blocked protocols."""

    def guard_facts(self) -> dict[str, Any]:
        """Return the facts that the guards of the session's machine read."""
        document = self.session.document
        work = self.session.work
        if work is not None:
            return {
                "round": float(document.round),
                "max_rounds": float(document.max_rounds),
                "approvals": float(len(work.approved_by)),
            }
        arbitration = document.round_state.arbitration
        return {
            "generation": float(document.generation),
            "session_limit": float(document.generation_limit),
            "vetoed": arbitration is not None and arbitration.is_vetoed,
            "veto_overridden": arbitration is not None and arbitration.is_overridden,
        }


def may(moment: Advance, event: str, facts: dict[str, Any] | None = None) -> bool:
    """Return whether the contract allows this event now: a deployment's guards may be stricter."""
    edge = moment.contract.machine(COORDINATION).edge(moment.session.state, event)
    if edge is None:
        return False
    return edge.guard is None or edge.guard.holds(moment.guard_facts() | (facts or {}))


def transition(moment: Advance, event: str, facts: dict[str, Any] | None = None) -> None:
    """Step the machine; ask `may` first. Raises TransitionRefused when the contract does not allow it."""
    document = moment.session.document
    used = moment.guard_facts() | (facts or {})
    before = document.state
    after = moment.contract.machine(COORDINATION).step(before, event, used)
    document.state = after
    document.step += 1
    _record(moment, event, before, after, used)
    phase = moment.contract.phase_of(after)
    if phase is not None and phase != document.run_phase:
        document.run_phase = phase
        document.phase_step = document.step
    moment.effects.is_sync_due = True
    _enter(moment, after)


def barrier(moment: Advance, facts: dict[str, Any]) -> None:
    """Record that a generation closed."""
    document = moment.session.document
    document.step += 1
    _record(moment, "barrier", document.state, document.state, facts)
    moment.effects.is_sync_due = True


def open_generation(moment: Advance, generation: int) -> None:
    """Open a generation: reset its counters and start its deadline."""
    document = moment.session.document
    document.generation = generation
    current = document.round_state
    current.evaluated.clear()
    current.accepted_transfers.clear()
    current.smallest_top_k.clear()
    current.queried.clear()
    document.generation_step = document.step
    moment.session.contents.clear()
    current.has_generation_expired = False
    start_timer(moment, "generation", document.generation_deadline_ms)


def open_round(moment: Advance) -> None:
    """Begin the next round at generation 0 with new counters, after a failed validation."""
    document = moment.session.document
    document.last_generations[str(document.round)] = document.generation
    document.round += 1
    document.round_state = RoundState(execution=WinnerExecution())
    open_generation(moment, 0)


def start_timer(moment: Advance, kind: str, after_ms: int) -> None:
    """Start a deadline; when it passes, the gate admits a timer packet. In a pause it starts at RESUME."""
    document = moment.session.document
    document.deadlines[kind] = (document.paused_at or moment.now) + timedelta(milliseconds=after_ms)


def start_timer_at(moment: Advance, kind: str, due: datetime) -> datetime:
    """Start a deadline that is due at this time, and later by what is left of a pause; return when it is."""
    document = moment.session.document
    document.deadlines[kind] = due - (moment.now - document.paused_at) if document.paused_at is not None else due
    return document.deadlines[kind]


def pause(moment: Advance) -> None:
    """Stop deadlines and the wall budget until RESUME."""
    moment.session.document.paused_at = moment.now
    moment.effects.is_sync_due = True


def resume(moment: Advance) -> None:
    """Move every deadline by the length of the pause."""
    document = moment.session.document
    if document.paused_at is None:
        return
    stood_still = moment.now - document.paused_at
    fixed = frozenset() if moment.session.work is None else move_all(moment.session.work, stood_still)
    document.deadlines = {kind: due if kind in fixed else due + stood_still for kind, due in document.deadlines.items()}
    budgets.stand_still(document, stood_still)
    document.paused_at = None
    moment.effects.is_sync_due = True


def _enter(moment: Advance, state: str) -> None:
    document = moment.session.document
    if moment.session.is_terminal:
        document.deadlines.clear()
        document.paused_at = None
        return
    if moment.session.work is not None:
        return
    start_timer(moment, "state", document.state_deadline_ms)
    if state == "DIFFERENTIATED_RESEARCH":
        start_timer(moment, "generation", document.generation_deadline_ms)
    elif state not in GENERATION_STATES:
        document.deadlines.pop("generation", None)


def _record(moment: Advance, event: str, before: str, after: str, facts: dict[str, Any]) -> None:
    document = moment.session.document
    row = Transition(event, before, after, document.round, document.generation, document.step, moment.cause, facts)
    moment.effects.transitions.append(row)
