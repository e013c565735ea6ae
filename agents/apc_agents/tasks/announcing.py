"""Tells of tasks: as SIGNAL QUERY packets with metadata.task."""

from apc_agents.clearance import PROVENANCE
from apc_agents.emitting.draft import Draft, KnownParent
from apc_agents.emitting.emitter import Emitter
from apc_agents.tasks.model import TaskEvent
from apc_agents.tasks.runner import Announce
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import Channel, Signal


def announce_with(emitter: Emitter, agent_id: str) -> Announce:
    """Build what emits an event to those that the task names, else as an INTRA_AGENT packet of the agent to itself.

    An INTRA_AGENT packet is logged by the gate and handled by the agent's own SIGNAL handler. The packet has the
    trace of the one whose handler started the task, and the id that the event was given when it was kept: one that
    is emitted again is a repeat.
    """

    async def announce(event: TaskEvent) -> None:
        spec = event.spec
        reason = f"task {event.task_id} {event.document['status']}, event {event.number}"
        origin = spec.origin
        draft = Draft(
            payload=SignalPayload(signal=Signal.QUERY, reason=reason),
            to=spec.announce_to or agent_id,
            parent=None if origin is None else KnownParent(origin.packet_id, origin.root_packet_id),
            channel=Channel.INTER_AGENT if spec.announce_to else Channel.INTRA_AGENT,
            session_id=event.session_id,
            run_id=None if origin is None else origin.run_id,
            task_id=None if origin is None else origin.task_id,
            packet_id=event.packet_id,
            metadata={"task": event.document, PROVENANCE: {"security_level": spec.security_level.value}},
        )
        await emitter.emit(draft, None, 0)

    return announce
