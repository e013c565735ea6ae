"""One call of `advance`: its input, its effects, and the moves of the session.

Transitions, barriers, generations, rounds, deadlines, pauses: how a session moves is here, and when it moves in
`events`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from apc_contracts.contract.contract import Contract
from apc_contracts.judging.verdict import Refusal, Verdict
from apc_contracts.packet import Packet
from apc_contracts.session import budgets
from apc_contracts.session.document import RoundState, WinnerExecution, Work
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt


class FailedCheck(NamedTuple):
    """A failed check: its name in section `verification` of the contract, and what is wrong."""

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class Verification:
    """A packet to verify, with what its session found when it was first applied."""

    received: ReceivedPacket
    findings: tuple[FailedCheck, ...]


class PacketInput(msgspec.Struct, frozen=True):
    """A judged packet; `recipients` are resolved (`_all` expanded)."""

    received: ReceivedPacket
    verdict: Verdict
    recipients: tuple[str, ...]
    cause: UUID | None
    now: datetime
    decayed: frozenset[str] = frozenset()
    """Protocols blocked now: read by a barrier that this input closes."""


class ReceiptsInput(msgspec.Struct, frozen=True):
    """Authenticated receipts for one (packet, recipient, attempt), in the order in which they were sent."""

    receipts: Sequence[Receipt]
    now: datetime
    decayed: frozenset[str] = frozenset()


class ReleaseInput(msgspec.Struct, frozen=True):
    """A packet that a pause held, judged at RESUME. `cause` is the RESUME.

    The RESUME and all packets that it releases are one cause, so they have one SYNC, after the last of them.
    """

    item: HeldPacket
    verdict: Verdict
    cause: UUID
    now: datetime
    is_last: bool
    decayed: frozenset[str] = frozenset()


class Hop(msgspec.Struct, frozen=True):
    """The effect of one input on one packet for one recipient ('' = the whole packet).

    `to_state` '' moves nothing: it records the end of a delivery whose machine had already reached its final state.
    """

    packet_id: UUID
    recipient: str
    attempt: int
    from_state: str
    to_state: str
    events: list[str]
    occurred_at: list[datetime]
    actor: str
    metadata: dict[str, Any] | None = None


class Transition(msgspec.Struct, frozen=True):
    """A row of coordination_events: a step of the session's machine, or a barrier (from_state == to_state)."""

    event: str
    from_state: str
    to_state: str
    round: int
    generation: int
    step: int
    cause: UUID
    facts: dict[str, Any]


class Route(msgspec.Struct, frozen=True):
    """A packet to deliver: at admission, at the barrier that released it, at a retry."""

    received: ReceivedPacket
    recipients: tuple[str, ...]
    attempt: int
    not_before: datetime | None = None
    """For a retry: not delivered before this time."""


class Denial(msgspec.Struct, frozen=True):
    """A held packet that was finally refused: its sender gets a NACK."""

    received: ReceivedPacket
    refusal: Refusal


class FinalVerdict(msgspec.Struct, frozen=True):
    """A TRANSFER or EVAL that was finally admitted (refusal_code None) or refused: protocols are measured by these."""

    packet: Packet
    refusal_code: str | None


class Effects(msgspec.Struct):
    """Everything one input caused, in order. The orchestrator logs hops and transitions, then does the rest."""

    hops: list[Hop] = msgspec.field(default_factory=list)
    transitions: list[Transition] = msgspec.field(default_factory=list)
    emissions: list[Packet] = msgspec.field(default_factory=list)
    """Packets of the orchestrator, to be sealed, judged and advanced in the same batch."""
    routes: list[Route] = msgspec.field(default_factory=list)
    due: list[Route] = msgspec.field(default_factory=list)
    """Deferred routes of earlier inputs that are due: they count as outstanding already."""
    denials: list[Denial] = msgspec.field(default_factory=list)
    final_verdicts: list[FinalVerdict] = msgspec.field(default_factory=list)
    verifications: list[Verification] = msgspec.field(default_factory=list)
    """What to verify beside the gate; the result comes back as a receipt."""
    misdirected: list[Receipt] = msgspec.field(default_factory=list)
    """Receipts for packets that were not delivered to that recipient: security events."""
    surplus: list[Receipt] = msgspec.field(default_factory=list)
    """Entries about effects for which the session has no room."""
    resumed: list[HeldPacket] = msgspec.field(default_factory=list)
    """Packets held by a pause that are to be judged now, in log order."""
    ended: list[str] = msgspec.field(default_factory=list)
    """The recipient of every delivery that ended."""
    ended_senders: list[str] = msgspec.field(default_factory=list)
    """The sender of each of these deliveries."""
    is_sync_due: bool = False


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
