"""The events of the coordinator `task`, checked after every packet, receipt and timer."""

from typing import Any

from apc_contracts.session.document import Work
from apc_contracts.session.movement import Advance, may, start_timer, transition
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT, PacketType

STALL = "stall"
_TOLD = frozenset({PacketType.ACK, PacketType.NACK, PacketType.ERROR})
STALL_MS = 60_000
"""A session in which nothing is open for this long halts."""


def work(moment: Advance) -> None:
    """Raise the event of the state, when its condition holds."""
    found = moment.session.work
    assert found is not None, "a session of the coordinator task has work"
    state = moment.session.state
    if state == "SESSION_OPEN":
        if found.is_started and may(moment, "work_started"):
            transition(moment, "work_started")
            moment.session.document.deadlines.pop("open", None)
    elif state == "WORKING" and found.done is not None:
        event = "review_requested" if found.reviewers else "work_done"
        if may(moment, event):
            transition(moment, event, _facts(found))
    elif state == "REVIEW":
        _review(moment, found)


def watch(moment: Advance) -> None:
    """Start the stall timer when nothing is open in a running session; stop it when something is."""
    session, deadlines = moment.session, moment.session.document.deadlines
    work = session.work
    if work is None or session.is_terminal or session.is_paused:
        return
    if moment.effects.ended:
        work.last_end = f"packet {moment.cause} at {moment.effects.ended[-1]}"
    if session.state == "SESSION_OPEN" or not is_idle(session):
        deadlines.pop(STALL, None)
    elif STALL not in deadlines or moment.effects.hops:
        start_timer(moment, STALL, STALL_MS)


def is_idle(session: Session) -> bool:
    """Return whether no delivery, verification, dead letter, held packet, awaited ACK, question or timer is open.

    Deliveries of the orchestrator's own signals do not count, nor dead letters of what the opener is only told: nothing
    follows from them, and a client that opens sessions has no inbox.
    """
    document, work = session.document, session.work
    if document.verifying or session.held or document.pending_acks:
        return False
    if work is not None and (work.questions or work.wakes):
        return False
    # The newest first: while work goes on, one of these is open.
    for opened in reversed(session.open.values()):
        packet = opened.packet
        if packet.sender.agent_id == ORCHESTRATOR and packet.packet_type is PacketType.SIGNAL:
            continue
        for recipient, progress in opened.recipients.items():
            is_told = recipient == document.opener and packet.packet_type in _TOLD
            is_open = progress.is_open and recipient != SUBSTRATE_RECIPIENT
            if is_open or (progress.state == "DEAD_LETTERED" and not is_told):
                return False
    return True


def _review(moment: Advance, found: Work) -> None:
    document = moment.session.document
    if len(found.approved_by) >= found.approvals and may(moment, "review_passed"):
        transition(moment, "review_passed", _facts(found))
        return
    if found.failed is None:
        return
    if document.round >= document.max_rounds or not may(moment, "review_failed"):
        document.halt_reason = f"REVIEW_FAILED {found.failed}"
        return
    transition(moment, "review_failed", _facts(found) | {"reason": found.failed})
    document.last_generations[str(document.round)] = document.generation
    document.round += 1
    found.done, found.done_by, found.failed = None, "", None
    found.approved_by.clear()


def _facts(found: Work) -> dict[str, Any]:
    return {"done": str(found.done), "done_by": found.done_by, "approved_by": list(found.approved_by)}
