"""The refusal order (docs/specification/contract.md section 12) as one tuple of small rules.

The first rule that objects decides.
"""

from collections.abc import Callable
from functools import cache

from apc_contracts.admission.case import Case, Rule, Ruling, Scope, Stage
from apc_contracts.admission.rules import (
    authority,
    budget,
    capacity,
    drift,
    life,
    newness,
    phase,
    routing,
    sender,
    task,
    team,
    throttle,
    waits,
)
from apc_contracts.vocabulary import CONTROL_TYPES, PacketType

_ALL = frozenset(PacketType)
_WORK = _ALL - CONTROL_TYPES
_SIGNAL = frozenset({PacketType.SIGNAL})
_SIGNALS = frozenset({PacketType.SIGNAL, PacketType.HEARTBEAT})
_TASK_IR = frozenset({PacketType.TASK_IR})
_TRANSFER = frozenset({PacketType.TRANSFER})
_RETRACTION = frozenset({PacketType.RETRACTION})
_ARBITRATION = frozenset({PacketType.ARBITRATION})
_DECISION = frozenset({PacketType.DECISION})
_EVAL = frozenset({PacketType.EVAL})
_TYPED = frozenset({PacketType.MESSAGE, PacketType.DECISION, PacketType.SIGNAL})

_LIVE = Scope.LIVE
_SESSION = Scope.SESSION
_AGENTS = Scope.AGENTS

ARRIVAL: tuple[Rule, ...] = (
    Rule("TOO_LARGE", life.spec_has_room, _AGENTS, _SIGNALS),
    Rule("TOO_LARGE", life.lists_have_room, _AGENTS),
    Rule("SENDER_MISMATCH", sender.no_copies, _LIVE),
    Rule("SENDER_MISMATCH", sender.sender_is_authentic, _LIVE),
    Rule("UNKNOWN_SENDER", sender.sender_is_known, _LIVE),
    Rule("BAD_SIGNATURE", sender.signature_is_good, _LIVE),
    Rule("DUPLICATE_CONFLICT", newness.identity_is_free, _SESSION),
    Rule("DUPLICATE_CONFLICT", newness.derived_id_is_own, _LIVE | _AGENTS),
)
"""Judged once, on arrival."""

STANDING: tuple[Rule, ...] = (
    Rule("EXPIRED", life.not_expired),
    Rule("CLOCK_SKEW", life.not_from_the_future),
    Rule("UNKNOWN_SESSION", life.session_is_here, _LIVE),
    Rule("UNKNOWN_CONTRACT", task.contract_is_known, _LIVE | _AGENTS, _SIGNAL),
    Rule("SESSION_TERMINAL", life.session_goes_on, _SESSION | _AGENTS),
    Rule("SESSION_PAUSED", life.session_is_running, _SESSION | _AGENTS, _WORK),
    Rule("NOT_AUTHORIZED", authority.speaks_for_itself, _LIVE | _AGENTS),
    Rule("NOT_AUTHORIZED", authority.is_member, _LIVE | _SESSION | _AGENTS),
    Rule("NOT_AUTHORIZED", authority.leaves_reserved_ids, _LIVE | _AGENTS, _ALL - {PacketType.HEARTBEAT}),
    Rule("NOT_AUTHORIZED", authority.may_signal, _LIVE | _AGENTS, _SIGNALS),
    Rule("NOT_AUTHORIZED", waits.may_ask, _LIVE | _SESSION | _AGENTS, _SIGNAL),
    Rule("NOT_AUTHORIZED", waits.may_answer, _LIVE | _SESSION | _AGENTS, _SIGNAL),
    Rule("NOT_AUTHORIZED", waits.may_wake, _LIVE | _SESSION | _AGENTS, _SIGNAL),
    Rule("NOT_AUTHORIZED", authority.opens_once, _SESSION | _AGENTS, _SIGNAL),
    Rule("NOT_AUTHORIZED", authority.spec_leaves_reserved_ids, _LIVE | _AGENTS, _SIGNALS),
    Rule("NOT_AUTHORIZED", authority.transfers_from_own_swarm, _LIVE | _AGENTS, _TRANSFER),
    Rule("NOT_AUTHORIZED", authority.retracts_its_own, _LIVE | _SESSION | _AGENTS, _RETRACTION),
    Rule("NOT_AUTHORIZED", authority.may_arbitrate, _LIVE | _SESSION | _AGENTS, _ARBITRATION),
    Rule("NOT_AUTHORIZED", authority.may_decide, _LIVE | _SESSION | _AGENTS, _DECISION),
    Rule("NOT_AUTHORIZED", authority.may_validate, _LIVE | _SESSION | _AGENTS, _EVAL),
    Rule("NOT_AUTHORIZED", task.places_are_filled, _LIVE | _AGENTS, _SIGNAL),
    Rule("NOT_AUTHORIZED", task.may_object, _LIVE | _SESSION | _AGENTS, _SIGNAL),
    Rule("NOT_AUTHORIZED", task.may_finish, _LIVE | _SESSION | _AGENTS, _DECISION),
    Rule("UNROUTABLE", task.members_are_ready, _LIVE | _AGENTS, _SIGNAL),
    Rule("UNROUTABLE", routing.is_routable, _LIVE),
    Rule("UNROUTABLE", routing.reaches_its_swarm, _LIVE, _TRANSFER),
    Rule("PHASE_MISMATCH", phase.phase_is_current, _SESSION | _AGENTS, _WORK),
    Rule("GENERATION_MISMATCH", phase.generation_is_open, _SESSION | _AGENTS),
    Rule("PHASE_FORBIDS_TYPE", phase.phase_allows_type, packet_types=_WORK),
    Rule("CONTENT_INVALID", phase.content_fits, _LIVE, _TYPED),
    Rule("LINEAGE_REQUIRED", phase.has_lineage),
    Rule("PROOF_REQUIRED", phase.has_proof),
)
"""Judged on arrival, and again at RESUME when a pause held the packet."""

WAITING: tuple[Rule, ...] = (Rule("TRANSFER_WINDOW_CLOSED", throttle.waits_for_barrier, _SESSION | _AGENTS, _TRANSFER),)
"""Where a live TRANSFER waits for the barrier of its generation; it refuses nothing."""

RELEASE: tuple[Rule, ...] = (
    Rule("TRANSFER_WINDOW_CLOSED", throttle.window_is_open, packet_types=_TRANSFER),
    Rule("THROTTLE_MODE", throttle.phase_guard("THROTTLE_MODE"), packet_types=_TRANSFER),
    Rule("THROTTLE_CROSS_USE_CASE", throttle.use_case_is_kept, packet_types=_TRANSFER),
    Rule("THROTTLE_CROSS_USE_CASE", throttle.phase_guard("THROTTLE_CROSS_USE_CASE"), packet_types=_TRANSFER),
    Rule("THROTTLE_SCORE", throttle.score_is_ahead, packet_types=_TRANSFER),
    Rule("THROTTLE_SCORE", throttle.phase_guard("THROTTLE_SCORE"), packet_types=_TRANSFER),
    Rule("THROTTLE_TOP_K", throttle.top_k_is_given, packet_types=_TRANSFER),
    Rule("THROTTLE_TOP_K", throttle.phase_guard("THROTTLE_TOP_K"), packet_types=_TRANSFER),
    Rule("THROTTLE_TOP_K", throttle.top_k_is_left, _SESSION, _TRANSFER),
    Rule("PROTOCOL_DECAYED", throttle.protocol_is_alive, packet_types=_TRANSFER),
    Rule("NOT_RETRACTABLE", authority.target_is_retractable, _SESSION, _RETRACTION),
    Rule("DRIFT_CHECK_FAILED", drift.keeps_to_the_course, _AGENTS, _WORK),
    Rule("EVIDENCE_UNKNOWN", team.evidence_is_known, _LIVE | _SESSION | _AGENTS),
    Rule("RULE_FAILED", team.keeps_the_rules, _LIVE | _SESSION | _AGENTS),
)
"""Judged when the packet may go through: on arrival, or at its barrier for a held TRANSFER."""

REPEATING: tuple[Rule, ...] = (Rule("LOOP_DETECTED", newness.ends_no_loop, _LIVE | _SESSION | _AGENTS),)
"""Judged once, on arrival, held packets included: from then on the packet counts."""

RATE: tuple[Rule, ...] = (Rule("QUOTA_EXCEEDED", budget.quota_is_left, _LIVE | _AGENTS, _WORK),)
"""Judged once, on arrival, held packets included: then the quota is drawn."""

ROOM: tuple[Rule, ...] = (
    Rule("OVERLOADED", capacity.inbox_has_room, _LIVE | _AGENTS),
    Rule("OVERLOADED", capacity.acks_have_room, _SESSION | _AGENTS),
    Rule("OVERLOADED", waits.questions_have_room, _SESSION | _AGENTS, _SIGNAL),
    Rule("OVERLOADED", waits.wakes_have_room, _SESSION | _AGENTS, _SIGNAL),
)
"""Judged when the packet would be delivered, like RELEASE."""

KEEPING: tuple[Rule, ...] = (Rule("OVERLOADED", capacity.bytes_have_room, _SESSION | _AGENTS),)
"""Judged once, on arrival, held packets included: from then on its body is kept."""

SPENDING: tuple[Rule, ...] = (
    Rule("BUDGET_EXHAUSTED", capacity.session_has_room, _SESSION | _AGENTS),
    Rule("BUDGET_EXHAUSTED", budget.budget_is_left, _SESSION | _AGENTS, _WORK),
    Rule("BUDGET_EXHAUSTED", budget.reservation_fits, _SESSION | _AGENTS, _TASK_IR),
)
"""Judged once, on arrival, held packets included: then the budget is spent."""

RESERVING: tuple[Rule, ...] = (Rule("BUDGET_EXHAUSTED", budget.held_reservation_fits, _SESSION | _AGENTS, _TASK_IR),)
"""Judged at RESUME: what a held TASK_IR asks for is reserved only then."""

RULES = ARRIVAL + STANDING + WAITING + RELEASE + REPEATING + RATE + ROOM + KEEPING + SPENDING
"""All rules, in the order of docs/specification/contract.md section 12.

`parse_packet` raises the other codes that precede SENDER_MISMATCH.
"""


_RULES_OF_STAGE = {
    Stage.ARRIVAL: RULES,
    Stage.RESUME: STANDING + WAITING + RELEASE + ROOM + RESERVING,
    Stage.BARRIER: RELEASE + ROOM,
}


@cache
def plan(
    stage: Stage, packet_type: PacketType, is_live: bool, has_session: bool, is_from_orchestrator: bool
) -> tuple[Callable[[Case], Ruling], ...]:
    """Return the rules that apply to such a packet, in order."""
    without = Scope.AGENTS if is_from_orchestrator else Scope.ANY
    without |= Scope.ANY if is_live else Scope.LIVE
    without |= Scope.ANY if has_session else Scope.SESSION
    rules = _RULES_OF_STAGE[stage]
    return tuple(rule.judge for rule in rules if packet_type in rule.packet_types and not rule.scope & without)
