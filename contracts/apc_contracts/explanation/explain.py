"""The explanation of a session: its end, its pause, its budget, its state, and the packets that it waits for."""

from dataclasses import replace

from apc_contracts.contract.contract import Contract
from apc_contracts.explanation.deliveries import MOST_DELIVERIES, further_deliveries, waits_of_deliveries
from apc_contracts.explanation.ended import explain_end
from apc_contracts.explanation.result import Explanation, Wait, clock
from apc_contracts.explanation.states import waits_of_state
from apc_contracts.explanation.surroundings import Surroundings
from apc_contracts.explanation.task_states import waits_of_handlers
from apc_contracts.session.document import SessionDocument
from apc_contracts.session.movement import COORDINATION

MOST_REFUSALS = 5
"""Kinds of refusals that are named one by one."""


def explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    """Return in words where a session stands, what it waits for, from whom, until when, and what would move it."""
    found = _explain(document, around, contract)
    stale = [f"{one.words}." for one in around.stale]
    return replace(found, remarks=(*stale, *_refused(document, around), *found.remarks))


def _refused(document: SessionDocument, around: Surroundings) -> list[str]:
    """Name what was refused last, for nothing follows from it; of a session that closed it does not matter."""
    if document.state == "CLOSED" or not around.refusals:
        return []
    named = [
        f"{one.packet_type} of {one.sender} ({one.code}{f', {one.packets} times' if one.packets > 1 else ''})"
        for one in around.refusals[:MOST_REFUSALS]
    ]
    more = "" if len(around.refusals) <= MOST_REFUSALS else ", and others before"
    how = f"`apc packet refused --session-id {document.session_id}` shows field and remedy"
    return [f"The gate refused, the latest first: {', '.join(named)}{more}; {how}."]


def _explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    if document.state in contract.machine(COORDINATION).terminal:
        return explain_end(document)
    standing = f"{document.state}, round {document.round}, generation {document.generation}"
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


def _remarks(document: SessionDocument, around: Surroundings) -> list[str]:
    dead = [one for one in around.deliveries if one.is_dead]
    remarks = [
        f"{one.packet_type} {one.packet_id} is a dead letter of {one.recipient}: {one.error or 'no reason recorded'}. "
        f"`apc dead-letter requeue {one.packet_id}` delivers it again, `apc dead-letter discard` gives it up."
        for one in dead[:MOST_DELIVERIES]
    ]
    if around.held:
        kinds = ", ".join(sorted({one.packet_type for one in around.held}))
        remarks.append(
            f"{len(around.held)} held packets ({kinds}) are judged together at the barrier of generation "
            f"{document.generation}."
        )
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
