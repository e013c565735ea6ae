"""The explanation of a session: its end, its pause, its budget, its state, and the packets that it waits for."""

from apc_contracts.contract.contract import Contract
from apc_contracts.explanation.ended import explain_end
from apc_contracts.explanation.result import Explanation, Wait, clock
from apc_contracts.explanation.states import waits_of_state
from apc_contracts.explanation.surroundings import OpenDelivery, Surroundings
from apc_contracts.explanation.task_states import waits_of_handlers
from apc_contracts.session.document import SessionDocument
from apc_contracts.session.movement import COORDINATION, GENERATION_STATES
from apc_contracts.vocabulary import ORCHESTRATOR

WAIT_FOR_DELIVERIES = GENERATION_STATES | {"PROMOTION"}
"""States of the research coordinator that end when deliveries have ended."""
MOST_DELIVERIES = 5
"""Deliveries of each kind that are named one by one."""


def explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    """Return in words where a session stands, what it waits for, from whom, until when, and what would move it."""
    if document.state in contract.machine(COORDINATION).terminal:
        return explain_end(document)
    standing = f"{document.state}, round {document.round}, generation {document.generation}"
    if document.paused_at is not None:
        return Explanation(f"{standing}, paused since {clock(document.paused_at)}", (_pause(document, around),))
    waits = [
        *waits_of_state(document, around, contract),
        *_deliveries(document, around),
        *_verification(document),
        *_acknowledgements(document, around),
        *waits_of_handlers(document, around),
    ]
    remarks = [*_on_its_way(document, around), *_remarks(document, around), *_ends(document, waits)]
    return Explanation(standing, tuple(waits), tuple(remarks))


def _pause(document: SessionDocument, around: Surroundings) -> Wait:
    moves = f"An operator resumes it: `apc session resume {document.session_id}`. Its deadlines stand still meanwhile."
    held = f" ({len(around.held)} packets are held until then)" if around.held else ""
    return Wait(f"RESUME{held}", moves)


def _deliveries(document: SessionDocument, around: Surroundings) -> list[Wait]:
    """Return the handlers, retries and absent workers for whose deliveries a barrier or the commons wait."""
    if document.state not in WAIT_FOR_DELIVERIES:
        return []
    waiting = [one for one in _deliveries_to_agents(around) if one.recipient not in document.dead_agents]
    return [_delivery(document, one, around) for one in waiting[:MOST_DELIVERIES]]


def _deliveries_to_agents(around: Surroundings) -> list[OpenDelivery]:
    """Return the open deliveries; what goes to the orchestrator alone is applied by the gate itself."""
    return [one for one in around.deliveries if not one.is_dead and one.recipient != ORCHESTRATOR]


def _delivery(document: SessionDocument, one: OpenDelivery, around: Surroundings) -> Wait:
    what = f"{one.recipient} to handle {one.packet_type} {one.packet_id} (attempt {one.attempt})"
    due = document.deadlines.get("generation")
    if one.retry_at is not None and one.retry_at > around.now:
        moves = f"It is delivered again at {clock(one.retry_at)}. The last attempt: {one.error or 'asked for a retry'}."
        return Wait(f"a retry of {what}", moves)
    moves = "Its handler ends." if around.is_live(one.recipient) else around.advice((one.recipient,)).strip()
    return Wait(what, moves, (around.describe(one.recipient),), due, "it is not waited for any more" if due else "")


def _on_its_way(document: SessionDocument, around: Surroundings) -> list[str]:
    """Name the deliveries that do not move, in a state that does not wait for deliveries as such."""
    if document.state in WAIT_FOR_DELIVERIES:
        return []
    stuck = [
        one for one in _deliveries_to_agents(around) if one.retry_at is not None or not around.is_live(one.recipient)
    ]
    waits = [_delivery(document, one, around) for one in stuck[:MOST_DELIVERIES]]
    return [f"On its way: {wait.what}. {wait.moves}" for wait in waits]


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
