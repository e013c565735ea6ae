"""A session explained in words: where it stands, what it waits for, what would move it; and why it ended."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.coordinators import STOP, Coordinator
from apc_contracts.contract.file import TEAM_CODES
from apc_contracts.contract.omissions import omissions
from apc_contracts.explanation.deliveries import further_deliveries, waits_of_deliveries
from apc_contracts.explanation.ends import explain_end
from apc_contracts.explanation.failure import Failure
from apc_contracts.explanation.research import RESEARCH_RULES, StateRule
from apc_contracts.explanation.surroundings import Surroundings, UnsettledEffect
from apc_contracts.explanation.task import task_opening, task_review, task_working, waits_of_handlers
from apc_contracts.explanation.words import MOST_DELIVERIES, Explanation, Wait, clock
from apc_contracts.session.document import SessionDocument, TaskDocument
from apc_contracts.session.movement import COORDINATION

# What each state waits for.


def waits_of_state(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return what the state of a running session waits for."""
    rule = RULES.get(contract.coordinator, {}).get(document.state, _any_event)
    return rule(document, around, contract)


def _any_event(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Name the events of the contract that leave the state, for a coordinator without rules here."""
    events = [one for one in contract.machine(COORDINATION).events(document.state) if one != STOP]
    due = document.deadlines.get("state")
    moves = "`apc contract diagram inter_agent_coordination` shows where each of them leads."
    return [Wait(f"one of the events {', '.join(events)}", moves, (), due, "the session is HALTED")]


TASK_RULES: Mapping[str, StateRule] = {
    "SESSION_OPEN": task_opening,
    "WORKING": task_working,
    "REVIEW": task_review,
}
RULES: Mapping[Coordinator, Mapping[str, StateRule]] = {
    Coordinator.RESEARCH: RESEARCH_RULES,
    Coordinator.TASK: TASK_RULES,
}


# The whole explanation.

MOST_REFUSALS = 5
"""Kinds of refusals that are named one by one."""


def explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    """Return in words where a session stands, what it waits for, from whom, until when, and what would move it."""
    explanation = _explain(document, around, contract)
    # Of a session that closed they are among its doubts.
    doubts = around.doubts
    stale = [] if document.state == "CLOSED" else [*(f"{one.words}." for one in doubts.stale), *doubts.of_usage]
    effects = [effect.words(_waiting_for(effect, document, around)) for effect in around.effects[:MOST_DELIVERIES]]
    said = [*stale, *omissions(contract), *effects, *_ruled(around)]
    said += [*_refused(document, around), *_not_separated(around, contract)]
    return replace(explanation, remarks=(*said, *explanation.remarks))


def _waiting_for(effect: UnsettledEffect, document: SessionDocument, around: Surroundings) -> UUID | None:
    """Return the dead letter that can be requeued once the effect is settled: that of its packet, else of its agent."""
    own = [one.packet_id for one in around.doubts.dead if one.recipient == effect.agent_id]
    if document.state == "HALTED" or not own:
        return None
    return effect.packet_id if effect.packet_id in own else own[-1]


def _ruled(around: Surroundings) -> list[str]:
    """Return what rules of the team have refused, in their words."""
    return [f"The gate refused {one.words}" for one in around.refusals if one.code in TEAM_CODES][:MOST_REFUSALS]


def _refused(document: SessionDocument, around: Surroundings) -> list[str]:
    """Name what else was refused last, for nothing follows from it; of a session that closed it does not matter."""
    refusals = [one for one in around.refusals if one.code not in TEAM_CODES]
    if document.state == "CLOSED" or not refusals:
        return []
    named = [f"{one.packet_type} of {one.sender} ({one.kind})" for one in refusals[:MOST_REFUSALS]]
    more = "" if len(refusals) <= MOST_REFUSALS else ", and others before"
    how = f"`apc packet refused --session-id {document.session_id}` shows field and remedy"
    return [f"The gate refused, the latest first: {', '.join(named)}{more}; {how}."]


_OF_PEOPLE = frozenset({"authors", "approved_by"})
"""Readings that tell members apart."""


def _not_separated(around: Surroundings, contract: Contract) -> list[str]:
    """Say that rules could tell authors and approvers apart by their ids alone."""
    if contract.team is None or around.shared_user is None:
        return []
    if not any(one.name in _OF_PEOPLE for expression in contract.team.expressions for one in expression.readings):
        return []
    return [
        f"Authors and approvals are not separated: the broker user {around.shared_user} speaks for every agent, so "
        "the rules tell them apart by their ids alone."
    ]


def _explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    if document.state in contract.machine(COORDINATION).terminal:
        return explain_end(document, around.doubts)
    standing = f"{document.state}, round {document.round}"
    if not isinstance(document, TaskDocument):
        standing += f", generation {document.generation}"
    if document.paused_at is not None:
        return Explanation(f"{standing}, paused since {clock(document.paused_at)}", (_pause(document, around),))
    waits = [
        *waits_of_state(document, around, contract),
        *waits_of_deliveries(document, around),
        *_verification(document),
        *_acknowledgements(document, around),
        *waits_of_handlers(document, around),
    ]
    remarks = [*further_deliveries(document, around), *_remarks(document, around), *_ends(document, waits)]
    return Explanation(standing, tuple(waits), tuple(remarks))


def _pause(document: SessionDocument, around: Surroundings) -> Wait:
    moves = f"An operator resumes it: `apc session resume {document.session_id}`. Its deadlines stand still meanwhile."
    held = f" ({len(around.held)} packets are held until then)" if around.held else ""
    return Wait(f"RESUME{held}", moves)


def _verification(document: SessionDocument) -> list[Wait]:
    if document.verifying == 0:
        return []
    moves = "The orchestrator ends it; if it takes long, look at its log and at the artifact store (`apc doctor`)."
    return [Wait(f"the verification of {document.verifying} packets", moves, (), document.deadlines.get("generation"))]


def _acknowledgements(document: SessionDocument, around: Surroundings) -> list[Wait]:
    waits = []
    for packet_id, pending in list(document.pending_acks.items())[:MOST_DELIVERIES]:
        missing = tuple(pending.missing)
        waits.append(
            Wait(
                f"the ACK that {pending.sender} asked for with packet {packet_id}",
                "The recipient answers ACK or NACK." + around.advice(missing),
                tuple(around.describe(agent) for agent in missing),
                document.deadlines.get(f"ack:{packet_id}:{pending.attempt}"),
                f"{pending.sender} is told who did not answer",
            )
        )
    return waits


def _dead_letter(one: Failure, around: Surroundings) -> str:
    """Say what can be done about a dead letter: an effect of its handler that is unknown is settled first."""
    is_unsettled = any(effect.agent_id == one.recipient and effect.state == "unknown" for effect in around.effects)
    first = f"Settle the effect of {one.recipient} first. " if is_unsettled else ""
    return f"{one.sentence} {first}{one.remedy}"


def _remarks(document: SessionDocument, around: Surroundings) -> list[str]:
    remarks = [_dead_letter(one, around) for one in around.doubts.dead[:MOST_DELIVERIES]]
    if around.held:
        kinds = ", ".join(sorted({packet.packet_type for packet in around.held}))
        is_task = isinstance(document, TaskDocument)
        when = "at RESUME" if is_task else f"together at the barrier of generation {document.generation}"
        remarks.append(f"{len(around.held)} held packets ({kinds}) are judged {when}.")
    gone = [*document.dead_swarms, *document.dead_agents]
    if gone:
        missed = f"It does not wait for {', '.join(gone)}, which missed a deadline"
        remarks.append(f"{missed}; a packet of theirs changes that.")
    return remarks


def _ends(document: SessionDocument, waits: list[Wait]) -> list[str]:
    """Return the deadlines that no wait has named."""
    remarks = []
    state, wall = document.deadlines.get("state"), document.deadlines.get("wall")
    if state is not None and all(wait.until != state for wait in waits):
        remarks.append(f"If nothing moves it, the state ends at {clock(state)}: HALTED (STATE_DEADLINE).")
    if wall is not None:
        remarks.append(f"Its time budget ends at {clock(wall)}: HALTED (BUDGET_EXHAUSTED wall_ms).")
    return remarks
