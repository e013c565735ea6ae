"""What a session waits for, in words."""

from collections.abc import Sequence

from apc_contracts.plurals import numbered
from apc_contracts.session import SessionDocument
from apc_contracts.session.document import TaskDocument
from apc_contracts.vocabulary import RunPhase
from apc_log.queries import HeldRow
from apc_log.queries.session_pages import SessionPlace
from apc_web.models.runs import SessionWait

_MOST_IDS = 20


def waits_of(place: SessionPlace, held: Sequence[HeldRow], dead: int) -> list[SessionWait]:
    """Return what a session waits for, the most urgent first; nothing when it has ended."""
    document = place.document
    waits: list[SessionWait] = []
    if dead:
        waits.append(SessionWait(kind="dead_letter", words=numbered(dead, "dead letter waits", "dead letters wait")))
    if place.is_terminal:
        return waits
    if document.paused_at is not None:
        waits.append(SessionWait(kind="paused", words="an operator paused it: it waits for resume or stop"))
    waits += _questions(document)
    waits += _acknowledgements(document)
    waits += _barrier(document)
    if document.verifying:
        words = numbered(document.verifying, "packet is being verified", "packets are being verified")
        waits.append(SessionWait(kind="verification", words=words))
    if place.open_deliveries:
        words = numbered(place.open_deliveries, "delivery is on its way", "deliveries are on their way")
        waits.append(SessionWait(kind="delivery", words=words))
    if held:
        words = numbered(len(held), "packet is held", "packets are held") + " until the barrier or resume"
        ids = [one.packet_id for one in held[:_MOST_IDS]]
        waits.append(SessionWait(kind="held", words=words, packet_ids=ids))
    waits += [
        SessionWait(kind="deadline", words=_DEADLINES.get(kind, f"the deadline {kind}"), due=due)
        for kind, due in sorted(document.deadlines.items(), key=lambda item: item[1])
        if not kind.startswith(("ack:", "ask:"))
    ]
    return waits


_DEADLINES = {
    "generation": "the generation ends at its deadline at the latest",
    "state": "the session halts if it does not leave this state before the deadline",
    "veto": "agents may veto the decision until the deadline",
    "wall": "the session halts when its time is used up",
}


def _questions(document: SessionDocument) -> list[SessionWait]:
    """Return the open questions to people, the one that is due first first."""
    if not isinstance(document, TaskDocument):
        return []
    return [
        SessionWait(
            kind="question",
            words=f"{question.asker} asks {_either(question.may_answer)}",
            due=question.due_at,
            agents=question.may_answer,
            packet_ids=[packet_id],
        )
        for packet_id, question in sorted(document.work.questions.items(), key=lambda item: item[1].due_at)
    ]


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _acknowledgements(document: SessionDocument) -> list[SessionWait]:
    return [
        SessionWait(
            kind="acknowledgement",
            words=f"{', '.join(pending.missing)} must acknowledge a packet of {pending.sender}",
            due=document.deadlines.get(f"ack:{packet_id}:{pending.attempt}"),
            agents=pending.missing,
            packet_ids=[packet_id],
        )
        for packet_id, pending in document.pending_acks.items()
    ]


def _barrier(document: SessionDocument) -> list[SessionWait]:
    """Return the swarms that the barrier of the open generation waits for."""
    is_research = document.run_phase is RunPhase.RESEARCH
    if not is_research and "generation" not in document.deadlines:
        return []
    there = document.round_state.ready if is_research else document.round_state.evaluated
    missing = [name for name in document.swarms if name not in there and name not in document.dead_swarms]
    if not missing:
        return []
    what = "a SYNC" if is_research else "an EVAL"
    words = f"the barrier of generation {document.generation} waits for {what} of {', '.join(missing)}"
    agents = [agent for name in missing for agent in document.swarms[name] if agent not in document.dead_agents]
    return [SessionWait(kind="barrier", words=words, due=document.deadlines.get("generation"), agents=agents)]
