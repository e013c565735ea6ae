"""Timers of agents in a session of the coordinator `task`: set by a WAKE, and sent back as one when they are due."""

from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.wakes import WakeSpec
from apc_contracts.session import emissions
from apc_contracts.session.document import PendingWake, Work
from apc_contracts.session.movement import Advance, start_timer
from apc_contracts.session.task.pausing import WAKE, timer_of
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal


def wake_of_timer(kind: str) -> UUID | None:
    """Return the WAKE whose deadline this is; None for other deadlines."""
    return UUID(kind.removeprefix(WAKE)) if kind.startswith(WAKE) else None


def note_wake(moment: Advance, packet: Packet, work: Work) -> None:
    """Set a timer by an agent's WAKE; one with the same key is replaced."""
    payload, agent = packet.payload, packet.sender.agent_id
    if not isinstance(payload, SignalPayload) or payload.wake is None or agent == ORCHESTRATOR:
        return
    wake, deadlines = payload.wake, moment.session.document.deadlines
    for earlier in [one for one, found in work.wakes.items() if (found.agent, found.key) == (agent, wake.key)]:
        del work.wakes[earlier]
        deadlines.pop(timer_of(earlier), None)
    kind = timer_of(packet.packet_id)
    if wake.at is not None:
        deadlines[kind] = wake.at
    else:
        start_timer(moment, kind, wake.after_ms or 0)
    work.wakes[packet.packet_id] = PendingWake(agent, wake.key, deadlines[kind], is_absolute=wake.at is not None)


def expire(moment: Advance, packet_id: UUID) -> None:
    """Send a timer that is due back to its agent; it waits there until the session ends."""
    work, document = moment.session.work, moment.session.document
    found = None if work is None else work.wakes.pop(packet_id, None)
    if found is None:
        return
    payload = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key=found.key, at=found.due_at))
    emissions.emit(
        moment,
        PacketType.SIGNAL,
        payload,
        parent=packet_id,
        recipient=found.agent,
        expires_at=document.deadlines.get("deadline"),
    )


def end_all(moment: Advance) -> None:
    """Cancel every wait and timer when the session ends; its deadlines are gone already."""
    work = moment.session.work
    if work is not None:
        work.questions.clear()
        work.wakes.clear()
        work.unsettled.clear()
