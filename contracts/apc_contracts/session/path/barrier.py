"""The barrier of a generation: when it closes, what it decides, what opens next.

Source: docs/specification/contract.md section 10.
"""

from typing import Any

from apc_contracts.judging.verdict import Refusal
from apc_contracts.session import verdicts
from apc_contracts.session.delivery import acknowledgements
from apc_contracts.session.knowledge import staleness
from apc_contracts.session.knowledge.loop_memory import note_evidence
from apc_contracts.session.knowledge.novelty import note_symbols, note_top_k, note_transfer
from apc_contracts.session.movement import Advance, barrier, may, open_generation, transition
from apc_contracts.session.path.transfer_rulings import emit_arbitration, rule_transfers, ruling_record
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT


def may_close(moment: Advance) -> bool:
    """Return whether the generation may close.

    Every live swarm has its EVAL, nothing is being verified and no delivery to a live recipient is open, or time is up.
    """
    session = moment.session
    current = session.document.round_state
    if current.has_generation_expired:
        return True
    if any(swarm not in current.evaluated for swarm in session.live_swarms):
        return False
    return is_quiet(session)


def is_quiet(session: Session) -> bool:
    """Return whether no live recipient has an open delivery and nothing is being verified."""
    if _waited_for(session):
        return False
    return all(opened.verification != "pending" for opened in session.open.values())


def close(moment: Advance) -> None:
    """Close the generation: transfers, the limit, an accepted transfer, the window, until one moves the session."""
    document = moment.session.document
    closing = document.generation
    _note_absence(moment)
    accepted = _arbitrate(moment)
    barrier(moment, {"evaluated": sorted(document.round_state.evaluated), "generation": float(closing)})
    if _move_at_limit(moment) or _move_on_transfer(moment, accepted):
        return
    opening = {"generation": float(closing + 1)}
    open_generation(moment, closing + 1)
    if document.state == "INDEPENDENT_DISCOVERY" and may(moment, "generation_window_open", opening):
        transition(moment, "generation_window_open", opening)


def _move_at_limit(moment: Advance) -> bool:
    """Enter CONTROLLED_CONVERGENCE at the limit; return whether no further generation opens."""
    document = moment.session.document
    if document.generation < document.generation_limit:
        return False
    if document.state != "CONTROLLED_CONVERGENCE":
        if not may(moment, "generation_limit_reached"):
            return False
        transition(moment, "generation_limit_reached")
    if document.generation < document.last_generation:
        return False
    document.deadlines.pop("generation", None)
    return True


def _move_on_transfer(moment: Advance, accepted: int) -> bool:
    document = moment.session.document
    if not accepted or document.state != "SELECTIVE_TRANSFER" or not may(moment, "transfer_accepted"):
        return False
    transition(moment, "transfer_accepted")
    open_generation(moment, document.generation + 1)
    return True


def _note_absence(moment: Advance) -> None:
    """Stop waiting, until they speak, for swarms that missed two barriers and agents that missed the deadline."""
    document = moment.session.document
    for swarm in moment.session.live_swarms:
        if swarm in document.round_state.evaluated:
            document.missed_barriers.pop(swarm, None)
            continue
        missed = document.missed_barriers.get(swarm, 0) + 1
        document.missed_barriers[swarm] = missed
        if missed >= moment.contract.session.missed_barriers_limit:
            document.dead_swarms.append(swarm)
    if document.round_state.has_generation_expired:
        document.dead_agents.extend(_waited_for(moment.session))


def _waited_for(session: Session) -> list[str]:
    """Return the live recipients with an open delivery."""
    ignored = {*session.document.dead_agents, SUBSTRATE_RECIPIENT}
    return sorted(agent for agent in session.outstanding if agent not in ignored)


def _arbitrate(moment: Advance) -> int:
    """Judge the held TRANSFERs together; the outcome does not depend on their order of arrival."""
    session = moment.session
    held = [item for item in session.held.values() if not item.is_paused]
    if not held:
        return 0
    expired = [item for item in held if item.received.packet.expires <= moment.now]
    for item in expired:
        _deny(moment, item, _expired(item))
    by_id = {item.received.packet.packet_id: item for item in held if item not in expired}
    if not by_id:
        return 0
    rulings = rule_transfers([item.received.packet for item in by_id.values()], moment)
    emit_arbitration(rulings, moment)
    # Before the first release: all were judged by what the session held then.
    records = [ruling_record(ruling, moment) for ruling in rulings]
    for ruling, record in zip(rulings, records, strict=True):
        item = by_id[ruling.packet.packet_id]
        if ruling.rank:
            note_top_k(session, ruling.packet)
        if ruling.refusal is not None:
            _deny(moment, item, ruling.refusal, record)
        else:
            _release(moment, item, record)
    return sum(ruling.refusal is None for ruling in rulings)


def _release(moment: Advance, item: HeldPacket, record: dict[str, Any]) -> None:
    session = moment.session
    packet = item.received.packet
    session.held.pop(packet.packet_id)
    session.identities[packet.packet_id].step = session.step
    note_symbols(session, packet)
    note_evidence(session, packet, moment.contract)
    note_transfer(session, packet)
    opened = verdicts.route(
        session,
        item.received,
        item.recipients,
        item.round,
        moment.now,
        moment.effects,
        was_held=True,
        record=record,
    )
    acknowledgements.expect(moment, opened)
    staleness.judge_arrival(moment, opened)
    verdicts.apply_locally(session, opened, moment.now, moment.effects, moment.contract)


def _deny(moment: Advance, item: HeldPacket, refusal: Refusal, record: dict[str, Any] | None = None) -> None:
    moment.session.held.pop(item.received.packet.packet_id)
    verdicts.deny(moment.session, item.received, refusal, moment.now, moment.effects, record)


def deny_all(moment: Advance, code: str, message: str) -> None:
    """Refuse what is still held, because the session or its pause has ended."""
    for item in list(moment.session.held.values()):
        _deny(moment, item, Refusal(code, "session", "trace.session_id", message))


def _expired(item: HeldPacket) -> Refusal:
    expires = item.received.packet.expires.isoformat()
    return Refusal("EXPIRED", "expired", "expires_at", f"expired at {expires} before its barrier; send it again")
